"""What runs a region without a kernel, on a GPU: aten's operators are right in every mode, and the choices pay.

pytest tests/gpu/test_fallback_gpu.py -s     prints each graph's decisions and times
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import mode_options
from torch import Tensor, nn
from trials import Junk, choose_aten, new_process

from cudal1_compile.dispatch.fallback import describe, is_atens, measured
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.inductor.graph_plan import from_row
from cudal1_compile.pipeline.choice import SETTLED

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh")]

BUDGET_S = 60.0
ROUNDS = 15
SLACK = 1.1  # of a few rounds on a GPU that others may share


def compiled(fn: Callable[..., Any], mode: str | None = None, **settings: Any) -> Callable[..., Any]:
    options = {"generator": Junk(), "budget_s": BUDGET_S, "process_budget_s": 1e6} | mode_options(mode)
    return torch.compile(fn, backend="cudal1", options=options, **settings)  # type: ignore[no-any-return]


class Rest(nn.Module):
    """What Inductor does better than aten: a chain of pointwise work and norms over (rows, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten()[: x.numel() // 256 * 256].view(-1, 256)
        x = F.gelu(self.norm(x) * 1.5 + 0.5) * torch.sigmoid(x)
        return torch.softmax(self.linear(x).tanh() + x, -1)


class Depthwise(nn.Module):
    def __init__(self, channels: int = 128) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


class Summed(nn.Module):
    """A product behind the sum keeps it a region of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2048, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.sum(1))


class Call(nn.Module):
    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


GRAPHS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "depthwise convolution": (Depthwise, (32, 128, 56, 56)),
    "pointwise convolution": (lambda: nn.Conv2d(128, 256, 1), (32, 128, 56, 56)),
    "average pooling": (lambda: Call(lambda x: F.avg_pool2d(x, 7)), (16, 64, 224, 224)),
    "max pooling": (lambda: Call(lambda x: F.max_pool3d(x, (2, 3, 4), 2)), (8, 32, 32, 64, 64)),
    "sum over a middle dim": (Summed, (16, 2048, 2048)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_the_faster_plan_runs_within_a_larger_graph(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], cudal1_cache_dir: Path
) -> None:
    first, shape = GRAPHS[name]
    model = nn.Sequential(first(), Rest()).cuda().eval()
    x = torch.randn(shape, device="cuda")
    with torch.no_grad():
        fast = compiled(model)
        for _ in range(SETTLED):
            out = fast(x)
            torch.cuda.synchronize()
        torch.testing.assert_close(out, model(x), rtol=1e-2, atol=1e-3)
        line = last_line(capfd)
        assert "deciding" not in line
        outcomes = stored_outcomes(cudal1_cache_dir, capfd)
        inductor = torch.compile(model, backend="inductor")
        times = interleaved({"eager": model, "inductor": inductor, "cudal1": fast}, x)
        with capfd.disabled():
            print(f"\n{name}: {line}\n  ms: {', '.join(f'{n} {ms:.3f}' for n, ms in times.items())}")
        assert times["cudal1"] <= SLACK * times["inductor"]

        new_process(monkeypatch)
        monkeypatch.setattr(Junk, "propose", lambda *args: pytest.fail("all was tried"))
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-2, atol=1e-3)
    assert last_line(capfd) == line, "the stored choice stands"
    assert stored_outcomes(cudal1_cache_dir, capfd) == outcomes


def last_line(captured: pytest.CaptureFixture[str]) -> str:
    return [s for s in captured.readouterr().err.splitlines() if "cudal1: regions" in s][-1]


def stored_outcomes(directory: Path, captured: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Of each region; the decision agrees with what was measured."""
    with open_store(directory) as store:
        entries = {e.fingerprint: e for e in store.entries()}
        (plan,) = [store.get_plan(r["graph_key"], r["target"]) for r in store.database.read(plans)]
    assert plan is not None
    regions = from_row(plan).regions
    assert "untuned" not in {r.outcome for r in regions}, "some times varied too much: the device is busy"
    for region in regions:
        timing = measured(entries[region.fingerprint])
        is_faster = timing is not None and is_atens(timing) and region.seen.has_library
        assert region.outcome == ("aten" if is_faster else "unprofitable")
        with captured.disabled():
            print(f"\n  {region.seen.ops} ops: {describe(entries[region.fingerprint])}", end="")
    assert entries
    return {r.fingerprint: r.outcome for r in regions}


def plans(db: Any) -> list[dict[str, str]]:
    return list(db.table("plans").rows)


def interleaved(contenders: dict[str, Callable[[Tensor], Tensor]], x: Tensor) -> dict[str, float]:
    """Median milliseconds of a call, host time included; the contenders take turns."""
    for run in contenders.values():
        for _ in range(3):
            run(x)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            run(x)
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: median(ms) for name, ms in times.items()}


# aten's operators in place, whatever is faster


@pytest.fixture
def every_region_by_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_aten(monkeypatch)


class Pools(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return torch.softmax(self.linear(F.max_pool2d(x, 2).mean((2, 3))), -1)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("is_training", [False, True])
def test_right_in_every_mode(
    mode: str | None, is_training: bool, every_region_by_aten: None, capfd: pytest.CaptureFixture[str]
) -> None:
    model = Pools().cuda().train(is_training)
    twin = Pools().cuda().train(is_training)
    twin.load_state_dict(model.state_dict())
    fast = compiled(model, mode)
    for i in range(5):  # CUDA graphs: warm-up, recording, replays
        x = torch.randn(8, 3, 34, 34, device="cuda")
        with torch.set_grad_enabled(is_training):
            out, expected = fast(x), twin(x)
        torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-3, msg=lambda text, i=i: f"call {i}: {text}")
        if is_training:
            for p in (*model.parameters(), *twin.parameters()):
                p.grad = None  # to add to one in a CUDA graph's memory fails with plain Inductor too
            (out * out).sum().backward()
            (expected * expected).sum().backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        if is_training and name != "conv.bias":  # before a norm its gradient is noise
            torch.testing.assert_close(p.grad, q.grad, rtol=2e-2, atol=2e-2 * float(q.grad.abs().max()))
    for p, q in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)
    assert "aten " in last_line(capfd)


def test_sizes_that_change(every_region_by_aten: None) -> None:
    def fn(x: Tensor) -> Tensor:
        return F.layer_norm(x.softmax(-1) * x.shape[0], (64,))

    fast = compiled(fn, dynamic=True)
    for rows in (33, 128):
        x = torch.randn(rows, 64, device="cuda", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = fast(x), fn(y)
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)
