"""The compile of Inductor's variant shows what the collecting pass sees, and kernels are written meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from slow_cases import slow_but
from test_backend_collect import CASES, Mlp
from torch import Tensor
from torch._inductor import config as inductor_config
from trials import Junk, new_process, time_variants

from cudal1_compile.inductor.graph_plan import GraphPlanned, PlannedRegion
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.compile import Pipeline
from cudal1_compile.pipeline.heard import Heard
from cudal1_compile.pipeline.planner import INTERRUPTED, Planner
from cudal1_compile.pipeline.process_state import last_plans
from cudal1_compile.synthesis.budget import Budget, Timer

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pipeline, "is_timed", lambda target: True)
    monkeypatch.setattr(Pipeline, "why_not_aten", lambda self, plan: "not here")
    time_variants(monkeypatch, dict.fromkeys(("inductor", "all_kernels", "no_layout_opt"), 100.0))
    new_process(monkeypatch)
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], dynamic: bool | None = None, **options: Any) -> Callable[..., Any]:
    given = {"target": "host", "generator": Junk(), "process_budget_s": 1e6} | options
    return torch.compile(fn, backend="cudal1", dynamic=dynamic, options=given)  # type: ignore[no-any-return]


def seen_in(plan: GraphPlanned) -> list[tuple[str, int, str, bool, bool, bool]]:
    regions = (r.seen for r in plan.regions)
    return [(r.fingerprint, r.count, r.phase, r.is_fusible, r.has_library, r.reads_copies) for r in regions]


BOTH = [(name, products) for name in CASES for products in (False, True)]


@pytest.mark.usefixtures("no_loops")
@pytest.mark.parametrize(("name", "products"), slow_but(BOTH[2::4] + BOTH[5::4], BOTH))
def test_it_shows_what_is_collected(name: str, products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, size, trains, dynamic = CASES[name]
    plans: list[tuple[GraphPlanned, GraphPlanned]] = []

    def write(self: Planner, heard: Heard, meanwhile: Callable[[], object]) -> dict[str, PlannedRegion]:
        meanwhile()
        return {}

    decide = Pipeline._decide_while_compiling

    def both(self: Pipeline) -> GraphPlanned | None:
        found = decide(self)
        assert found is not None
        plans.append((found, self.plan_for(self.collect())))
        return found

    monkeypatch.setattr(Planner, "write_as_heard", write)
    monkeypatch.setattr(Pipeline, "_decide_while_compiling", both)
    fast = compiled(fn, dynamic, products=products)
    with torch.set_grad_enabled(trains):
        out = fast(torch.randn(size))
        if trains:
            with suppress(RuntimeError):  # of indices that no loop has computed
                out.square().sum().backward()
    for heard, collected in plans:
        assert seen_in(heard) == seen_in(collected) and seen_in(heard)
        assert heard.anchors == collected.anchors and heard.is_channels_last == collected.is_channels_last
        assert heard.fuses == collected.fuses
        assert sorted(map(str, heard.refused)) == sorted(map(str, collected.refused))
    assert plans


def test_the_forwards_kernels_are_written_while_its_backward_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is collected before; the backward's regions come as soon as they are seen."""
    asked: list[tuple[set[str], bool]] = []
    first, left_s = threading.Event(), list[float]()
    end = Heard.end

    def synthesize(self: Planner, untuned: Sequence[PlannedRegion], budget: Budget) -> dict[str, PlannedRegion]:
        asked.append(({r.seen.phase for r in untuned}, over.is_set()))
        first.set()
        timer, end_s = Timer(budget), time.monotonic() + 20.0
        while timer.left_s > 0 and len(asked) == 1:  # as long as the backward is not known
            assert time.monotonic() < end_s, "it does not end"
            time.sleep(0.01)
        left_s.append(timer.left_s)
        return {}

    over = threading.Event()

    def finish(self: Heard) -> None:
        assert first.wait(20.0), "nothing was written meanwhile"
        over.set()
        end(self)

    monkeypatch.setattr(Planner, "_synthesize", synthesize)
    monkeypatch.setattr(Heard, "end", finish)
    monkeypatch.setattr(pipeline, "collect", lambda *given: pytest.fail("it is collected"))
    x = torch.randn(16, 32)
    model = Mlp()
    fast = compiled(model)
    out = fast(x)
    torch.testing.assert_close(out, model(x))
    assert asked[0][0] == {"forward"} and not asked[0][1]
    assert asked[-1][0] == {"forward", "backward"} and len(asked) == 2
    assert left_s[0] == 0 and 5.0 < left_s[1] < 20.0
    (plan,) = last_plans()
    assert {r.seen.phase for r in plan.plan.regions} >= {"forward", "backward"}


def test_an_interrupt_ends_the_writing_for_the_backward_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def synthesize(self: Planner, untuned: Sequence[PlannedRegion], budget: Budget) -> dict[str, PlannedRegion]:
        asked.append({r.seen.phase for r in untuned})
        self.session.interrupt()
        return {}

    monkeypatch.setattr(Planner, "_synthesize", synthesize)
    x, model = torch.randn(16, 32), Mlp()
    torch.testing.assert_close(compiled(model)(x), model(x))
    assert asked == [{"forward"}]
    (plan,) = last_plans()
    assert {r.reason for r in plan.plan.regions} == {INTERRUPTED}


def test_what_inductor_finds_in_its_cache_is_collected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    collected: list[int] = []
    collect = pipeline.collect

    def count(*given: Any) -> Any:
        collected.append(1)
        return collect(*given)

    def model(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) * 2

    monkeypatch.setattr(pipeline, "collect", count)
    x = torch.randn(8, 32)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    with inductor_config.patch(force_disable_caches=False, fx_graph_cache=True), torch.no_grad():
        for known in (0, 1):
            new_process(monkeypatch)
            torch._dynamo.reset()
            fast = compiled(model, cache_dir=tmp_path / str(known))  # no plan is known
            torch.testing.assert_close(fast(x), model(x))
            assert len(collected) == known
            (plan,) = last_plans()
            assert [r.seen.phase for r in plan.plan.regions] == ["inference"]
