"""What is decided for one graph: its regions, which of them run a kernel, and why not the others.

A GraphPlanned is the unit that is stored (as the cache's GraphPlan row), printed and turned into passes. The
same decisions give the same digest in every process, so a warm start needs neither a collecting pass nor the
generator, and hits Inductor's caches. This module decides nothing itself; planner.py and choice.py do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

from cudal1_cache.rows import Entry, GraphPlan, PlanChoice
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

GraphPhase = Literal["inference", "forward", "backward"]
RegionOutcome = Literal["hit", "new", "aten", "unprofitable", "at_floor", "untried", "untuned"]

INLINE = "inline"  # the decision "Inductor compiles this region", as stored
CAPTURED: dict[PlanChoice, PlanChoice] = {  # what is recorded as a CUDA graph
    "captured_inductor": "inductor",
    "captured_aten": "aten",
    "captured_fused": "fused_convolutions",
    "captured_kernels": "all_kernels",
}
KERNEL_FREE: tuple[PlanChoice, ...] = (
    *("inductor", "no_layout_opt", "fused_convolutions", "aten"),
    *("captured_inductor", "captured_fused", "captured_aten"),
)
ATEN = "aten"  # the decision "aten runs this region", as stored in place of an entry's id


@dataclass(frozen=True, slots=True)
class ChosenKernel:
    """An accepted kernel for a region, as the pass and the generated module need it."""

    entry_id: str
    text: str  # of the region
    candidate: Candidate
    is_checked: bool = False  # every call is compared with the region (shadow.py)


@dataclass(frozen=True)
class SeenRegion:
    """One distinct region of a graph, as the collecting pass saw it."""

    fingerprint: str
    text: str
    ops: int
    count: int  # uses of it in the graph
    phase: GraphPhase  # of its first use
    is_fusible: bool  # at some use Inductor would have fused it with a neighbour
    has_library: bool  # at some use aten's library has an operator for a part of it
    value_us: float  # estimate of the time that kernels may win in all its uses; ranks regions
    reads_copies: bool = False  # it is a backward's whose forward has convolutions, and may read what these needed

    @cached_property
    def program(self) -> Program:
        """Of its text, parsed once."""
        return parse_program(self.text)

    @property
    def has_product(self) -> bool:
        return " = dot" in self.text  # as every sum of products is written

    @property
    def may_change(self) -> bool:
        """Whether it reads what a forward with kernels of products lays out otherwise."""
        return self.reads_copies and self.has_product


@dataclass(frozen=True, slots=True)
class AnchorSeen:
    """Fingerprints of the ways to cut around products, the widest first, each by itself last (anchors.py)."""

    cuts: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class RefusedNode:
    """A node that no region takes, and why."""

    node: str
    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """A region and its decision. `untuned` is open: a later process looks it up again."""

    seen: SeenRegion
    outcome: RegionOutcome
    reason: str  # why there is no kernel; empty for hit and new
    entry_id: str = ""  # ATEN where aten runs it
    speedup: float | None = None  # of the region alone over the best permitted plan; of aten over Inductor
    saved: float = 0.0  # by one call of it: microseconds on a GPU, declared cost on the host target
    baseline_us: float | None = None  # of one use by the faster baseline; None: not timed
    floor_us: float = 0.0  # the physical floor of it

    @property
    def has_kernel(self) -> bool:
        return self.outcome in ("hit", "new")

    @property
    def fingerprint(self) -> str:
        return self.seen.fingerprint

    @property
    def floor_share(self) -> float | None:
        """Of the faster baseline; None: not timed."""
        return self.floor_us / self.baseline_us if self.baseline_us and self.floor_us else None

    @property
    def is_replaced(self) -> bool:
        """Whether anything but Inductor is proposed for it."""
        return self.has_kernel or self.outcome == "aten"


@dataclass(frozen=True, slots=True)
class GraphPlanned:
    """All decisions for one graph. `ratio`: the chosen plan's speed over Inductor's, if measured."""

    regions: tuple[PlannedRegion, ...]
    refused: tuple[RefusedNode, ...] = ()
    is_channels_last: bool = False  # by Inductor's own choice, in some graph
    anchors: tuple[AnchorSeen, ...] = ()
    choice: PlanChoice = "deciding"
    ratio: float | None = None
    fault: str = ""  # for which the last compile did without kernels where they were chosen
    traced: frozenset[str] = frozenset()  # the forward's products with a kernel in place when it was collected
    collect_s: float = 0.0  # that this took
    why_not_captured: str = "nobody has looked"  # for which it is not recorded as a CUDA graph; empty: it may be
    changed: tuple[int, ...] = ()  # places of the inputs that it writes to
    is_trained: bool = False
    fuses: bool = False  # some convolution may be one call of cuDNN's with its ReLU

    @property
    def is_open(self) -> bool:
        """Whether some region has neither a kernel nor a verdict."""
        return any(r.outcome == "untuned" for r in self.regions)

    def chosen(self, choice: PlanChoice) -> dict[str, str]:
        """fingerprint -> entry id, or ATEN, of what does not run by Inductor; "deciding" counts as "all_kernels".

        unfusible_only: without what Inductor would have fused with its neighbours.
        """
        choice = CAPTURED.get(choice, choice)
        if choice in KERNEL_FREE:
            return {}
        replaced = [r for r in self.regions if r.is_replaced]
        chosen = self._best_cuts([r for r in replaced if choice != "no_products" or not r.seen.has_product])
        if choice != "unfusible_only":
            return chosen
        fusible = {r.fingerprint for r in replaced if r.seen.is_fusible}
        return {f: entry_id for f, entry_id in chosen.items() if f not in fusible}

    @property
    def fewer_kernels(self) -> PlanChoice:
        """What to try beside all kernels: products, where there are any, must not cost what else wins."""
        has_products = self.chosen("no_products") != self.chosen("all_kernels")
        return "no_products" if has_products else "unfusible_only"

    def _best_cuts(self, replaced: Sequence[PlannedRegion]) -> dict[str, str]:
        """Without regions that are only in those cuts around products which save less than another."""
        saved = {r.fingerprint: r.saved for r in replaced}
        taken: set[str] = set()
        lost: set[str] = set()
        for anchor in self.anchors:
            best = max(reversed(anchor.cuts), key=lambda cut: sum(saved.get(f, 0.0) for f in cut))
            taken |= set(best)
            lost |= {f for cut in anchor.cuts for f in cut} - set(best)
        return {r.fingerprint: r.entry_id for r in replaced if r.fingerprint not in lost - taken}

    def kernels(self, choice: PlanChoice) -> dict[str, str]:
        """fingerprint -> entry id of the kernels that run under a choice."""
        return {f: entry_id for f, entry_id in self.chosen(choice).items() if entry_id != ATEN}

    @property
    def decided_share(self) -> float | None:
        """Of the time that the regions take by their faster baselines; None where none is timed."""
        us = {r.fingerprint: r.seen.count * r.baseline_us for r in self.regions if r.baseline_us}
        open_us = sum(us.get(r.fingerprint, 0.0) for r in self.regions if r.outcome in ("untuned", "untried"))
        return 1.0 - open_us / sum(us.values()) if us else None

    def count(self, *outcomes: RegionOutcome) -> int:
        return sum(r.outcome in outcomes for r in self.regions)


def load_kernel(entry: Entry, seen: SeenRegion) -> ChosenKernel:
    """The kernel of a region. Raises CandidateError for code that does not fit it."""
    return ChosenKernel(entry.entry_id, seen.text, parse_candidate(entry.code, seen.program))


def to_row(plan: GraphPlanned, graph_key: str, target: str) -> GraphPlan:
    chosen = plan.chosen(plan.choice)
    decisions = {r.fingerprint: chosen.get(r.fingerprint, INLINE) for r in plan.regions}
    table = {
        "regions": [asdict(r) for r in plan.regions],
        "refused": [asdict(n) for n in plan.refused],
        "is_channels_last": plan.is_channels_last,
        "anchors": [a.cuts for a in plan.anchors],
        "fault": plan.fault,
        "traced": sorted(plan.traced),
        "collect_s": plan.collect_s,
        "why_not_captured": plan.why_not_captured,
        "changed": plan.changed,
        "is_trained": plan.is_trained,
        "fuses": plan.fuses,
    }
    return GraphPlan(graph_key, target, json.dumps(decisions), json.dumps(table), plan.choice, plan.ratio)


def from_row(row: GraphPlan) -> GraphPlanned:
    """Raises ValueError (KeyError, TypeError) for a table that this version did not write."""
    table = json.loads(row.regions_json)
    regions = tuple(PlannedRegion(**r | {"seen": SeenRegion(**r["seen"])}) for r in table["regions"])
    refused = tuple(RefusedNode(**n) for n in table["refused"])
    anchors = tuple(AnchorSeen(tuple(tuple(cut) for cut in cuts)) for cuts in table["anchors"])
    is_last, fault = bool(table["is_channels_last"]), str(table["fault"])
    traced, collect_s = frozenset(table["traced"]), float(table["collect_s"])
    why_not, changed = str(table["why_not_captured"]), tuple(table["changed"])
    is_trained, fuses = bool(table["is_trained"]), bool(table["fuses"])
    decided = row.choice, row.ratio, fault, traced, collect_s, why_not, changed, is_trained, fuses
    return GraphPlanned(regions, refused, is_last, anchors, *decided)


def with_regions(plan: GraphPlanned, regions: Iterable[PlannedRegion]) -> GraphPlanned:
    """The plan with new decisions; what was measured for the old ones no longer counts if kernels changed."""
    changed = replace(plan, regions=tuple(regions))
    if changed.chosen("all_kernels") == plan.chosen("all_kernels"):
        return changed
    return replace(changed, choice="deciding", ratio=None)
