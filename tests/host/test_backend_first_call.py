"""The first call waits for Inductor's own compile; other variants are compiled at later calls, or not at all."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_backend_compile import child_environment
from torch import Tensor
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._inductor import config as inductor_config
from torch.nn import functional as F
from trials import Junk, choose_aten, new_process, time_variants

from cudal1_compile.backend import cudal1
from cudal1_compile.inductor import backward
from cudal1_compile.inductor.graph_plan import GraphPlanned, PlannedRegion
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import process_state
from cudal1_compile.pipeline.choice import MAX_CALLS
from cudal1_compile.pipeline.compile import Pipeline
from cudal1_compile.pipeline.first_calls import FirstCalls
from cudal1_compile.pipeline.heard import Heard
from cudal1_compile.pipeline.planner import Planner, _Beside
from cudal1_compile.pipeline.process_state import last_plans
from cudal1_compile.synthesis.budget import Budget, Timer

pytestmark = pytest.mark.host

COST_US = {"inductor": 100.0, "aten": 200.0, "all_kernels": 50.0}


def treat_as_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a clock, and aten has a region, so that there is something to try."""
    may_try, untried = pipeline.may_try, pipeline._untried
    choose_aten(monkeypatch)
    monkeypatch.setattr(pipeline, "may_try", may_try)
    monkeypatch.setattr(pipeline, "_untried", untried)
    monkeypatch.setattr(pipeline, "is_timed", lambda target: True)
    monkeypatch.setattr(pipeline, "free_memory", lambda device: 1 << 40)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    new_process(monkeypatch)
    treat_as_a_gpu(monkeypatch)
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return time_variants(monkeypatch, COST_US)


