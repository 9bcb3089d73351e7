"""Cuts an FX graph into regions that a program can say, and records why every other node stays outside.

    groups (grow.py) -> views at the border stay outside -> connected parts -> import
                                   ^------------- cut at the node that refuses

The graph is not changed. A region may lend a view: a view inside with users outside stays in the graph for
them and reads the region's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import networkx
import torch
from torch import fx

from cudal1_fx_passes.errors import ImportRefused
from cudal1_fx_passes.from_fx import ImportedRegion, import_region, is_view, lowering_of
from cudal1_fx_passes.grow import Grower, components, element_count


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    max_ops: int = 48  # operations of a region's program
    min_elements: int = 64  # of a region's largest tensor
    min_nodes: int = 2  # that compute something, in a region of pointwise nodes only


@dataclass(frozen=True, slots=True)
class RegionNodes:
    """Nodes of one region in topological order, and its program."""

    nodes: tuple[fx.Node, ...]
    imported: ImportedRegion
    bytes_moved: int  # of all inputs and outputs, at the example's sizes


@dataclass(frozen=True)
class Partition:
    graph: fx.Graph
    regions: tuple[RegionNodes, ...]
    refused: dict[str, str] = field(default_factory=dict)  # call_function node outside -> reason

    def by_value(self) -> list[RegionNodes]:
        """Regions, the one that moves most bytes first."""
        return sorted(self.regions, key=lambda r: -r.bytes_moved)


def partition(graph: fx.Graph, config: PartitionConfig | None = None) -> Partition:
    config = config or PartitionConfig()
    cutter = _Cutter(graph, config)
    regions = cutter.run()
    taken = {n for r in regions for n in r.nodes}
    refused = {n.name: cutter.reason(n) for n in graph.nodes if n.op == "call_function" and n not in taken}
    return Partition(graph, tuple(regions), refused)


class _Cutter:
    def __init__(self, graph: fx.Graph, config: PartitionConfig) -> None:
        self.grower = Grower(graph, config.max_ops)
        self.config = config
        self.reasons: dict[fx.Node, str] = {}
        self.cuts: set[int] = set()
        self.found: list[RegionNodes] = []

    def run(self) -> list[RegionNodes]:
        self._cut(i for i, role in enumerate(self.grower.role) if role is not None and self._has_values(i))
        self.found.sort(key=lambda r: self.grower.index[r.nodes[0]])
        return self.found

    def reason(self, node: fx.Node) -> str:
        if node in self.reasons:
            return self.reasons[node]
        if lowering_of(node) is None:
            return f"{node.target} has no lowering"
        return "a view at the border of a region" if is_view(node) else "its results are not tensors"

    def _has_values(self, i: int) -> bool:
        val = self.grower.nodes[i].meta.get("val")
        items = val if isinstance(val, (tuple, list)) else [val]
        return any(isinstance(x, torch.Tensor) for x in items)

    def _cut(self, allowed: Iterable[int]) -> None:
        for group in self.grower.grow(allowed, self.cuts):
            nodes = strip_views([self.grower.nodes[i] for i in group])
            for part in components(nodes):
                self._accept(part)

    def _accept(self, nodes: list[fx.Node]) -> None:
        why = self._too_little(nodes)
        if why is not None:
            self._refuse(nodes, why)
            return
        try:
            imported = import_region(nodes, self.config.max_ops)
        except ImportRefused as refusal:
            self._retry(nodes, refusal)
            return
        self.found.append(RegionNodes(tuple(nodes), imported, bytes_moved(imported)))

    def _retry(self, nodes: list[fx.Node], refusal: ImportRefused) -> None:
        """First the node starts a region of its own; where that fails too, it stays outside."""
        at = self.grower.index[next(n for n in nodes if n.name == refusal.node)]
        allowed = {self.grower.index[n] for n in nodes}
        if at not in self.cuts and self.grower.before[at] & allowed:
            self.cuts.add(at)
        else:
            self._refuse([self.grower.nodes[at]], refusal.reason)
            allowed.discard(at)
            allowed -= self._orphans(at, allowed)
        self._cut(allowed)

    def _orphans(self, at: int, allowed: set[int]) -> set[int]:
        """The getitems of a refused node, which go with it."""
        found = {i for i in self.grower.after[at] & allowed if self.grower.nodes[i].meta.get("val") is not None}
        bundle = isinstance(self.grower.nodes[at].meta["val"], (tuple, list))
        found = found if bundle else set()
        self._refuse(
            [self.grower.nodes[i] for i in found], f"a result of {self.grower.nodes[at]}, which is outside"
        )
        return found

    def _too_little(self, nodes: Sequence[fx.Node]) -> str | None:
        roles = [
            lowering.role for n in nodes if (lowering := lowering_of(n)) is not None and lowering.role != "view"
        ]
        if not roles:
            return "only views"
        if all(role == "pointwise" for role in roles) and len(roles) < self.config.min_nodes:
            return "a single pointwise operation, which Inductor does as well"
        largest = max(element_count(x) for n in nodes for x in (n, *n.all_input_nodes))
        if largest < self.config.min_elements:
            return f"too small: {largest} elements at most"
        return None

    def _refuse(self, nodes: Iterable[fx.Node], why: str) -> None:
        for node in nodes:
            self.reasons[node] = why


def strip_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Drops views whose results nothing inside reads, and views of outside tensors.

    A view of an outside tensor stays where something inside reads that tensor too, and where it copies:
    the region then reads one tensor and not two.
    """
    kept = dict.fromkeys(nodes)
    changed = True
    while changed:
        changed = False
        for node in list(kept):
            if _is_loose(node, kept):
                del kept[node]
                changed = True
    return list(kept)


