"""Variants recorded as CUDA graphs in a trial, with a stand-in for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from replays import Replays
from test_backend_first_call import compiled, gradient, pooled, treat_as_a_gpu
from torch import Tensor
from torch._inductor import config as inductor_config
from trials import new_process, time_variants

from cudal1_compile.inductor import collect
from cudal1_compile.inductor.capturable import changed_inputs, why_not_captured
from cudal1_compile.options import InvalidOption
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.choice import CAPTURED_CALLS, MAX_CALLS, USUAL_CALLS
from cudal1_compile.pipeline.process_state import last_plans
from cudal1_compile.pipeline.summary import summary_line
from cudal1_fx_passes.importer.capture import capture_graphs

COST_US = {"inductor": 100.0, "aten": 120.0, "all_kernels": 80.0}
REPLAYS = 0.1  # of the time of what was recorded


class TimedReplays(Replays):
    """Replays take REPLAYS of the time."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.clock: Any = pipeline.CudaClock(device)  # the trial's stand-in

    def _record(self, run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        replay, outputs = super()._record(run)

        def timed() -> None:
            start = self.clock.now
            replay()
            self.clock.now = start + REPLAYS * (self.clock.now - start)

        return timed, outputs


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    new_process(monkeypatch)
    treat_as_a_gpu(monkeypatch)
    monkeypatch.setattr(collect, "why_not_captured", partial(why_not_captured, device="cpu"))
    monkeypatch.setattr(pipeline, "CudaDevice", TimedReplays)
    with inductor_config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return time_variants(monkeypatch, COST_US)


def run_often(fast: Callable[..., Any], calls: int = MAX_CALLS + CAPTURED_CALLS) -> None:
    for _ in range(calls):
        x = torch.randn(2, 3, 9, 8)
        torch.testing.assert_close(fast(x), pooled(x))


def test_a_recorded_variant_that_is_faster_runs_on_and_is_stored(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_often(compiled())
    (last,) = last_plans()
    assert (last.plan.choice, last.plan.why_not_captured, last.plan.changed) == ("captured_kernels", "", ())
    assert last.plan.ratio == pytest.approx(12.5)
    assert summary_line(last.plan, "cuda").endswith("; recorded as a CUDA graph, 12.50x over inductor")
    new_process(monkeypatch)
    ran.clear()
    run_often(compiled(), 5)
    assert set(ran) == {"all_kernels"} and last_plans()[-1].plan.choice == "captured_kernels"


@pytest.mark.parametrize("options", [{"capture": False}, {"triton.cudagraphs": True}])
def test_nothing_is_recorded_where_it_may_not_be(options: dict[str, Any], ran: list[str]) -> None:
    run_often(compiled(**options), USUAL_CALLS + 3)
    assert last_plans()[-1].plan.choice == "all_kernels"


def test_a_training_step_is_recorded_with_its_backward(ran: list[str]) -> None:
    fast = compiled()
    for _ in range(MAX_CALLS + CAPTURED_CALLS):
        x = torch.randn(2, 3, 9, 8, requires_grad=True)
        out = fast(x)
        torch.testing.assert_close(out, pooled(x))
        torch.testing.assert_close(gradient(out, x), gradient(pooled(x), x))
    (last,) = last_plans()
    assert (last.plan.choice, last.plan.is_trained) == ("captured_kernels", True)


def test_a_stored_choice_is_not_recorded_for_a_user_who_forbids_it(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_often(compiled())
    new_process(monkeypatch)
    monkeypatch.setattr(pipeline, "CudaDevice", lambda device: pytest.fail("it is recorded"))
    run_often(compiled(capture=False), 5)


def test_the_option_takes_auto_and_false() -> None:
    with pytest.raises(InvalidOption, match="capture=True: expected 'auto' or False"):
        compiled(capture=True)(torch.randn(2, 3, 9, 8))


GRAPHS: dict[str, tuple[Callable[..., Any], list[Tensor], str]] = {
    "a chain": (lambda x, y: (x + y).relu().sum(0), [torch.randn(4, 3), torch.randn(3)], ""),
    "rows by number": (lambda x, i: x[i] * 2, [torch.randn(8, 3), torch.tensor([1, 1, 7])], ""),
    "a constant that nothing reads": (lambda x: x + torch.tensor(2), [torch.randn(8)], ""),
    "what it finds": (lambda x: x[x > 0] * 2, [torch.randn(8)], "sizes change|host waits"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_the_host_must_see_is_not_recorded(name: str) -> None:
    run, inputs, why = GRAPHS[name]
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        (graph,) = capture_graphs(run, inputs)
    found = why_not_captured(graph.gm.graph, "cpu")
    assert (found == "") == (why == "") and (not why or any(w in found for w in why.split("|")))
    assert why_not_captured(graph.gm.graph) != ""  # a tensor on the CPU


def test_sizes_that_change_and_unknown_operators_are_not_recorded() -> None:
    (graph,) = capture_graphs(lambda x: x * 2.0, [torch.randn(5, 3)], dynamic=True)
    assert "sizes change" in why_not_captured(graph.gm.graph, "cpu")
    with torch.library._scoped_library("cudal1_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", torch.empty_like, "Meta")
        (graph,) = capture_graphs(lambda x: torch.ops.cudal1_test.twice(x) + 1, [torch.randn(3)])
        assert "on the host is not known" in why_not_captured(graph.gm.graph, "cpu")


def test_the_inputs_that_a_graph_writes_to() -> None:
    def run(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        y.add_(x)
        z[1:].mul_(2.0)
        return x + y

    (graph,) = capture_graphs(run, [torch.randn(3), torch.randn(3), torch.randn(3)])
    names = [n.name for n in graph.gm.graph.find_nodes(op="placeholder")]
    changed = changed_inputs(graph.gm.graph)
    assert len(names) == 3 and len(changed) == 2
    copied = {n.args[0].name for n in graph.gm.graph.nodes if n.target is torch.ops.aten.copy_.default}
    assert {names[i] for i in changed} == copied