@pytest.fixture
def built(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants in the order in which they were compiled."""
    found: list[str] = []
    build = Pipeline.build

    def remember(self: Pipeline, plan: GraphPlanned, choice: Any, **told: Any) -> Any:
        found.append(choice)
        return build(self, plan, choice, **told)

    monkeypatch.setattr(Pipeline, "build", remember)
    return found


def pooled(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 2) + 1


def compiled(fn: Callable[..., Any] = pooled, dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    given = {"target": "host", "on_miss": "fallback"} | options
    return torch.compile(fn, backend="cudal1", dynamic=dynamic, options=given)  # type: ignore[no-any-return]


def gradient(out: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(out.square().sum(), x)
    return found


def test_variants_are_compiled_at_later_calls(built: list[str], ran: list[str]) -> None:
    """Each call's backward belongs to its forward, also where it comes when all has been decided."""
    fast, x = compiled(), torch.randn(2, 3, 9, 8, requires_grad=True)
    wanted = gradient(pooled(x), x)
    early = fast(x)
    assert built == ["inductor"]
    outstanding = [early]
    for _ in range(MAX_CALLS):
        outstanding.append(fast(x))
        torch.testing.assert_close(gradient(fast(x), x), wanted)
    assert built == ["inductor", "aten", "all_kernels"]
    assert ran[:2] == ["inductor"] * 2 and ran[-1] == "all_kernels"
    for out in outstanding:
        torch.testing.assert_close(gradient(out, x), wanted)


@pytest.mark.parametrize("fails", [False, True])
def test_a_steps_backward_is_compiled_beside_the_writing_of_kernels(
    fails: bool, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that fails it is left until somebody calls it, as Inductor leaves it."""
    phases: list[bool] = []  # backwards?
    compile_part = backward.compile_fx_inner

    def note(*given: Any, **settings: Any) -> Any:
        phases.append(bool(settings.get("is_backward")))
        if fails and phases == [False, True]:
            raise RuntimeError("no such backward")
        return compile_part(*given, **settings)

    monkeypatch.setattr(backward, "compile_fx_inner", note)
    fast, x = compiled(), torch.randn(2, 3, 9, 8, requires_grad=True)
    out = fast(x)
    assert built == ["inductor"] and phases == [False, True, *[False] * fails]
    torch.testing.assert_close(gradient(out, x), gradient(pooled(x), x))
    assert phases == [False, True, *[False, True] * fails]


def test_dynamo_starts_a_step_anew_where_it_wants_to(
    built: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is no error of the backward's."""
    compile_whole, calls = pipeline.compile_fx, list[int]()

    def start_anew(*given: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise TensorifyScalarRestartAnalysis
        return compile_whole(*given, **settings)

    monkeypatch.setattr(pipeline, "compile_fx", start_anew)
    fast, x = compiled(), torch.randn(2, 3, 9, 8, requires_grad=True)
    with caplog.at_level(logging.DEBUG, logger="cudal1_compile"):
        torch.testing.assert_close(fast(x), pooled(x))
    assert len(calls) == 2 and "compiled again" not in caplog.text


WARM = """
import pytest, torch
from torch._dynamo.utils import counters
from test_backend_compile import OneReply, train
generator = OneReply()
train(generator)
print(generator.calls, counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"])
counters.clear()
torch._dynamo.reset()
from test_backend_first_call import COST_US, MAX_CALLS, compiled, pooled, treat_as_a_gpu
from trials import time_variants
patch = pytest.MonkeyPatch()
treat_as_a_gpu(patch)
ran = time_variants(patch, COST_US)
weights = torch.nn.Parameter(torch.randn(8, 8))
fast, x = compiled(lambda x: pooled(x @ weights)), torch.randn(2, 3, 9, 8, requires_grad=True)
for _ in range(MAX_CALLS):
    fast(x).sum().backward()
print(ran[0], ran[-1], counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"])
"""


def test_a_second_process_hits_every_cache(tmp_path: Path) -> None:
    """With a variant compiled at a call, too. New processes: what one did before is part of torch's keys."""
    environment = child_environment(TORCHINDUCTOR_CACHE_DIR=tmp_path / "inductor") | {"CUDAL1_DEBUG": "1"}

    def run() -> tuple[list[str], list[str], str]:
        done = subprocess.run(
            [sys.executable, "-c", WARM], capture_output=True, text=True, timeout=200, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        numbers, variants = done.stdout.splitlines()
        return numbers.split(), variants.split(), done.stderr

    _, variants, words = run()
    assert "hit 0, new 2" in words and variants == ["inductor", "all_kernels", "0", "0"]
    numbers, variants, words = run()
    assert "hit 2, new 0" in words, words  # with the reason of each region
    assert numbers == ["0", "1", "2"], "no generator call, autograd's cache and both graphs hit"
    assert variants == ["all_kernels", "all_kernels", "1", "2"], "the graph, and both of its parts"


def test_random_numbers_are_those_of_a_run_without_a_trial(built: list[str]) -> None:
    """A compile in the middle of a user's loop draws none."""
    fast, x = compiled(), torch.randn(2, 3, 9, 8)
    torch.manual_seed(0)
    drawn = [(float(torch.rand(())), fast(x))[0] for _ in range(8)]
    torch.manual_seed(0)
    assert drawn == [float(torch.rand(())) for _ in range(8)] and len(built) == 3


def test_a_model_of_several_graphs_compiles_nothing_more_in_its_first_call(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them runs five times before the last is known."""
    monkeypatch.setattr(
        FirstCalls, "_took_s", property(lambda self: 1e6, lambda self, seconds: None), raising=False
    )
    first, layer, last = (compiled(fn) for fn in (torch.sin, pooled, torch.exp))

    def model(x: Tensor) -> None:
        x = first(x)
        for _ in range(5):
            layer(x)
        last(x)

    x = torch.randn(2, 3, 9, 8)
    model(x)
    assert built == ["inductor"] * 3
    for _ in range(3):
        model(x)
    assert set(built[3:]) == {"aten", "all_kernels"}


def summed(x: Tensor) -> Tensor:
    return x.sum(-1) + 1


def test_sizes_that_change_are_tried_in_the_first_call_or_not_at_all(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for more_s, variants, choice in ((-1e6, ["inductor"], "deciding"), (1e6, ["inductor", "all_kernels"], None)):
        torch._dynamo.reset()
        built.clear()
        monkeypatch.setattr(pipeline, "MORE_S", more_s)
        fast = compiled(summed, dynamic=True)
        fast(torch.randn(2, 9, 8))
        assert built == variants
        for rows in (3, 4) * MAX_CALLS:
            x = torch.randn(rows, 9, 8)
            torch.testing.assert_close(fast(x), summed(x))
        assert built == variants and last_plans()[-1].plan.choice == (choice or "all_kernels")


def test_inductors_variant_is_compiled_while_kernels_are_written(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So synthesis has all of its budget, but for what it slowed the compile down by."""
    left_s: list[float] = []
    synthesize = Planner._synthesize

    def write(self: Any, heard: Heard, meanwhile: Callable[[], object]) -> Any:
        assert not built
        meanwhile()
        assert built == ["inductor"]
        return self._write_heard(heard, _Beside(time.monotonic() - 10.0, 6.0))

    def note(self: Any, untuned: Any, budget: Budget) -> Any:
        left_s.append(Timer(budget).left_s)
        return synthesize(self, untuned, budget)

    monkeypatch.setattr(Planner, "write_as_heard", write)
    monkeypatch.setattr(Planner, "_synthesize", note)
    monkeypatch.setattr(Planner, "look_up", lambda self, seen: PlannedRegion(seen, "untuned", ""))
    given = {"on_miss": "synthesize", "budget_s": 20.0, "generator": Junk()}
    fast, x = compiled(**given), torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(fast(x), pooled(x))
    (left,) = left_s
    assert left == pytest.approx(20.0 - 4.0, abs=1.0) and built == ["inductor"]


@pytest.mark.usefixtures("ran")
def test_what_tracing_took_is_taken_from_synthesis_that_nothing_is_compiled_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    granted: list[float] = []
    monkeypatch.setattr(Pipeline, "synthesize", lambda self, plan, budget_s: granted.append(budget_s) or plan)
    monkeypatch.setattr(GraphPlanned, "is_open", True)
    monkeypatch.setattr(pipeline, "is_timed", lambda target: False)
    collect = pipeline.collect

    def slow(*args: Any) -> Any:
        time.sleep(0.5)
        return collect(*args)

    monkeypatch.setattr(pipeline, "collect", slow)
    compiled(on_miss="synthesize", budget_s=20.0)(torch.randn(2, 3, 9, 8))
    compiled(on_miss="synthesize", budget_s=0.25)(torch.randn(3, 3, 9, 8))
    assert 15.0 < granted[0] <= 19.5 and granted[1] == 0.0


def test_a_reset_lets_kernels_be_written_again_and_waits_for_no_graph_of_before() -> None:
    session = process_state.SESSION
    session.interrupt()
    calls = session.first_calls
    cudal1.reset()  # type: ignore[attr-defined]
    assert not session.is_interrupted and session.first_calls is not calls
    session.end_if_interrupted()
    session.interrupt()
    with pytest.raises(KeyboardInterrupt):
        session.end_if_interrupted()