def _is_loose(node: fx.Node, kept: dict[fx.Node, None]) -> bool:
    if not is_view(node):
        return False
    if not any(u in kept for u in node.users):
        return True
    sources = node.all_input_nodes
    if any(a in kept for a in sources):
        return False
    shared = any(u in kept and not is_view(u) for a in sources for u in a.users)
    return not shared and not copies(node)


def copies(node: fx.Node) -> bool:
    """Whether a reshape moves memory, because no strides can say it."""
    if node.target not in (torch.ops.aten.reshape.default, torch.ops.aten._unsafe_view.default):
        return False
    source, made = node.args[0], node.meta["val"]
    assert isinstance(source, fx.Node)
    old = source.meta["val"]
    if not all(isinstance(s, int) for s in (*old.shape, *old.stride(), *made.shape)):
        return False
    try:
        torch.empty_strided(old.shape, old.stride(), device="meta").view(made.shape)
    except RuntimeError:
        return True
    return False


def bytes_moved(imported: ImportedRegion) -> int:
    total = 0
    for node in (*imported.inputs, *imported.outputs):
        total += element_count(node) * int(node.meta["val"].element_size())
    return total


def region_graph(found: Partition) -> networkx.DiGraph[str]:
    """Regions (`region 0` ...) and the computing nodes outside them; an edge is a tensor that passes."""
    drawn: networkx.DiGraph[str] = networkx.DiGraph()
    owner: dict[fx.Node, str] = {}
    for at, region in enumerate(found.regions):
        name = f"region {at}"
        drawn.add_node(name, kind="region", ops=len(region.imported.program.ops), bytes=region.bytes_moved)
        owner |= dict.fromkeys(region.nodes, name)
    for node in found.graph.nodes:
        if node.op != "call_function":
            continue
        if node not in owner and not is_view(node):
            owner[node] = node.name
            drawn.add_node(node.name, kind="library", target=str(node.target))
        elif node not in owner:
            source = node.all_input_nodes[0]
            if source in owner:
                owner[node] = owner[source]
            continue
        for source in node.all_input_nodes:
            if source in owner and owner[source] != owner[node]:
                drawn.add_edge(owner[source], owner[node])
    return drawn
