"""One line on stderr for each compile, and the total of a process.

    cudal1: regions: 12, hit 7, new 3, unprofitable 2; 1.31x over inductor

The ratio stands there only once it was measured on the user's own calls; until then the line ends in
`deciding`. A graph that aten runs faster ends in `aten runs, 1.31x over inductor`, one that Inductor runs faster
without channels-last in `convolutions keep their layout, ...`; `aten 1` among the counts is a region by aten,
`untried 1` one that was decided without a candidate.
On the host target there is no speed, so there is no speed word. CUDAL1_DEBUG=1 adds a line for each region, 2 the
time of each step, 3 the graphs as Python, 4 the kernels' sources. A warm start prints the same line from the
stored plan.
"""

from __future__ import annotations

import logging
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cudal1_compile.config import debug_level
from cudal1_compile.inductor.plan import GraphPlanned, PlannedRegion
from cudal1_compile.pipeline.session import Totals
from cudal1_compile.synthesis.progress import TargetKind, show_score

log = logging.getLogger(__name__)

PREFIX = "cudal1: "
REASON_CHARACTERS = 160
REGIONS, TIMINGS, GRAPHS, SOURCES = 1, 2, 3, 4  # levels of CUDAL1_DEBUG


def summary_line(plan: GraphPlanned, kind: TargetKind) -> str:
    """Counts, then on a GPU how the choice stands."""
    return total_line(Totals().plus(plan)) + (_ending(plan) if kind == "cuda" else "")


def total_line(totals: Totals) -> str:
    aten = f", aten {totals.aten}" if totals.aten else ""
    untried = f", untried {totals.untried}" if totals.untried else ""
    untuned = f", untuned {totals.untuned}" if totals.untuned else ""
    t = totals
    return f"regions: {t.regions}, hit {t.hit}, new {t.new}{aten}, unprofitable {t.unprofitable}{untried}{untuned}"


def region_line(region: PlannedRegion, kind: TargetKind) -> str:
    """One region, its decision and why."""
    uses = f" x{region.count}" if region.count > 1 else ""
    score = f", {show_score(region.speedup, kind)}" if region.has_kernel and region.speedup else ""
    if region.outcome == "aten" and region.speedup:
        score = f" {region.speedup:.2f}x"
    reason = " ".join(region.reason.split())
    why = f" ({textwrap.shorten(reason, REASON_CHARACTERS)})" if reason else ""
    return f"{region.fingerprint[:12]} {region.phase}{uses}, {region.ops} ops: {region.outcome}{score}{why}"


def report(plan: GraphPlanned, kind: TargetKind) -> None:
    say(summary_line(plan, kind))
    if debug_level() >= REGIONS:
        for region in plan.regions:
            say(f"  {region_line(region, kind)}")


@contextmanager
def timed(step: str) -> Iterator[None]:
    """CUDAL1_DEBUG=2: says how long a step took."""
    start = time.monotonic()
    yield
    if debug_level() >= TIMINGS:
        say(f"{step}: {time.monotonic() - start:.2f} s")


def dump(level: int, title: str, text: str) -> None:
    """CUDAL1_DEBUG=3 and 4: graphs and sources, whole."""
    if debug_level() >= level:
        say(f"{title}\n{text.rstrip()}")


def say(text: str) -> None:
    """A line on stderr. A closed pipe must not end a compile, nor must a process that has no stderr."""
    try:
        sys.stderr.write(f"{PREFIX}{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError) as error:
        log.debug("stderr takes nothing: %s", error)


def _ending(plan: GraphPlanned) -> str:
    if plan.choice == "deciding":
        return "; deciding"
    if plan.choice == "inductor":
        return "; no kernel is faster here, inductor runs" if plan.kernels("all_kernels") else "; inductor runs"
    runs = {"aten": "; aten runs, ", "no_layout_opt": "; convolutions keep their layout, "}.get(plan.choice, "; ")
    return f"{runs}{plan.ratio:.2f}x over inductor" if plan.ratio is not None else ""
