"""Plans: stored and read back, digests that depend on decisions only, summaries word for word."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from torch import fx

from cudal1_cache.rows import PlanChoice
from cudal1_cache.store import Store
from cudal1_compile.dispatch.fallback import saved
from cudal1_compile.inductor import graph_plan
from cudal1_compile.inductor.graph_key import copy_graph, graph_key
from cudal1_compile.inductor.graph_plan import (
    ATEN,
    AnchorSeen,
    ChosenKernel,
    GraphPlanned,
    PlannedRegion,
    RefusedNode,
    SeenRegion,
    from_row,
    to_row,
    with_regions,
)
from cudal1_compile.inductor.splice import decisions_digest
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.pipeline.explanation import GraphExplanation
from cudal1_compile.pipeline.process_state import Totals
from cudal1_compile.pipeline.summary import region_line, summary_line, total_line
from cudal1_fx_passes.program.precision import convolutions_in_f32


def region(name: str, outcome: Any = "hit", is_fusible: bool = False, text: str = "region v1") -> PlannedRegion:
    has_kernel = outcome in ("hit", "new")
    entry_id = f"entry {name}" if has_kernel else ATEN if outcome == "aten" else ""
    return PlannedRegion(
        SeenRegion(name, text, 3, 1, "inference", is_fusible, has_library=True, value_us=1.5),
        outcome=outcome,
        reason="" if has_kernel else "why",
        entry_id=entry_id,
        speedup=1.2 if has_kernel else None,
    )


PLAN = GraphPlanned(
    (region("a"), region("b", "new", True), region("c", "unprofitable"), region("d", "untuned")),
    (RefusedNode("mm", "aten.mm.default", "no lowering"),),
)


@pytest.mark.parametrize("choice", get_args(PlanChoice))
def test_a_plan_survives_the_store(choice: PlanChoice) -> None:
    plan = replace(PLAN, choice=choice, ratio=1.2, is_channels_last=choice == "no_layout_opt")
    plan = replace(plan, traced=frozenset("ab"), collect_s=2.5)
    with Store.memory() as store:
        store.put_plan(to_row(plan, "key", "target"))
        row = store.get_plan("key", "target")
        assert row is not None and from_row(row) == plan


def test_a_regions_text_is_parsed_once_and_its_decision_travels_with_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(graph_plan, "parse_program", lambda text: parsed.append(text) or len(parsed))
    seen = SeenRegion("f", "region v1", 3, 1, "inference", False, True, 1.5)
    found = [PlannedRegion(seen, "untuned", "no kernel yet"), PlannedRegion(seen, "hit", "", "entry")]
    assert [replace(r, reason="why").seen.program for r in found] == [1, 1] and parsed == ["region v1"]
    with Store.memory() as store:
        store.put_plan(to_row(GraphPlanned(tuple(found)), "key", "target"))
        row = store.get_plan("key", "target")
        assert row is not None and from_row(row).regions == tuple(found) and "program" not in row.regions_json


def test_choices() -> None:
    assert PLAN.chosen("inductor") == PLAN.chosen("no_layout_opt") == PLAN.chosen("aten") == {}
    assert PLAN.chosen("all_kernels") == {"a": "entry a", "b": "entry b"}
    assert PLAN.chosen("unfusible_only") == {"a": "entry a"}
    assert PLAN.is_open and not with_regions(PLAN, PLAN.regions[:3]).is_open


def test_regions_by_aten_are_chosen_as_kernels_are() -> None:
    plan = GraphPlanned((PLAN.regions[0], region("b", "aten"), region("c", "aten", True)))
    assert plan.chosen("all_kernels") == {"a": "entry a", "b": ATEN, "c": ATEN}
    assert plan.chosen("unfusible_only") == {"a": "entry a", "b": ATEN}
    assert plan.kernels("all_kernels") == {"a": "entry a"} and plan.chosen("inductor") == {}
    changed = with_regions(
        replace(plan, choice="all_kernels", ratio=1.3), [PLAN.regions[0], region("b", "unprofitable")]
    )
    assert changed.choice == "deciding"


def test_of_two_cuts_the_one_that_saves_more_is_taken() -> None:
    whole, conv, chain, other = (
        replace(region(n), saved=s) for n, s in zip("wcoe", (5.0, 3.0, 1.0, 9.0), strict=True)
    )
    plan = GraphPlanned((whole, conv, chain, other), anchors=(AnchorSeen((("w",), ("c", "o"))),))
    assert plan.chosen("all_kernels").keys() == {"w", "e"}
    assert with_regions(plan, (replace(whole, saved=4.0), conv, chain, other)).chosen("all_kernels").keys() == {
        "c",
        "o",
        "e",
    }
    untuned = replace(region("w", "untuned"), saved=5.0)
    assert with_regions(plan, (untuned, conv, chain)).chosen("all_kernels").keys() == {"c", "o"}
    # what is cut in one way only, somewhere, stays
    free = replace(plan, anchors=(*plan.anchors, AnchorSeen((("o",),))))
    assert free.chosen("all_kernels").keys() == {"w", "o", "e"}
    assert from_row(to_row(free, "key", "target")) == free


def test_of_three_cuts_the_one_that_saves_most_is_taken() -> None:
    """f: with what feeds and follows the product; g: what feeds it; w: with what follows it; c, o: alone."""
    regions = [replace(region(n), saved=s) for n, s in zip("fgwco", (6.0, 1.0, 4.0, 3.0, 1.5), strict=True)]
    plan = GraphPlanned(tuple(regions), anchors=(AnchorSeen((("f",), ("g", "w"), ("g", "c", "o"))),))
    assert plan.chosen("all_kernels").keys() == {"f"}
    assert "either f (saves most) or g + w or g + c + o" in str(GraphExplanation(plan, "host"))
    regions[0] = region("f", "untuned")
    plan = with_regions(plan, tuple(regions))
    assert plan.chosen("all_kernels").keys() == {"g", "c", "o"}
    assert "either f or g + w or g + c + o (saves most)" in str(GraphExplanation(plan, "host"))
    regions[3] = region("c", "untuned")
    assert with_regions(plan, tuple(regions)).chosen("all_kernels").keys() == {"g", "w"}
    assert from_row(to_row(plan, "key", "target")) == plan


def test_an_explanation_names_both_cuts_of_a_product() -> None:
    regions = tuple(replace(region(n), saved=s) for n, s in zip("wco", (5.0, 3.0, 1.0), strict=True))
    plan = GraphPlanned(regions, anchors=(AnchorSeen((("w",), ("c", "o"))), AnchorSeen((("o",),))))
    text = str(GraphExplanation(replace(plan, anchors=plan.anchors[:1]), "host"))
    assert "  either w (saves most) or c + o\n" in f"{text}\n"
    assert "either w (saves most) or c + o" in str(GraphExplanation(plan, "host")), "o is chosen for elsewhere"
    fewer = with_regions(plan, (region("w", "untuned"), *regions[1:]))
    assert "either w or c + o (saves most)" in str(GraphExplanation(fewer, "host"))
    untuned = with_regions(plan, (region("w", "untuned"), region("c", "untuned"), region("o", "untuned")))
    assert "either w or c + o" in (text := str(GraphExplanation(untuned, "host"))) and "saves" not in text


def test_products_can_be_left_out() -> None:
    """A product's kernel that whole calls do not prove must not cost what wins without it."""
    product = "t0 f32[d0] = dot(in0, in1) over d1"
    whole, conv = (replace(region(n, text=product), saved=5.0) for n in "wc")
    chain, other = (
        replace(region("o", is_fusible=True), saved=1.0),
        replace(region("e", is_fusible=True), saved=9.0),
    )
    plan = GraphPlanned((whole, conv, chain, other), anchors=(AnchorSeen((("w",), ("c", "o"))),))
    assert plan.chosen("all_kernels").keys() == {"c", "o", "e"} and plan.chosen("no_products").keys() == {"o", "e"}
    plan = replace(plan, regions=(replace(whole, saved=7.0), conv, chain, other))
    assert plan.chosen("all_kernels").keys() == {"w", "e"} and plan.chosen("no_products").keys() == {"o", "e"}
    assert plan.fewer_kernels == "no_products"
    plan = replace(plan, regions=(region("w", "untuned"), region("c", "untuned"), chain, region("e")))
    assert plan.chosen("all_kernels").keys() == {"o", "e"} and plan.chosen("unfusible_only").keys() == {"e"}
    assert plan.fewer_kernels == "unfusible_only"


