"""The trial on a GPU between Inductor and aten, with real events: decided, right, stored, found again."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from trials import new_process

from cudal1_compile.pipeline import choice
from cudal1_compile.pipeline.choice import CudaClock

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh")]


class Depthwise(nn.Module):
    """Inductor has been measured slower than eager on graphs like this one."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        # no bias: its gradient before a norm is zero, and only noise would be compared
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


def compiled(model: nn.Module, mode: str | None = None) -> Any:
    options: dict[str, Any] = {"on_miss": "fallback"}
    if mode is not None:
        options |= torch._inductor.list_mode_options(mode)
    return torch.compile(model, backend="cudal1", options=options)


def endings(captured: pytest.CaptureFixture[str]) -> list[str]:
    return [s.split("; ")[-1] for s in captured.readouterr().err.splitlines() if "cudal1: regions" in s]


@pytest.mark.slow
@pytest.mark.parametrize("is_training", [False, True])
def test_the_trial_decides(
    is_training: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Depthwise().cuda().train(is_training)
    twin = copy.deepcopy(model)
    fast = compiled(model)
    for _ in range(choice.SETTLED):
        x = torch.randn(8, 64, 32, 32, device="cuda")
        with torch.set_grad_enabled(is_training):
            out, expected = fast(x), twin(x)
        torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
        if is_training:
            (out.square().sum() / 1e4).backward()
            (expected.square().sum() / 1e4).backward()
        torch.cuda.synchronize()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        if is_training:
            torch.testing.assert_close(p.grad, q.grad, rtol=2e-2, atol=2e-2 * float(q.grad.abs().max()))
    first, last = endings(capfd)
    assert first == "deciding" and last != "deciding"
    runs = "aten runs, ", "convolutions keep their layout, ", "recorded as a CUDA graph, "
    assert last == "inductor runs" or last.startswith(runs)
    new_process(monkeypatch)
    with torch.set_grad_enabled(is_training):
        torch.testing.assert_close(compiled(model)(x), twin(x), rtol=1e-2, atol=1e-2)
    assert endings(capfd) == [last], "the stored choice stands"


def test_cuda_graphs_stay_inductors(capfd: pytest.CaptureFixture[str]) -> None:
    """With or without channels-last; never aten's."""
    model = Depthwise().cuda().eval()
    fast = compiled(model, "reduce-overhead")
    x = torch.randn(8, 64, 32, 32, device="cuda")
    with torch.no_grad():
        for _ in range(choice.SETTLED):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)
            torch.cuda.synchronize()
    last = endings(capfd)[-1]
    assert last == "inductor runs" or last.startswith("convolutions keep their layout, ")


def test_marks_do_not_wait() -> None:
    clock = CudaClock(torch.device("cuda", torch.cuda.current_device()))
    clock.mark()
    torch.cuda.synchronize()
    start = clock.mark()
    begun = time.perf_counter()
    torch.cuda._sleep(2_000_000_000)
    end = clock.mark()
    assert clock.between_us(start, end) is None
    assert time.perf_counter() - begun < 0.3
    assert 0 < clock.host_us(start, end) < 3e5
    torch.cuda.synchronize()
    took_us = clock.between_us(start, end)
    assert took_us is not None and took_us > 3e5
