"""Cuts an FX graph into regions that a program can say, and records why every other node stays outside.

    groups (grow.py) -> views at the boundary stay outside -> connected parts -> import
                                   ^------------- cut at the node that refuses

The graph is not changed. Nodes may be rematerialised (boundary.py): a view or a constant inside that has users
outside too stays in the graph for them; whoever splices replaces ALL uses of the outputs, then erases what has no
users left. Constants (full, iota, masks made of them) belong to every region that reads them.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import networkx
import sympy
import torch
from torch import fx

from cudal1_fx_passes.errors import ImportRefused, NodeRefused, RegionTooWide
from cudal1_fx_passes.fusion.grow import Grower, components, element_count
from cudal1_fx_passes.importer.boundary import constant_nodes, is_view, lowering_of
from cudal1_fx_passes.importer.from_fx import ImportedRegion, import_region
from cudal1_fx_passes.importer.layout import can_be_said
from cudal1_fx_passes.importer.lowering import holds_tensors
from cudal1_fx_passes.program.canonical import canonical_form
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    max_ops: int = 48  # operations of a region's program
    min_elements: int = 64  # of a region's largest tensor
    min_nodes: int = 2  # that compute something, in a region of pointwise nodes only
    products: bool = False  # whether convolutions and matrix products begin regions


@dataclass(frozen=True, slots=True)
class Region:
    """One region: its nodes in topological order and its canonical program.

    Inputs, outputs and symbols (one expression a symbolic axis) are in the program's order.
    """

    nodes: tuple[fx.Node, ...]
    program: Program
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    symbols: tuple[sympy.Expr, ...]
    fingerprint: str
    bytes_moved: int  # of all inputs and outputs, at the example's sizes
    imported: ImportedRegion  # before it was put in canonical form


Cuts = tuple[tuple[str, ...], ...]  # around products, of regions by their fingerprints


@dataclass(frozen=True, slots=True)
class Anchor:
    """Ways to cut the same nodes around products, two or three: the widest first, each product by itself last."""

    cuts: tuple[tuple[Region, ...], ...]

    @property
    def fingerprints(self) -> Cuts:
        return tuple(tuple(r.fingerprint for r in cut) for cut in self.cuts)


@dataclass(frozen=True)
class Partition:
    """Regions in an executable order: splice them last to first, or map what was replaced."""

    graph: fx.Graph
    regions: tuple[Region, ...]
    refused: dict[str, str] = field(default_factory=dict)  # call_function node outside -> reason
    anchors: tuple[Anchor, ...] = ()  # where `regions` could be cut in another way too


def partition(graph: fx.Graph, config: PartitionConfig | None = None) -> Partition:
    config = config or PartitionConfig()
    cutter = _Cutter(graph, config)
    regions = cutter.run()
    taken = {n for r in regions for n in r.nodes}
    refused = {n.name: cutter.reason(n) for n in graph.nodes if n.op == "call_function" and n not in taken}
    return Partition(graph, in_order(graph, regions), refused)


def in_order(graph: fx.Graph, regions: Sequence[Region]) -> tuple[Region, ...]:
    """Regions so that each comes after those whose results it needs, directly or through nodes between.

    Raises networkx.NetworkXUnfeasible where two need each other.
    """
    drawn = region_graph(Partition(graph, tuple(regions)))
    names = {f"region {at}": region for at, region in enumerate(regions)}
    position = {name: at for at, name in enumerate(drawn)}
    order = networkx.lexicographical_topological_sort(drawn, key=lambda name: position[name])
    return tuple(names[name] for name in order if name in names)


class _Cutter:
    def __init__(self, graph: fx.Graph, config: PartitionConfig) -> None:
        self.grower = Grower(graph, config.max_ops, config.products)
        self.config = config
        self.reasons: dict[fx.Node, str] = {}
        self.cuts: set[int] = set()
        self.found: list[Region] = []

    def run(self) -> list[Region]:
        sparse = next((n for n in self.grower.nodes if _is_sparse(n)), None)
        if sparse is not None:
            why = f"{sparse} is sparse, and Inductor cannot infer a sparse tensor's metadata again after a change"
            self._refuse(self.grower.nodes, why)
            return []
        if _is_of_elements(self.grower.nodes):
            self._refuse(self.grower.nodes, "a function of single elements, which Inductor inlines")
            return []
        every = {
            i for i, n in enumerate(self.grower.nodes) if self.grower.role[i] is not None and holds_tensors(n)
        }
        self._cut(every - self.grower.constant)
        self.found.sort(key=lambda r: self.grower.index[r.nodes[0]])
        return self.found

    def reason(self, node: fx.Node) -> str:
        if node in self.reasons:
            return self.reasons[node]
        if self.grower.index[node] in self.grower.constant:
            return "a constant, which every region that reads it makes for itself"
        if not holds_tensors(node):
            return "a size, not a tensor"
        if lowering_of(node) is None:
            return f"{node.target} has no lowering"
        if self.grower.role[self.grower.index[node]] is None:
            return "a sum of products, which is left to the library"
        return "a view at the boundary of a region" if is_view(node) else "left over"

    def _cut(self, allowed: Iterable[int]) -> None:
        queue = [set(allowed)]
        while queue:
            for group in self.grower.grow(queue.pop(), self.cuts):
                nodes = strip_views([self.grower.nodes[i] for i in group])
                for part in components(nodes):
                    rest = self._accept(self._with_constants(part))
                    if rest:
                        queue.append(rest)

    def _with_constants(self, nodes: list[fx.Node]) -> list[fx.Node]:
        index = self.grower.index
        found = {index[n] for n in nodes}
        stack = list(found)
        while stack:
            for i in self.grower.before[stack.pop()] & self.grower.constant - found:
                found.add(i)
                stack.append(i)
        return [self.grower.nodes[i] for i in sorted(found)]

    def _accept(self, nodes: list[fx.Node]) -> set[int]:
        """Takes the nodes as a region; returns those that are to be grown anew because it was refused."""
        why = self._too_little(nodes)
        if why is not None:
            self._refuse(nodes, why)
            return set()
        try:
            imported = import_region(nodes, self.config.max_ops)
        except RegionTooWide as refusal:
            return self._retry(nodes, ImportRefused(self._widening(nodes), refusal.reason))
        except ImportRefused as refusal:
            return self._retry(nodes, refusal)
        self.found.append(make_region(nodes, imported))
        return set()

    def _retry(self, nodes: list[fx.Node], refusal: ImportRefused) -> set[int]:
        """First the node starts a region of its own; where that fails too, it stays outside."""
        at = self.grower.index[_maker(next(n for n in nodes if n.name == refusal.node), nodes)]
        allowed = {self.grower.index[n] for n in nodes} - self.grower.constant
        curable = not isinstance(refusal, NodeRefused)
        if curable and at not in self.cuts and self.grower.before[at] & allowed:
            self.cuts.add(at)
        else:
            self._refuse([self.grower.nodes[at]], refusal.reason)
            allowed.discard(at)
            allowed -= self._orphans(at, allowed)
        return allowed

    def _widening(self, nodes: list[fx.Node]) -> str:
        """The first node without which the region would not be too wide."""
        low, high = 0, len(nodes)  # the first `low` nodes are fine, the first `high` are not
        while high - low > 1:
            middle = (low + high) // 2
            try:
                import_region(nodes[:middle])
                low = middle
            except RegionTooWide:
                high = middle
            except ImportRefused:
                low = middle
        return nodes[high - 1].name

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
        computing = [self.grower.index[n] for n in nodes if self.grower.index[n] not in self.grower.constant]
        roles = [role for i in computing if (role := self.grower.role[i]) not in (None, "view")]
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
            if self.grower.index[node] not in self.grower.constant:
                self.reasons[node] = why


def _is_sparse(node: fx.Node) -> bool:
    val = node.meta.get("val")
    return node.op == "call_function" and isinstance(val, torch.Tensor) and val.layout is not torch.strided


def _is_of_elements(nodes: Sequence[fx.Node]) -> bool:
    """Whether all that a graph computes are single elements, as the functions that FlexAttention is given."""
    made = [n.meta.get("val") for n in nodes if n.op == "call_function"]
    tensors = [x for x in made if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(x.dim() == 0 for x in tensors)


def _maker(node: fx.Node, nodes: Sequence[fx.Node]) -> fx.Node:
    """The node itself; of one result of a node with several, that node: its results stay with it."""
    source = node.args[0] if node.target is operator.getitem else None
    return source if isinstance(source, fx.Node) and source in nodes and not is_view(node) else node


def make_region(nodes: Sequence[fx.Node], imported: ImportedRegion) -> Region:
    """The region in canonical order."""
    form = canonical_form(imported.program)
    sizes = iter(imported.symbols)
    symbol_of = {a.name: next(sizes) for a in imported.program.axes if a.symbolic}
    return Region(
        nodes=tuple(nodes),
        program=form.program,
        inputs=tuple(imported.inputs[i] for i in form.input_order),
        outputs=tuple(imported.outputs[i] for i in form.output_order),
        symbols=tuple(symbol_of[a] for a in form.axis_order if a in symbol_of),
        fingerprint=hashlib.sha256(print_program(form.program).encode()).hexdigest(),
        bytes_moved=bytes_moved(imported),
        imported=imported,
    )


def strip_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Drops views whose results nothing inside reads, and views of outside tensors.

    A view of an outside tensor stays where something inside reads that tensor too, so that the region reads
    one tensor and not two; where it copies; and where a program cannot say its strides.
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
    return not shared and not copies(node) and _readable(node)


def _readable(node: fx.Node) -> bool:
    val = node.meta["val"]
    return all(
        can_be_said(x) for x in (val if isinstance(val, (tuple, list)) else [val]) if isinstance(x, torch.Tensor)
    )


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
    except (RuntimeError, ValueError):  # which one depends on what traces
        return True
    return False


def bytes_moved(imported: ImportedRegion) -> int:
    total = 0
    for node in {*imported.inputs, *imported.outputs}:
        total += element_count(node) * int(node.meta["val"].element_size())
    return total


def region_graph(found: Partition) -> networkx.DiGraph[str]:
    """Regions (`region 0` ...) and the computing nodes outside them; an edge is a tensor that passes."""
    drawn: networkx.DiGraph[str] = networkx.DiGraph()
    owner: dict[fx.Node, str] = {}
    for at, region in enumerate(found.regions):
        name = f"region {at}"
        drawn.add_node(name, kind="region", ops=len(region.program.ops), bytes=region.bytes_moved)
        owner |= dict.fromkeys(region.nodes, name)
    constants = constant_nodes(list(found.graph.nodes))  # made where they are read
    for node in constants:
        owner.pop(node, None)
    for node in found.graph.nodes:
        if node.op != "call_function" or node in constants:
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
