"""Grows fusion groups of an FX graph's nodes: convex, connected, and sensible to compute in one kernel.

Nodes are visited in order; each joins the groups of its producers where the policy agrees and no path leads
from the group to the node through another group (that would make a cycle). Linear but for the path search, which
is pruned by the order of the nodes.

Fusion policy. Pointwise work follows its producers and consumers. A reduction joins its producers, and what
is computed from it joins while it stays on the reduced axes or comes back to the space that was reduced (softmax,
norms). A second reduction joins one that it depends on where it reduces the same space in the same way,
or what the first left over (cross entropy). A product begins a group, which holds no second one. Groups that
read the same large tensor and depend on one another in no way are joined at the end (the two halves of a norm's
backward).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import fx

from cudal1_fx_passes.importer.boundary import constant_nodes, lowering_of
from cudal1_fx_passes.importer.lowering import Role, hint
from cudal1_fx_passes.importer.unify import AxisConflict

MUCH_SMALLER = 16  # a second iteration space may join where it is this many times smaller
LARGE = 1024  # elements: sharing a smaller tensor is no reason to join


@dataclass(frozen=True, slots=True)
class Reduction:
    """Sizes of what a reduction reads and of what it leaves, in elements."""

    read: int
    left: int


@dataclass(slots=True)
class Group:
    weight: int
    first: int
    last: int
    members: list[int]
    reductions: set[Reduction]
    before: set[int]  # nodes that feed it
    after: set[int]  # nodes that it feeds
    cuts: set[int] = field(default_factory=set)
    products: int = 0


class Grower:
    """The graph as integers, and the groups found so far."""

    def __init__(self, graph: fx.Graph, max_weight: int, products: bool = False) -> None:
        self.nodes = list(graph.nodes)
        self.index = {n: i for i, n in enumerate(self.nodes)}
        self.max_weight = max_weight
        self.before = [{self.index[a] for a in n.all_input_nodes} for n in self.nodes]
        self.after = [{self.index[u] for u in n.users} for n in self.nodes]
        self.numel = [element_count(n) for n in self.nodes]
        self.role: list[Role | None] = []
        self.weight: list[int] = []
        for n in self.nodes:
            found = lowering_of(n)
            if found is not None and found.role == "product" and not products:
                found = None
            self.role.append(None if found is None else found.role)
            self.weight.append(0 if found is None else found.weight)
        self.constant = {self.index[n] for n in constant_nodes(self.nodes)}

    def grow(self, allowed: Iterable[int], cuts: set[int] | None = None) -> list[list[int]]:
        """Groups of the allowed nodes, each a sorted list. A node in `cuts` never joins its producers."""
        return _Growth(self, set(allowed), cuts or set()).run()


def element_count(node: fx.Node) -> int:
    """Elements of a node's largest result; 0 where it has no tensor or the size is unknown."""
    val = node.meta.get("val")
    found = 0
    for x in val if isinstance(val, (tuple, list)) else [val]:
        if isinstance(x, torch.Tensor):
            count = 1
            try:
                for size in x.shape:
                    count *= hint(size)
            except AxisConflict:
                return 0
            found = max(found, count)
    return found


