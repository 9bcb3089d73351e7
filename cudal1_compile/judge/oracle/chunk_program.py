"""The program of one chunk: what of every value is needed for parts of some results, as a program of its own.

    program + TARGETS (a part of a result each) -> chunk_of() -> Chunk(program, where each of its values lies)

A value is needed in a BOX, a range of each of its axes, by interval arithmetic over the indices that read it
(windows need a halo); boxes that meet are one, else the value is computed in each. A range that is not a whole
axis becomes an axis of its own, and indices are counted from where a box begins, so that out of bounds is what was
so in the whole. Reductions that are KEPT (their results are known) and scans that are CARRIED (what lies before is
known) end the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from cudal1_fx_passes.program.ir import Axis, Index, Input, Literal, Op, Output, Program, Ref

Range = tuple[int, int]
Ranges = Mapping[str, Range]  # by axis
Box = dict[str, Range]

TERMS = "@terms"  # the input that stands in for the terms of kept reductions
_ONE = "@1"  # its axis, of one element


class NoChunks(ValueError):
    """A value of which no part can be had without the whole; the sentence names the operation."""


@dataclass(frozen=True, slots=True)
class Target:
    """A part of a value; `in_parts`: of a reduction or scan, the part of its terms that lies in these ranges."""

    value: str
    ranges: Box
    in_parts: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """kept: reductions whose results are known. carried: scans, with the distance of the places that are known."""

    kept: frozenset[str] = frozenset()
    carried: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of which value of the program a value is. ranges: of its axes and of those that it sums."""

    source: str
    ranges: Box
    kept: bool = False
    in_parts: bool = False  # only some of its terms


@dataclass(frozen=True, slots=True)
class Chunk:
    program: Program
    places: Mapping[str, Place]  # of its inputs and operations, TERMS excepted
    targets: tuple[str, ...]  # the targets' names in the program


def sized(program: Program, sizes: Mapping[str, int]) -> Program:
    """The program with these sizes of its axes, none of them symbolic."""
    axes = tuple(replace(a, size=sizes.get(a.name, a.size), symbolic=False) for a in program.axes)
    return replace(program, axes=axes)


def chunk_of(program: Program, targets: Iterable[Target], known: Known) -> Chunk:
    """Raises NoChunks."""
    return _Search(program, known).chunk(tuple(targets))


