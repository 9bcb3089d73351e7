"""Convolutions with their ReLU as one call of cuDNN's, whose operators run on the CPU here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from convolution_blocks import Block, randomised, run, run_alone, targets
from cudnn_on_the_cpu import Strides, cudnn_on_the_cpu
from torch import Tensor
from torch.nn import functional as F

from cudal1_compile.inductor import fused_convolutions
from cudal1_compile.inductor.fused_convolutions import FUSED, FUSED_SUM

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def strides(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Strides]]:
    torch._dynamo.reset()
    with cudnn_on_the_cpu(monkeypatch) as seen:
        yield seen


@pytest.mark.parametrize("shortcut", [False, True])
def test_a_residual_block_is_three_calls(shortcut: bool, strides: list[Strides]) -> None:
    module, x = randomised(Block(shortcut)), torch.randn(2, 8, 12, 10)
    got, graph, count = run(module, x)
    torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-4)
    assert count == 3 and got.is_contiguous()
    found = targets(graph)
    assert (found.count(FUSED), found.count(FUSED_SUM)) == (2, 1)
    assert torch.ops.aten.relu.default not in found
    assert found.count(torch.ops.aten.convolution.default) == shortcut
    images = [s for s in strides if len(s) == 4]
    assert images and all(s[1] == 1 for s in images), "all operands lie in channels-last"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "behind",
    [
        lambda y, c, z: y.relu(),
        lambda y, c, z: (y * 0.5 + c).relu(),
        lambda y, c, z: ((y - c) * c / 2.0).relu(),
        lambda y, c, z: (z + y).relu(),
        lambda y, c, z: (y * c + z).relu(),
    ],
)
def test_what_stands_behind_goes_into_weight_and_bias(behind: Any, dtype: torch.dtype) -> None:
    x, w, z = torch.randn(2, 4, 9, 9), torch.randn(6, 2, 3, 3), torch.randn(2, 6, 4, 4)
    c, b = torch.rand(6, 1, 1) + 0.5, torch.randn(6)
    given = [t.to(dtype) for t in (x, w, b, c, z)]

    def module(x: Tensor, w: Tensor, b: Tensor, c: Tensor, z: Tensor) -> Any:
        return behind(F.conv2d(x, w, b, stride=2, groups=2), c, z)

    got, _, count = run_alone(module, *given)
    assert count == 1 and got.dtype == dtype
    due = module(*(t.double() for t in given))
    slack = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(got.double(), due, rtol=slack, atol=slack * float(due.abs().max()))


@pytest.mark.parametrize(
    "of",
    [
        lambda x, w: (y := F.conv2d(x, w)).relu() - y,  # its own result is wanted too
        lambda x, w: F.conv2d(x, w).tanh(),
        lambda x, w: F.conv_transpose2d(x, w).relu(),
        lambda x, w: (F.conv2d(x, w) + torch.arange(7.0)).relu(),  # a value a column
        lambda x, w: F.conv2d(x, w[:, :1], groups=4).relu(),  # each channel alone
        lambda x, w: F.conv2d(x[0], w).relu(),
        lambda x, w: F.conv2d(x.double(), w.double()).relu(),
    ],
)
def test_what_is_not_fused(of: Any) -> None:
    x, w = torch.randn(2, 4, 9, 9), torch.randn(4, 4, 3, 3)
    got, _, count = run_alone(of, x, w)
    torch.testing.assert_close(got, of(x, w), rtol=1e-4, atol=1e-4)
    assert count == 0


def test_a_half_type_that_may_overflow_keeps_its_factor() -> None:
    x, w, c = torch.randn(2, 4, 9, 9).half(), torch.randn(4, 4, 3, 3).half(), torch.randn(4, 1, 1).half()
    for module, due in ((lambda: (F.conv2d(x, w) * c).relu(), 0), (lambda: (F.conv2d(x, w) + c).relu(), 1)):
        assert run_alone(module)[2] == due


def test_what_does_not_pay_stays() -> None:
    module, x = randomised(Block(False)), torch.randn(2, 8, 12, 10)
    got, graph, count = run_alone(module, x, pays=lambda node, scales: node.target is FUSED_SUM)
    torch.testing.assert_close(got, module(x), rtol=1e-4, atol=1e-4)
    found = targets(graph)
    assert count == 1 and found.count(FUSED_SUM) == 1 and FUSED not in found
    _, graph, count = run_alone(module, x, pays=lambda node, scales: False)
    assert count == 0 and not {FUSED, FUSED_SUM} & set(targets(graph)), "nothing is left of the calls"


@pytest.mark.parametrize(
    ("fault", "together_us", "due"),
    [
        ("", 1.0, True),
        ("", 3.0, False),
        ("loses NaN", 1.0, False),
        ("reads what lay there", 1.0, False),
        ("raises", 1.0, False),
    ],
)
def test_it_is_measured_whether_it_pays(
    fault: str, together_us: float, due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, with times made up."""
    calls: list[str] = []

    def fused(x: Tensor, w: Tensor, z: Tensor, alpha: float, bias: Tensor | None, *rest: Any) -> Tensor:
        calls.append("together")
        if fault == "raises":
            raise RuntimeError("no engine")
        found = F.relu(F.conv2d(x, w, bias, *rest) + alpha * z)
        return (
            found.nan_to_num()
            if fault == "loses NaN"
            else found + (torch.nan if fault.startswith("reads") else 0.0)
        )

    def us(run: Any) -> float:
        calls.clear()
        run()
        return together_us if calls else 2.0

    monkeypatch.setattr(fused_convolutions, "_us", us)
    tensors = (
        ((2, 4, 9, 9), torch.float32, CPU),
        ((4, 4, 3, 3), torch.float32, CPU),
        ((2, 4, 7, 7), torch.float32, CPU),
    )
    given = *tensors, 1.0, None, (1, 1), (0, 0), (1, 1), 1
    for scales in (False, True):
        assert fused_convolutions._measured.__wrapped__(fused, given, scales, True) == due
    assert fault or calls == [], "last comes what runs apart"