class _Growth:
    def __init__(self, grower: Grower, allowed: set[int], cuts: set[int]) -> None:
        self.g = grower
        self.allowed = allowed
        self.cuts = cuts
        self.root = list(range(len(grower.nodes)))
        self.groups = {i: self._single(i) for i in sorted(allowed)}
        self.tainted: dict[int, frozenset[Reduction]] = {}

    def run(self) -> list[list[int]]:
        for j in sorted(self.allowed):
            if j not in self.cuts and self.g.role[j] != "product":
                for i in sorted(self.g.before[j], reverse=True):
                    if i in self.allowed:
                        self._try_join(i, j)
            self.tainted[j] = self._taint(j)
        self._join_siblings()
        return [sorted(group.members) for group in self.groups.values()]

    def _single(self, i: int) -> Group:
        product = self.g.role[i] == "product"
        cuts = {i} if product else {i} & self.cuts
        reduction = self._reduction(i)
        reductions = {reduction} if reduction is not None else set()
        return Group(
            self.g.weight[i], i, i, [i], reductions, set(self.g.before[i]), set(self.g.after[i]), cuts, product
        )

    def _find(self, i: int) -> int:
        while self.root[i] != i:
            self.root[i] = self.root[self.root[i]]
            i = self.root[i]
        return i

    def _reduction(self, j: int) -> Reduction | None:
        if self.g.role[j] not in ("reduce", "scan"):
            return None
        read = max((self.g.numel[i] for i in self.g.before[j]), default=0)
        left = self.g.numel[j]
        return Reduction(read, left if left < read else 0)  # a scan or a whole softmax leaves nothing smaller

    def _taint(self, j: int) -> frozenset[Reduction]:
        """The reductions of its own group on which a node depends, itself included."""
        found: set[Reduction] = set()
        for i in self.g.before[j]:
            if i in self.allowed and self._find(i) == self._find(j):
                found |= self.tainted[i]
        own = self._reduction(j)
        return frozenset(found if own is None else found | {own})

    # joining

    def _try_join(self, i: int, j: int) -> None:
        a, b = self._find(i), self._find(j)
        if a != b and self._agrees(i, j) and self._may_unite(a, b) and not self._detour(a, b):
            self._unite(a, b)

    def _agrees(self, i: int, j: int) -> bool:
        """Whether the consumer j may be computed with its producer i."""
        tainted = self.tainted[i]
        if not tainted:
            return True
        reduction = self._reduction(j)
        if reduction is not None:
            return all(t == reduction or reduction.read <= t.left for t in tainted)
        if self.g.numel[j] > self.g.numel[i]:
            return self.g.numel[j] <= max(t.read for t in tainted)
        return True

    def _may_unite(self, a: int, b: int) -> bool:
        x, y = self.groups[a], self.groups[b]
        if x.weight + y.weight > self.g.max_weight or x.products + y.products > 1:
            return False
        for p, q in ((x, y), (y, x)):
            members = set(q.members) if p.cuts else set()
            if any(self.g.before[c] & members for c in p.cuts):
                return False
        return all(_same_space(r, s) for r in x.reductions for s in y.reductions)

    def _detour(self, a: int, b: int) -> bool:
        """Whether a path leads from group a to group b through anything else."""
        limit = self.groups[b].last
        stack = [s for s in {self._find(s) for s in self.groups[a].after} if s not in (a, b)]
        seen = set(stack)
        while stack:
            x = stack.pop()
            for s in {self._find(s) for s in self._after(x)}:
                if s == b:
                    return True
                if s not in seen and s not in (x, a) and self._first(s) < limit:
                    seen.add(s)
                    stack.append(s)
        return False

    def _after(self, x: int) -> set[int]:
        return self.groups[x].after if x in self.groups else self.g.after[x]

    def _first(self, x: int) -> int:
        return self.groups[x].first if x in self.groups else x

    def _unite(self, a: int, b: int) -> None:
        x, y = self.groups[a], self.groups.pop(b)
        self.root[b] = a
        x.weight += y.weight
        x.first, x.last = min(x.first, y.first), max(x.last, y.last)
        x.members += y.members
        x.reductions |= y.reductions
        x.before |= y.before
        x.after |= y.after
        x.cuts |= y.cuts
        x.products += y.products

    # groups that read the same tensor

    def _join_siblings(self) -> None:
        for i in range(len(self.g.nodes)):
            if self.g.numel[i] < LARGE or len(self.g.after[i]) < 2:
                continue
            roots = sorted({self._find(u) for u in self.g.after[i] if u in self.allowed})
            for at, a in enumerate(roots):
                for b in roots[at + 1 :]:
                    a, b = self._find(a), self._find(b)
                    if a != b and self._are_siblings(a, b, i):
                        self._unite(a, b)

    def _are_siblings(self, a: int, b: int, shared: int) -> bool:
        """Whether two groups walk over the same large tensor and one of them reduces it."""
        x, y = self.groups[a], self.groups[b]
        spaces = [{r.read for r in g.reductions} | {max(self.g.numel[m] for m in g.members)} for g in (x, y)]
        if not (x.reductions or y.reductions) or not all(self.g.numel[shared] in s for s in spaces):
            return False
        if (
            not x.reductions <= y.reductions
            and not y.reductions <= x.reductions
            and not (x.reductions and y.reductions)
        ):
            return False
        return self._may_unite(a, b) and not self._linked(a, b) and not self._linked(b, a)

    def _linked(self, a: int, b: int) -> bool:
        """Whether any path leads from a to b."""
        return any(self._find(s) == b for s in self.groups[a].after) or self._detour(a, b)


def _same_space(r: Reduction, s: Reduction) -> bool:
    small, large = sorted((r.read, s.read))
    return small == large or small * MUCH_SMALLER <= large or r.read <= s.left or s.read <= r.left


def components(nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """Splits nodes into connected parts; nodes that read the same large tensor count as connected."""
    inside = set(nodes)
    root = {n: n for n in nodes}

    def find(n: fx.Node) -> fx.Node:
        while root[n] is not n:
            root[n] = root[root[n]]
            n = root[n]
        return n

    first_reader: dict[fx.Node, fx.Node] = {}
    for n in nodes:
        for a in n.all_input_nodes:
            if a in inside:
                root[find(n)] = find(a)
            elif element_count(a) >= LARGE:
                root[find(n)] = find(first_reader.setdefault(a, n))
    parts: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for n in nodes:
        parts[find(n)].append(n)
    return list(parts.values())
