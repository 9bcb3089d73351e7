"""Weisfeiler-Lehman refinement of labels, for the canonical order: what something is, its operands, its readers.

Every round hashes values upward (from their operands) and downward (from their readers), then axes from
the positions where they stand; rounds repeat until no class splits. Ties are then broken one at a time:
inputs first, then outputs, then axes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from cudal1_fx_passes.program.ir import Index, Literal, Op, Operand, Ref
from cudal1_fx_passes.program.merge import Parts
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.simplify import commutative_count


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@dataclass
class Labels:
    """Labels of axes and values by name and of outputs by number."""

    axes: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    reads: dict[Index, str] = field(
        default_factory=dict
    )  # labels of indices by axes alone, while axes keep theirs

    def operand(self, x: Operand) -> str:
        if isinstance(x, Literal):
            return _hash(type(x.value).__name__, x.value)
        return _hash(self.values[x.name], sorted((self.axes[a], self.index(i)) for a, i in x.access))

    def index(self, index: Index) -> str:
        if index.value is not None:
            return _hash("value", self.values[index.value])
        known = self.reads.get(index)
        if known is None:
            known = _hash(sorted((c, self.axes[a]) for c, a in index.terms), index.offset, index.divisor)
            self.reads[index] = known
        return known

    def classes(self) -> int:
        return len(set(self.axes.values())) + len(set(self.values.values())) + len(set(self.outputs))


def refine_labels(parts: Parts) -> Labels:
    """Returns labels that tell everything apart that is not symmetric."""
    labels = Labels({a.name: _hash(a.name[0], a.symbolic, a.size) for a in parts.axes})
    _refine_until_stable(parts, labels, {})
    return labels


def break_ties(parts: Parts, refined: Labels) -> Labels:
    """Further labels, which tell symmetric things apart too; `refined` stays as it is."""
    labels = Labels(refined.axes, refined.values, refined.outputs)
    tags: dict[str, str] = {}
    while (tied := _tied(parts, labels)) is not None:
        if tied in labels.axes:
            labels.axes = labels.axes | {tied: _hash("first", labels.axes[tied])}
        else:
            tags[tied] = "first" + tags.get(tied, "")
        _refine_until_stable(parts, labels, tags)
    return labels


def _tied(parts: Parts, labels: Labels) -> str | None:
    """One member of the smallest class of several inputs, outputs or axes."""
    groups = [
        [(labels.values[i.name], i.name) for i in parts.inputs],
        [(label, o.name) for label, o in zip(labels.outputs, parts.outputs, strict=True)],
        [(labels.axes[a.name], a.name) for a in parts.axes],
    ]
    for group in groups:
        count = Counter(label for label, _ in group)
        tied = min((item for item in group if count[item[0]] > 1), default=None, key=lambda item: item[0])
        if tied is not None:
            return tied[1]
    return None


def _refine_until_stable(parts: Parts, labels: Labels, tags: dict[str, str]) -> None:
    before = 0
    while True:
        _refinement_round(parts, labels, tags)
        now = labels.classes()
        if now == before:
            return
        before = now


def _refinement_round(parts: Parts, labels: Labels, tags: dict[str, str]) -> None:
    labels.reads = {}
    up = _upward(parts, labels, tags)
    labels.values = up
    down, outputs = _downward(parts, labels, up, tags)
    labels.values, labels.outputs = down, outputs
    labels.axes = _axes(parts, labels)
    labels.reads = {}


def _upward(parts: Parts, labels: Labels, tags: dict[str, str]) -> dict[str, str]:
    up: dict[str, str] = {}
    here = Labels(labels.axes, up, reads=labels.reads)
    for i in parts.inputs:
        axes = [labels.axes[a] for a in i.axes]
        d = i.domain
        below = None if d.below is None else labels.axes[d.below]
        domain = (d.lo, d.hi, d.lo_open, below)
        up[i.name] = _hash("in", i.dtype, axes, i.strides, domain, tags.get(i.name), labels.values.get(i.name))
    for o in parts.ops:
        up[o.name] = _hash(o.fn, o.dtype, _over(o, labels), _operands(o, here), labels.values.get(o.name))
    return up


def _operands(o: Op, labels: Labels) -> list[str]:
    found = [labels.operand(x) for x in o.operands]
    count = commutative_count(o)
    return sorted(found[:count]) + found[count:]


def _over(o: Op, labels: Labels) -> list[str]:
    found = [labels.axes[a] for a in o.over]
    return found if o.fn in ("argmax", "argmin") else sorted(found)


def _downward(
    parts: Parts, labels: Labels, up: dict[str, str], tags: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    readers: dict[str, list[str]] = defaultdict(list)
    outputs = []
    for o in parts.outputs:
        outputs.append(_hash("out", up[o.value], [labels.axes[a] for a in o.axes], o.strides, tags.get(o.name)))
        readers[o.value].append(outputs[-1])
    down: dict[str, str] = {}
    for op in reversed(parts.ops):
        down[op.name] = _hash(up[op.name], sorted(readers[op.name]))
        count = commutative_count(op)
        for at, x in enumerate(op.operands):
            if not isinstance(x, Ref):
                continue
            position = "any" if at < count else str(at)
            access = sorted((labels.axes[a], labels.index(i)) for a, i in x.access)
            readers[x.name].append(_hash(down[op.name], position, access))
            for axis, index in x.access:
                if index.value is not None:
                    readers[index.value].append(_hash(down[op.name], position, "index", labels.axes[axis]))
    for i in parts.inputs:
        down[i.name] = _hash(up[i.name], sorted(readers[i.name]))
    final = [_hash(label, down[o.value]) for label, o in zip(outputs, parts.outputs, strict=True)]
    return down, final


def _axes(parts: Parts, labels: Labels) -> dict[str, str]:
    positions: dict[str, list[str]] = defaultdict(list)
    for i in parts.inputs:
        for at, axis in enumerate(i.axes):
            positions[axis].append(_hash(labels.values[i.name], at))
        if i.domain.below is not None:
            positions[i.domain.below].append(_hash(labels.values[i.name], "below"))
    for label, o in zip(labels.outputs, parts.outputs, strict=True):
        for at, axis in enumerate(o.axes):
            positions[axis].append(_hash(label, at))
    for op in parts.ops:
        _positions_of(op, labels, positions)
    return {name: _hash(old, sorted(positions[name])) for name, old in labels.axes.items()}


def _positions_of(op: Op, labels: Labels, positions: dict[str, list[str]]) -> None:
    label = labels.values[op.name]
    ordered = op.fn in ("argmax", "argmin") or OPS[op.fn].kind in (Kind.SCAN, Kind.IOTA)
    for at, axis in enumerate(op.over):
        positions[axis].append(_hash(label, "over", at if ordered else 0))
    count = commutative_count(op)
    for at, x in enumerate(op.operands):
        if not isinstance(x, Ref):
            continue
        position = "any" if at < count else at
        for axis, index in x.access:
            positions[axis].append(_hash(label, position, "read", labels.values[x.name], labels.index(index)))
            for coefficient, term in index.terms:
                positions[term].append(
                    _hash(label, position, "term", labels.values[x.name], labels.axes[axis], coefficient)
                )
