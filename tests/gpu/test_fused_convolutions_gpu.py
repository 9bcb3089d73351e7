"""Convolutions with their ReLU by cuDNN itself."""

from __future__ import annotations

import copy

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from convolution_blocks import Block, randomised, run, targets
from torch import nn

from cudal1_compile.inductor.fused_convolutions import FUSED, FUSED_SUM, _measured
from cudal1_compile.pipeline import choice
from cudal1_compile.pipeline.process_state import last_plans

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def anew() -> None:
    """A module of other sizes would make them dynamic."""
    torch._dynamo.reset()


def everything(node: object, scales: bool) -> bool:
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_residual_block(dtype: torch.dtype) -> None:
    exact = randomised(Block(True)).cuda().double()
    module = copy.deepcopy(exact).to(dtype)
    x = torch.randn(4, 8, 24, 24, device="cuda", dtype=dtype)
    got, graph, count = run(module, x, pays=everything)
    due = exact(x.double())
    slack = {torch.float32: 2e-3, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    torch.testing.assert_close(got.double(), due, rtol=slack, atol=slack * float(due.abs().max()))
    found = targets(graph)
    fused = 3 if dtype != torch.float16 else 1  # the shortcut: the others have factors, which might overflow
    assert count == fused and found.count(FUSED) + found.count(FUSED_SUM) == fused


def test_what_is_not_finite_comes_through() -> None:
    module = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU()).cuda()
    x = torch.randn(3, 8, 12, 12, device="cuda")
    x[0, 0, 5, 5], x[1, 0, 5, 5], x[2, 0, 5, 5] = torch.nan, torch.inf, -torch.inf
    got, _, count = run(module, x, pays=everything)
    assert count == 1 and torch.equal(got.isfinite(), module(x).isfinite())
    assert torch.equal(got.isnan(), module(x).isnan())


def test_it_is_measured_whether_it_pays() -> None:
    def pays(size: tuple[int, ...], of_weight: tuple[int, ...], groups: int = 1) -> bool:
        device = torch.device("cuda", 0)
        tensors = (size, torch.float32, device), (of_weight, torch.float32, device)
        return _measured(FUSED, (*tensors, None, (1, 1), (0, 0), (1, 1), groups), False, True)

    assert pays((16, 64, 128, 128), (64, 64, 1, 1))
    assert not pays((16, 64, 128, 128), (64, 1, 3, 3), groups=64), "cuDNN's own is slow there"
    assert not pays((2, 8, 9, 9), (4, 8, 11, 11)), "nothing is left"


@pytest.mark.slow
def test_the_trial_takes_it_where_it_is_faster(capfd: pytest.CaptureFixture[str]) -> None:
    layers = [m for _ in range(6) for m in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())]
    model = randomised(nn.Sequential(*layers)).cuda()
    for x in model.parameters():
        x.data /= 30.0
    fast = torch.compile(model, backend="cudal1", options={"on_miss": "fallback"})
    x = torch.randn(16, 128, 56, 56, device="cuda")
    with torch.no_grad():
        for _ in range(choice.SETTLED):
            got = fast(x)
            torch.cuda.synchronize()
        torch.testing.assert_close(got, model(x), rtol=1e-2, atol=1e-2 * float(got.abs().max()))
    (found,) = last_plans()
    with capfd.disabled():
        print(f"\n{found.plan.choice} {found.plan.ratio}")
    assert found.plan.choice in ("fused_convolutions", "captured_fused")
