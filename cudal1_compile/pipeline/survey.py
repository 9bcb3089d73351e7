"""What the collecting pass saw, summed up: each distinct region once, and every refused node with its reason.

[SeenGraph, ...] -> Survey: SeenRegion per fingerprint (uses, neighbours, value), RefusedNode per node outside
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx

from cudal1_compile.inductor.collect import SeenGraph
from cudal1_compile.inductor.graph_plan import (
    AnchorSeen,
    GraphPhase,
    GraphPlanned,
    PlannedRegion,
    RefusedNode,
    SeenRegion,
)
from cudal1_compile.inductor.library import library_operator
from cudal1_fx_passes.fusion.anchors import free_regions
from cudal1_fx_passes.fusion.partition import Region
from cudal1_fx_passes.importer.boundary import is_view
from cudal1_fx_passes.program.ir import Op, Program
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.text import print_program

# of a large GPU; they only rank regions by the time that kernels may win
BYTES_PER_US = 2e6
SPLIT_PER_US = 7e7  # float32 multiplications that win 1 us: kernels do 38e6 in it, the library 25e6


class Survey:
    """Of graphs in the order in which they are seen, each looked at when it is added and not kept."""

    def __init__(self, device: torch.device) -> None:
        """Regions on other devices count as refused."""
        self.refused: list[RefusedNode] = []
        self.phases: set[GraphPhase] = set()
        self.is_channels_last = False  # one of them
        self.fuses = False  # one of them has a convolution that cuDNN may run with its ReLU
        self.why_not_captured = ""  # of one of them
        self.changed: tuple[int, ...] = ()  # inputs, of the last one, which holds the others
        self._device = device
        self._seen: dict[str, SeenRegion] = {}
        self._has_convolutions = False
        self._anchors: dict[AnchorSeen, None] = {}
        self._free: set[str] = set()

    def add(self, graph: SeenGraph) -> None:
        self.phases.add(graph.phase)
        self.is_channels_last |= graph.is_channels_last
        self.fuses |= graph.fusible > 0
        self.why_not_captured = self.why_not_captured or graph.why_not_captured
        if graph.phase != "backward":  # whose inputs are others
            self.changed = graph.changed
        self._has_convolutions |= graph.has_convolutions
        cuts = [r for anchor in graph.partition.anchors for cut in anchor.cuts for r in cut]
        for region in {r.nodes: r for r in (*graph.partition.regions, *cuts)}.values():
            found = region.outputs[0].meta["val"].device
            if found != self._device:
                why = f"on {found}; kernels are made for {self._device}"
                self.refused += [_refused(n, why) for n in region.nodes]
                continue
            known = self._seen.get(region.fingerprint)
            self._seen[region.fingerprint] = _add(known, region, graph.phase, self._has_convolutions)
        nodes = {n.name: n for n in graph.partition.graph.nodes}
        known_nodes = ((nodes[n], why) for n, why in graph.partition.refused.items() if n in nodes)
        self.refused += [_refused(node, why) for node, why in known_nodes]
        self._free |= {r.fingerprint for r in free_regions(graph.partition)}
        self._anchors |= dict.fromkeys(AnchorSeen(anchor.fingerprints) for anchor in graph.partition.anchors)

    @property
    def regions(self) -> list[SeenRegion]:
        """In order of first use."""
        return list(self._seen.values())

    @property
    def anchors(self) -> tuple[AnchorSeen, ...]:
        """Each distinct anchor once; one without a choice for a region that elsewhere is cut in one way only."""
        bound = {f for anchor in self._anchors for cut in anchor.cuts for f in cut}
        return (*self._anchors, *(AnchorSeen(((f,),)) for f in sorted(self._free & bound)))


def survey(graphs: Iterable[SeenGraph], device: torch.device) -> Survey:
    found = Survey(device)
    for graph in graphs:
        found.add(graph)
    return found


def unanswered(found: Survey) -> GraphPlanned:
    """The cache is yet to be asked."""
    regions = tuple(PlannedRegion(seen, "untuned", "") for seen in found.regions)
    why_not = found.why_not_captured
    plan = GraphPlanned(regions, tuple(found.refused), found.is_channels_last, found.anchors)
    is_trained = "forward" in found.phases
    return replace(plan, why_not_captured=why_not, changed=found.changed, is_trained=is_trained, fuses=found.fuses)


def fuses_with_neighbours(region: Region) -> bool:
    """Whether Inductor would fuse the region with something next to it: a node that it writes loops for."""
    inside = set(region.nodes)
    around = [*(_source(i) for i in region.inputs), *(u for o in region.outputs for u in _readers(o))]
    return any(n not in inside and _has_loops(n) for n in around)


def _add(known: SeenRegion | None, region: Region, phase: GraphPhase, has_convolutions: bool) -> SeenRegion:
    is_fusible = fuses_with_neighbours(region)
    has_library = any(library_operator(n) is not None for n in region.nodes)
    count = 1
    if known is not None:
        is_fusible, has_library = is_fusible or known.is_fusible, has_library or known.has_library
        count, phase = known.count + 1, known.phase
    return SeenRegion(
        fingerprint=region.fingerprint,
        text=print_program(region.program),
        ops=len(region.program.ops),
        count=count,
        phase=phase,
        is_fusible=is_fusible,
        has_library=has_library,
        value_us=count * _winnable_us(region),
        reads_copies=phase == "backward" and has_convolutions,
    )


def _winnable_us(region: Region) -> float:
    """The time that its bytes take, which is where the library leaves most.

    Half-type and TF32 arithmetic does not count: where it is the limit the library is at its own. Float32's does,
    as long as the library may not use TF32 and a kernel may split.
    """
    dots = [op for op in region.program.ops if OPS[op.fn].kind is Kind.DOT]
    plain = sum(_count(region.program, op) for op in dots if op.fn != "dot_tf32" and op.dtype == "f32")
    return region.bytes_moved / BYTES_PER_US + plain / SPLIT_PER_US


def multiplications(program: Program) -> int:
    """Of its sums of products, at the example's sizes."""
    return sum(_count(program, op) for op in program.ops if OPS[op.fn].kind is Kind.DOT)


def _count(program: Program, op: Op) -> int:
    return program.size((*op.axes, *op.over))


def _refused(node: fx.Node, why: str) -> RefusedNode:
    return RefusedNode(node.name, str(node.target), why)


def _source(node: fx.Node) -> fx.Node:
    """The node that computed what a view looks at."""
    while (is_view(node) or node.target is operator.getitem) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _readers(node: fx.Node) -> list[fx.Node]:
    """Users, seen through views."""
    found: list[fx.Node] = []
    for user in node.users:
        found += _readers(user) if is_view(user) else [user]
    return found


def _has_loops(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    tags = node.target.tags
    return torch.Tag.pointwise in tags or torch.Tag.reduction in tags
