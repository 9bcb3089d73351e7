"""What the collecting pass saw, summed up: each distinct region once, and every refused node with its reason.

[SeenGraph, ...] -> SeenRegion per fingerprint (uses, neighbours, value), RefusedNode per node outside
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from torch import fx

from cudal1_compile.inductor.collect import SeenGraph
from cudal1_compile.inductor.graph_plan import AnchorSeen, GraphPhase, RefusedNode, SeenRegion
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


def survey(graphs: Sequence[SeenGraph], device: torch.device) -> tuple[list[SeenRegion], list[RefusedNode]]:
    """Regions in order of first use. Regions on other devices than `device` count as refused."""
    seen: dict[str, SeenRegion] = {}
    refused: list[RefusedNode] = []
    has_convolutions = any(g.has_convolutions for g in graphs)
    for graph in graphs:
        cuts = [r for anchor in graph.partition.anchors for cut in anchor.cuts for r in cut]
        for region in {r.nodes: r for r in (*graph.partition.regions, *cuts)}.values():
            found = region.outputs[0].meta["val"].device
            if found != device:
                refused += [_refused(n, f"on {found}; kernels are made for {device}") for n in region.nodes]
                continue
            seen[region.fingerprint] = _add(seen.get(region.fingerprint), region, graph.phase, has_convolutions)
        nodes = {n.name: n for n in graph.partition.graph.nodes}
        refused += [_refused(nodes[name], why) for name, why in graph.partition.refused.items() if name in nodes]
    return list(seen.values()), refused


def survey_anchors(graphs: Iterable[SeenGraph]) -> tuple[AnchorSeen, ...]:
    """Each distinct anchor once; one without a choice for a region that elsewhere is cut in one way only."""
    found: dict[AnchorSeen, None] = {}
    free: set[str] = set()
    for graph in graphs:
        free |= {r.fingerprint for r in free_regions(graph.partition)}
        for anchor in graph.partition.anchors:
            found[AnchorSeen(anchor.fingerprints)] = None
    bound = {f for anchor in found for cut in anchor.cuts for f in cut}
    return (*found, *(AnchorSeen(((f,),)) for f in sorted(free & bound)))


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
