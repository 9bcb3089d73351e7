"""One line on stderr for each compile, and the total of a process.

    cudal1: regions: 12, hit 7, new 3, unprofitable 2, 100% of their time decided; 1.31x over inductor

The ratio stands there only once it was measured on the user's own calls; until then the line ends in
`deciding`. A graph that aten runs faster ends in `aten runs, 1.31x over inductor`, one that Inductor runs faster
without channels-last in `convolutions keep their layout, ...`, one that is replayed in `recorded as a CUDA graph,
...`; `aten 1` among the counts is a region by aten, `untried 1` one that was decided without a candidate, `at the
floor 1` one that no kernel could make faster. On the host target there is no speed, so there is no speed word.
CUDAL1_DEBUG=1 adds a line for each region; what higher levels add is trace.py's. A warm start prints the same line
from the stored plan.
"""

from __future__ import annotations

import textwrap

from cudal1_compile.config import debug_level
from cudal1_compile.inductor.graph_plan import CAPTURED, GraphPlanned, PlannedRegion
from cudal1_compile.pipeline.process_state import Totals
from cudal1_compile.pipeline.trace import REGIONS, say
from cudal1_compile.runtime.target import TargetKind, show_score

REASON_CHARACTERS = 160


def summary_line(plan: GraphPlanned, kind: TargetKind) -> str:
    """Counts, then on a GPU how the choice stands."""
    share = f", {plan.decided_share:.0%} of their time decided" if plan.decided_share is not None else ""
    return total_line(Totals().plus(plan)) + (share + _ending(plan) if kind == "cuda" else "")


def total_line(totals: Totals) -> str:
    aten = f", aten {totals.aten}" if totals.aten else ""
    floor = f", at the floor {totals.at_floor}" if totals.at_floor else ""
    untried = f", untried {totals.untried}" if totals.untried else ""
    untuned = f", untuned {totals.untuned}" if totals.untuned else ""
    t = totals
    decided = f"hit {t.hit}, new {t.new}{aten}, unprofitable {t.unprofitable}{floor}"
    return f"regions: {t.regions}, {decided}{untried}{untuned}"


def region_line(region: PlannedRegion, kind: TargetKind) -> str:
    """One region, its decision and why."""
    seen = region.seen
    uses = f" x{seen.count}" if seen.count > 1 else ""
    score = f", {show_score(region.speedup, kind)}" if region.has_kernel and region.speedup else ""
    if region.outcome == "aten" and region.speedup:
        score = f" {region.speedup:.2f}x"
    reason = " ".join(region.reason.split())
    why = f" ({textwrap.shorten(reason, REASON_CHARACTERS)})" if reason else ""
    share = f", baseline at {region.floor_share:.2f} of the floor" if region.floor_share is not None else ""
    outcome = region.outcome.replace("at_floor", "at the floor")
    return f"{seen.fingerprint[:12]} {seen.phase}{uses}, {seen.ops} ops: {outcome}{score}{share}{why}"


def report(plan: GraphPlanned, kind: TargetKind) -> None:
    say(summary_line(plan, kind))
    if debug_level() >= REGIONS:
        for region in plan.regions:
            say(f"  {region_line(region, kind)}")


def _ending(plan: GraphPlanned) -> str:
    if plan.choice == "deciding":
        return "; deciding"
    if plan.choice == "inductor":
        return "; no kernel is faster here, inductor runs" if plan.kernels("all_kernels") else "; inductor runs"
    base = CAPTURED.get(plan.choice, plan.choice)
    runs = {
        "aten": "; aten runs, ",
        "no_layout_opt": "; convolutions keep their layout, ",
        "fused_convolutions": "; convolutions with their ReLU by cuDNN, ",
    }.get(base, "; ")
    runs += "recorded as a CUDA graph, " if plan.choice in CAPTURED else ""
    return f"{runs}{plan.ratio:.2f}x over inductor" if plan.ratio is not None else ""