def test_what_a_kernel_saves_is_against_inductor() -> None:
    """So that it adds up with what aten saves elsewhere in a cut, which is against Inductor too."""
    times: dict[str, Any] = {"candidate_us": 50.0, "aten_us": 60.0, "speedup": 1.2, "lower_bound": 1.1}
    for inductor_us, expected in ((100.0, 50.0), (None, 10.0)):
        timing = times | {"inductor_us": inductor_us, "rounds": 9, "final": True}
        entry: Any = SimpleNamespace(proof_json=json.dumps({"timing": timing}))
        assert saved(entry) == expected


def test_other_kernels_make_the_choice_anew() -> None:
    decided = replace(PLAN, choice="all_kernels", ratio=1.3)
    assert (
        with_regions(decided, [replace(r, outcome="hit") if r.has_kernel else r for r in PLAN.regions]).ratio
        == 1.3
    )
    changed = with_regions(
        replace(decided, choice="aten"), [replace(PLAN.regions[0], entry_id="better"), *PLAN.regions[1:]]
    )
    assert (changed.choice, changed.ratio) == ("deciding", None)


def test_the_digest_is_of_decisions_alone() -> None:
    kernels = {n: ChosenKernel(f"entry {n}", "text", Candidate("", (), ())) for n in "abc"}
    again = dict(reversed(list(kernels.items())))
    assert decisions_digest(kernels) == decisions_digest(again)
    assert decisions_digest(kernels) != decisions_digest({n: kernels[n] for n in "ab"})
    assert decisions_digest({"a": kernels["b"]}) != decisions_digest({"a": kernels["a"]})
    assert len({decisions_digest({}, by) for by in ((), "a", "ab")} | {decisions_digest(kernels)}) == 4


