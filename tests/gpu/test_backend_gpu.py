"""The backend on a GPU: real kernels forward and backward against float64, CUDA graphs, streams, the first-call
trial, warm starts. Kernels come from the templates, which stand behind the generator protocol; a few replies a
region in one round, and every right one wins, so that a case takes seconds and never runs without kernels.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from backend_reference import Calls, compiled, every_region, mode_options  # noqa: F401  a fixture
from torch import Tensor, nn

from cudal1_compile.dispatch import registry
from cudal1_compile.errors import LaunchError
from cudal1_compile.pipeline import choice, planner
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.synthesis import scheduler, task
from cudal1_compile.synthesis.budget import Budget
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.template_generator import TemplateGenerator

pytestmark = pytest.mark.gpu

BUDGET_S = 25.0
REPLIES = 3  # a region
SMALL = 1e-3  # of the largest value of a step: below it a gradient is noise (a bias before a norm has none)


class Mlp(nn.Module):
    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x + self.down(F.gelu(self.up(self.norm(x)))), -1)


class Cnn(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.group = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        return F.silu(self.group(self.second(x))).mean((2, 3))


class FewReplies(TemplateGenerator):
    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return super().propose(prompts, min(n, REPLIES), seed)


def with_templates(model: Callable[..., Any], mode: str | None = None, **settings: Any) -> Callable[..., Any]:
    options = {"generator": FewReplies(), "budget_s": BUDGET_S, "process_budget_s": 1e6}
    options |= mode_options(mode) | settings.pop("options", {})
    return torch.compile(model, backend="cudal1", options=options, **settings)


def let_every_right_kernel_win(replace: Callable[[Any, str, Any], None]) -> None:
    """Whether it is faster or not."""
    replace(task, "is_win", lambda proof: True)
    replace(scheduler, "is_sure", lambda attempt: True)
    replace(task.RegionTask, "_may_win", lambda self, attempt: self.won is None)
    for stops in ("_is_beaten", "is_at_floor"):
        replace(task.RegionTask, stops, False)
    replace(planner, "Budget", partial(Budget, rounds=1))


@pytest.fixture
def right_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    let_every_right_kernel_win(monkeypatch.setattr)


@pytest.fixture
def all_kernels(
    right_kernels: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[None]:
    """They run from the first call on; a test in which none was found fails."""
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(pipeline, "_untried", lambda plan: "all_kernels")
    yield
    line = next(s for s in capfd.readouterr().err.splitlines() if "regions:" in s)
    assert "hit 0, new 0," not in line, f"no region has a kernel: {line}"


@pytest.fixture(autouse=True)
def fresh_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are exact: TF32 has a test of its own (test_products_gpu.py)."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def check_training_step(fast: Callable[..., Any], model: nn.Module, x: Tensor) -> None:
    """Output and every gradient against float64."""
    exact, eager = copy.deepcopy(model).double(), copy.deepcopy(model)
    check_errors(_step(fast, model, x), _step(eager, eager, x), _step(exact, exact, x.double()))


def check_errors(ours: Sequence[Tensor], eagers: Sequence[Tensor], exact: Sequence[Tensor]) -> None:
    """At most 4x eager's own error, as the judge's budget says."""
    floor = SMALL * max(float(x.abs().max()) for x in exact)
    for i, (our, eager, right) in enumerate(zip(ours, eagers, exact, strict=True)):
        scale = max(float(right.abs().max()), floor)
        error, budget = (float((x.double() - right).abs().max()) / scale for x in (our, eager))
        assert error <= 4 * budget + 2e-3, f"tensor {i}: {error:.2e} of the largest value, eager has {budget:.2e}"


def _step(fn: Callable[..., Any], model: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    model.zero_grad()
    out = fn(x)
    weight = torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    (out * weight).sum().backward()
    return [out.detach().clone(), x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("model", [Mlp(), Cnn()], ids=["mlp", "cnn"])
def test_training_equals_float64(model: nn.Module, all_kernels: None) -> None:
    model = model.cuda()
    x = torch.randn(64, 512, device="cuda") if isinstance(model, Mlp) else torch.randn(8, 3, 32, 32, device="cuda")
    check_training_step(with_templates(model), model, x)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_modes(mode: str, all_kernels: None) -> None:
    model = Mlp().cuda()
    fast = with_templates(model, mode=mode)
    x = torch.randn(64, 512, device="cuda")
    for _ in range(4):  # warm-up, recording, replays
        check_training_step(fast, model, x)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x).clone(), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_another_stream(all_kernels: None) -> None:
    model = Mlp().cuda()
    fast = with_templates(model)
    stream = torch.cuda.Stream()
    with torch.no_grad():
        fast(torch.randn(64, 512, device="cuda"))
        with torch.cuda.stream(stream):
            for _ in range(20):
                x = torch.randn(64, 512, device="cuda")
                torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
        stream.synchronize()


@pytest.mark.slow
def test_capture_by_the_user(all_kernels: None) -> None:
    model = Mlp().cuda()
    fast = with_templates(model)
    x = torch.randn(64, 512, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = fast(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(captured, model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_trial_decides_on_the_first_calls(right_kernels: None, capfd: pytest.CaptureFixture[str]) -> None:
    """Every call counts once: BatchNorm has seen as many batches as there were calls."""
    model = Cnn().cuda()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    fast = with_templates(model)
    for i in range(choice.SETTLED):
        x = torch.randn(8, 3, 32, 32, device="cuda")
        for fn, given in ((fast, x), (eager, x), (exact, x.double())):
            fn(given).square().sum().backward()
        if i % 8 == 0:
            torch.cuda.synchronize()
    assert int(model.norm.num_batches_tracked) == choice.SETTLED
    gradients = [[p.grad for p in m.parameters() if p.grad is not None] for m in (model, eager, exact)]
    check_errors(*gradients)
    check_errors(*([m.norm.running_mean, m.norm.running_var] for m in (model, eager, exact)))
    lines = [s for s in capfd.readouterr().err.splitlines() if "regions:" in s]
    assert lines[0].endswith("deciding") and "deciding" not in lines[-1], lines


WARM = """
import sys, torch
sys.path[:0] = {folders!r}
from test_backend_gpu import Mlp, let_every_right_kernel_win, with_templates
from cudal1_compile.pipeline.compile import Pipeline
from torch._dynamo.utils import counters
let_every_right_kernel_win(setattr)
Pipeline.why_not_aten = lambda self, plan: "a graph that aten runs is in no cache of Inductor"
torch.manual_seed(0)
model = Mlp().cuda()
fast = with_templates(model, options={{"products": False}})  # few regions: none is left unfinished for the second
x = torch.randn(64, 512, device="cuda")
for _ in range({calls}):
    fast(x).sum().backward()