class _Search:
    """From the targets up to the inputs for what is needed, then down again to name it."""

    def __init__(self, program: Program, known: Known) -> None:
        self._p, self._known = program, known
        self._extent = {a.name: a.size for a in program.axes}
        self._axes: dict[str, dict[str, int]] = {a.name: {a.name: a.size} for a in program.axes}
        self._needed: dict[str, list[Box]] = {name: [] for name in program.value_axes}
        self._exact: dict[str, list[Box]] = {name: [] for name in program.value_axes}  # as they are
        self._labels: dict[str, dict[str, Box]] = {}  # of a value: where each part of it lies
        self._places: dict[str, Place] = {}
        self._made: list[Input | Op] = []

    def chunk(self, targets: Sequence[Target]) -> Chunk:
        parts = {t.value: t.ranges for t in targets if t.in_parts}
        for target in targets:
            if not target.in_parts:
                self._need(target.value, target.ranges)
        for op in reversed(self._p.ops):
            self._search(op, parts.get(op.name))
        for item in self._p.inputs:
            self._add_input(item)
        for op in self._p.ops:
            self._add(op, parts.get(op.name))
        names = tuple(_part(t.value) if t.in_parts else self._holder(t.value, t.ranges) for t in targets)
        return Chunk(self._program(names), self._places, names)

    def _program(self, targets: tuple[str, ...]) -> Program:
        axes = [Axis(name, size) for local in self._axes.values() for name, size in local.items()]
        inputs = (Input(TERMS, "f32", (_ONE,)), *(x for x in self._made if isinstance(x, Input)))
        ops = tuple(x for x in self._made if isinstance(x, Op))
        axes_of = {x.name: x.axes for x in self._made if not self._places[x.name].in_parts}
        outputs = [Output(f"out{n}", name, axes_of[name]) for n, name in enumerate(targets) if name in axes_of]
        none = Output("none", TERMS, (_ONE,))
        return Program((*axes, Axis(_ONE, 1)), inputs, ops, tuple(outputs) or (none,))

    # what is needed

    def _search(self, op: Op, part: Ranges | None) -> None:
        self._labels[op.name] = self._joined(op.name)
        boxes = () if op.name in self._known.kept else self._labels[op.name].values()
        for spans in (*(self._spans(op, box) for box in boxes), *([part] if part is not None else [])):
            for x in op.operands:
                if isinstance(x, Ref):
                    self._search_operand(op, x, spans)

    def _search_operand(self, op: Op, x: Ref, spans: Ranges) -> None:
        if x.name in x.index_values:
            raise NoChunks(f"{op.name}: {x.name} is read at its own values, so that it is needed as a whole")
        self._need(x.name, self._reach(x, spans))
        for value in x.index_values:
            self._exact[value].append({a: spans[a] for a in self._p.value_axes[value]})

    def _spans(self, op: Op, box: Box) -> Box:
        return {a: (0, self._extent[a]) for a in op.over} | box

    def _need(self, name: str, ranges: Ranges) -> None:
        """A value in these ranges; of a scan that is carried from where that is known."""
        box = {a: ranges[a] for a in self._p.value_axes[name]}
        if name in self._known.carried:
            axis = self._p.op[name].over[0]
            box[axis] = (box[axis][0] - box[axis][0] % self._known.carried[name], box[axis][1])
        self._needed[name].append(box)

    def _joined(self, name: str) -> dict[str, Box]:
        """Boxes that hold all that is needed of a value, by name; two are one where that is no more to compute."""
        found: list[Box] = []
        for box in self._needed[name]:
            for n, other in enumerate(found):
                hull = {a: (min(box[a][0], other[a][0]), max(box[a][1], other[a][1])) for a in box}
                if _volume(hull) <= _volume(box) + _volume(other):
                    found[n] = hull
                    break
            else:
                found.append(box)
        found += [box for n, box in enumerate(self._exact[name]) if box not in (*found, *self._exact[name][:n])]
        return {f"{name}#{n}" if n else name: box for n, box in enumerate(found)}

    def _reach(self, x: Ref, spans: Ranges) -> Box:
        """Which part of an operand is read."""
        access = dict(x.access)
        axes = self._p.value_axes[x.name]
        return {a: self._range(a, access[a], spans) if a in access else spans[a] for a in axes}

    def _range(self, axis: str, index: Index, spans: Ranges) -> Range:
        """Which elements along an axis an index may read; one where all are out of bounds."""
        extent = self._extent[axis]
        if index.value is not None:
            return 0, extent
        ends = [sorted((c * spans[a][0], c * (spans[a][1] - 1))) for c, a in index.terms]
        lo, hi = ((index.offset + sum(end[k] for end in ends)) // index.divisor for k in (0, 1))
        return min(max(lo, 0), extent - 1), max(min(hi, extent - 1), 0) + 1

    # what is made of it

    def _holder(self, name: str, wanted: Ranges) -> str:
        """The name of the part of a value that has these ranges."""
        return next(
            label
            for label, box in self._labels[name].items()
            if all(box[a][0] <= wanted[a][0] and wanted[a][1] <= box[a][1] for a in box)
        )

    def _note(self, made: Input | Op, place: Place) -> None:
        self._made.append(made)
        self._places[made.name] = place

    def _local(self, axis: str, found: Range) -> str:
        """The name of the axis that a range of an axis is."""
        name = axis if found == (0, self._extent[axis]) else f"{axis}@{found[0]}:{found[1]}"
        self._axes[axis][name] = found[1] - found[0]
        return name

    def _add_input(self, item: Input) -> None:
        self._labels[item.name] = self._joined(item.name)
        for label, box in self._labels[item.name].items():
            axes = tuple(self._local(a, box[a]) for a in item.axes)
            self._note(replace(item, name=label, axes=axes, strides=None), Place(item.name, box))

    def _add(self, op: Op, part: Ranges | None) -> None:
        for label, box in self._labels[op.name].items():
            if op.name in self._known.kept:
                self._note(self._standing_in(op, box, label), Place(op.name, box, kept=True))
            else:
                self._note(self._cut(op, self._spans(op, box), label), Place(op.name, self._spans(op, box)))
        if part is not None:
            self._note(self._cut(op, part, _part(op.name)), Place(op.name, dict(part), in_parts=True))

    def _standing_in(self, op: Op, box: Box, label: str) -> Op:
        """A kept reduction, over one element that is never read."""
        axes = tuple(self._local(a, box[a]) for a in op.axes)
        terms = Ref(TERMS, ((_ONE, Index(tuple((1, a) for a in (*axes, _ONE)))),))
        operands = tuple(x if isinstance(x, Literal) else terms for x in op.operands)
        return replace(op, name=label, axes=axes, operands=operands, over=(_ONE,))

    def _cut(self, op: Op, spans: Ranges, label: str) -> Op:
        operands = tuple(self._read(op, x, spans) if isinstance(x, Ref) else x for x in op.operands)
        axes, over = (tuple(self._local(a, spans[a]) for a in axes) for axes in (op.axes, op.over))
        return replace(op, name=label, axes=axes, operands=operands, over=over)

    def _read(self, op: Op, x: Ref, spans: Ranges) -> Ref:
        access, name = dict(x.access), self._holder(x.name, self._reach(x, spans))
        held = self._places[name].ranges
        found = {a: self._index(op, access.get(a), a, spans, held[a]) for a in self._p.value_axes[x.name]}
        local = {self._local(a, held[a]): index for a, index in found.items()}
        return Ref(name, tuple(sorted((a, index) for a, index in local.items() if index is not None)))

    def _index(self, op: Op, index: Index | None, axis: str, spans: Ranges, held: Range) -> Index | None:
        """An index within what is held along an axis; None: its own."""
        if index is None:
            if held == spans[axis]:
                return None
            return Index(((1, self._local(axis, spans[axis])),), spans[axis][0] - held[0])
        if index.value is not None:
            return replace(index, value=self._index_value(op, index.value, spans))
        start = sum(c * spans[a][0] for c, a in index.terms) - index.divisor * held[0]
        terms = tuple((c, self._local(a, spans[a])) for c, a in index.terms)
        return replace(index, terms=terms, offset=index.offset + start)

    def _index_value(self, op: Op, value: str, spans: Ranges) -> str:
        wanted = {a: spans[a] for a in self._p.value_axes[value]}
        step = self._known.carried.get(value)
        if step and wanted[self._p.op[value].over[0]][0] % step:
            raise NoChunks(f"{op.name}: it is read at {value}, a scan that is not known where the chunk begins")
        return next(label for label, box in self._labels[value].items() if box == wanted)


def _part(name: str) -> str:
    return f"{name}@part"


def _volume(box: Box) -> int:
    return prod(hi - lo for lo, hi in box.values())