@pytest.mark.parametrize(
    ("plan", "kind", "line"),
    [
        (PLAN, "host", "regions: 4, hit 1, new 1, unprofitable 1, untuned 1"),
        (with_regions(PLAN, PLAN.regions[:3]), "cuda", "regions: 3, hit 1, new 1, unprofitable 1; deciding"),
        (
            replace(with_regions(PLAN, PLAN.regions[:3]), choice="all_kernels", ratio=1.309),
            "cuda",
            "regions: 3, hit 1, new 1, unprofitable 1; 1.31x over inductor",
        ),
        (
            replace(with_regions(PLAN, PLAN.regions[:3]), choice="inductor", ratio=1.0),
            "cuda",
            "regions: 3, hit 1, new 1, unprofitable 1; no kernel is faster here, inductor runs",
        ),
        (
            replace(with_regions(PLAN, PLAN.regions[:3]), choice="aten", ratio=1.309),
            "cuda",
            "regions: 3, hit 1, new 1, unprofitable 1; aten runs, 1.31x over inductor",
        ),
        (
            GraphPlanned(
                (region("c", "unprofitable"),), is_channels_last=True, choice="no_layout_opt", ratio=1.309
            ),
            "cuda",
            "regions: 1, hit 0, new 0, unprofitable 1; convolutions keep their layout, 1.31x over inductor",
        ),
        (
            GraphPlanned((region("b", "aten"), region("c", "unprofitable")), choice="all_kernels", ratio=1.6),
            "cuda",
            "regions: 2, hit 0, new 0, aten 1, unprofitable 1; 1.60x over inductor",
        ),
        (GraphPlanned((), choice="inductor"), "cuda", "regions: 0, hit 0, new 0, unprofitable 0; inductor runs"),
        (GraphPlanned((), choice="aten"), "host", "regions: 0, hit 0, new 0, unprofitable 0"),
    ],
)
def test_summary(plan: GraphPlanned, kind: Any, line: str) -> None:
    assert summary_line(plan, kind) == line


def test_a_region_by_aten_has_a_line() -> None:
    found = replace(region("b", "aten"), speedup=1.6, reason="24 candidates, none accepted")
    assert region_line(found, "cuda") == "b inference, 3 ops: aten 1.60x (24 candidates, none accepted)"


def test_totals() -> None:
    assert total_line(Totals().plus(PLAN).plus(PLAN)) == "regions: 8, hit 2, new 2, unprofitable 2, untuned 2"


def trace(scale: float) -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (torch.sin(x) * scale,))


def test_graph_key() -> None:
    x = torch.zeros(4, 8)
    key = graph_key(trace(2.0), [x], {})
    assert key == graph_key(trace(2.0), [torch.ones(4, 8)], {})
    others = [
        graph_key(trace(3.0), [x], {}),
        graph_key(trace(2.0), [x.t()], {}),
        graph_key(trace(2.0), [x.half()], {}),
        graph_key(trace(2.0), [x.clone().requires_grad_()], {}),
        graph_key(trace(2.0), [x], {"epilogue_fusion": True}),
        graph_key(trace(2.0), [x], {}, products=True),
    ]
    with convolutions_in_f32():
        assert key == graph_key(trace(2.0), [x], {})
        others.append(graph_key(trace(2.0), [x], {}, products=True))
    with torch.no_grad():
        others.append(graph_key(trace(2.0), [x], {}))
    assert len({key, *others}) == 9


def test_a_copy_shares_tensors_and_nothing_else() -> None:
    root = torch.nn.Linear(3, 3)
    graph = fx.symbolic_trace(root)
    copied = copy_graph(graph)
    assert copied.weight is graph.weight
    copied.graph.erase_node(next(n for n in reversed(copied.graph.nodes) if n.op == "output"))
    assert any(n.op == "output" for n in graph.graph.nodes)