torch.cuda.synchronize()
print("hits", counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.slow
def test_a_second_process_is_warm() -> None:
    here = Path(__file__).parent
    runs = [_process(WARM.format(folders=[str(here.parent), str(here)], calls=choice.SETTLED)) for _ in range(2)]
    assert "hit 0, new 0," not in runs[0].stderr, "no region has a kernel"
    assert "hit 0," not in runs[1].stderr and "new 0" in runs[1].stderr, runs[1].stderr
    assert "deciding" not in runs[1].stderr, runs[1].stderr
    assert "hits 1" in runs[1].stdout, runs[1].stdout


def _process(script: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), (64, 256)),
    "softmax": (lambda x: torch.softmax(x, -1) * 2, (64, 256)),
    "group_norm": (lambda x: F.group_norm(x, 4), (4, 16, 12, 12)),
    "transposed": (lambda x: torch.sin(x.t()) * 3 + 1, (32, 48)),
    "offset": (lambda x: torch.sin(x[1:]) * 3 + 1, (33, 7)),
    "dropout": (lambda x: F.dropout(torch.sin(x) * 3, 0.0) * 2 + 1, (64, 64)),
}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", CASES)
def test_every_region_spliced(name: str, mode: str | None, every_region: Calls) -> None:  # noqa: F811
    _check_steps(*CASES[name], mode)
    assert len(every_region) >= 1


def test_scratch_in_a_cuda_graph(every_region: Calls) -> None:  # noqa: F811
    """Scratch that outlived its call would be an untracked tensor of the graph's pool, which torch refuses."""
    every_region.scratch = "// scratch: s0 f32[d0]\n// scratch: s1 i32[d0, 3] = 0"
    _check_steps(*CASES["softmax"], "reduce-overhead")
    assert len(every_region.buffers[0]) >= 4


def test_refused_launches_in_a_cuda_graph(every_region: Calls, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The reference takes over; what it keeps (the bounds, as tensors) must not lie in the graph's pool."""

    def refuse(*args: Any) -> None:
        every_region.ran.append("refused")
        raise LaunchError("planted")

    def load(entry_id: str, device: torch.device, text: str) -> registry.KernelFunction:
        return registry._with_fallback(refuse, registry.load_reference(parse_program(text), device))

    monkeypatch.setattr(registry, "_load_or_reference", load)
    _check_steps(lambda x: torch.clamp(torch.sin(x), -0.5, 0.7) * 2, (64, 64), "reduce-overhead")
    assert len(every_region) >= 1


def _check_steps(fn: Callable[..., Any], size: tuple[int, ...], mode: str | None) -> None:
    fast = compiled(fn, "cuda", mode=mode)
    for _ in range(4):  # warm-up, recording, replays
        x = torch.randn(size, device="cuda", requires_grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = fast(x), fn(y)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


def test_conv_chain_spliced(every_region: Calls) -> None:  # noqa: F811
    """Convolutions run channels-last under Inductor; regions next to them must follow."""
    model = Cnn().cuda()
    check_training_step(compiled(model, "cuda"), model, torch.randn(8, 3, 32, 32, device="cuda"))
    assert len(every_region) >= 2, "the regions were all given back for their layout"
