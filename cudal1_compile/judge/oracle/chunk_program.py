"""The program of one chunk: what of every value is needed for parts of some results, as a program of its own.

    program + TARGETS (a part of a result each) -> chunk_of() -> Chunk(program, where each of its values lies)

A value is needed in a BOX, a range of each of its axes, by interval arithmetic over the indices that read it
(windows need a halo); read in two boxes it is computed twice. A range that is not a whole axis becomes an axis of
its own, and indices are counted from where a box begins, so that out of bounds is what was so in the whole.
Reductions that are KEPT (their results are known) and scans that are CARRIED (what lies before is known) end the
search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cudal1_fx_passes.program.ir import Axis, Index, Input, Literal, Op, Operand, Output, Program, Ref

Range = tuple[int, int]
Ranges = Mapping[str, Range]  # by axis

TERMS = "@terms"  # the input that stands in for the terms of kept reductions
_ONE = "@1"  # its axis, of one element


class NoChunks(ValueError):
    """A value of which no part can be had without the whole; the sentence names the operation."""


@dataclass(frozen=True, slots=True)
class Target:
    """A part of a value; `in_parts`: of a reduction or scan, the part of its terms that lies in these ranges."""

    value: str
    ranges: dict[str, Range]
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
    ranges: dict[str, Range]
    kept: bool = False


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
    search = _Search(program, known)
    return search.chunk(tuple(search.add(t) for t in targets))


class _Search:
    def __init__(self, program: Program, known: Known) -> None:
        self._p, self._known = program, known
        self._extent = {a.name: a.size for a in program.axes}
        self._inputs = {i.name: i for i in program.inputs}
        self._axes: dict[str, dict[str, int]] = {a.name: {a.name: a.size} for a in program.axes}
        self._found: dict[tuple[str, tuple[Range, ...]], str] = {}
        self._places: dict[str, Place] = {}
        self._made: list[Input | Op] = []

    def add(self, target: Target) -> str:
        if target.in_parts:
            return self._compute(self._p.op[target.value], target.ranges, f"{target.value}@part")
        return self._need(target.value, target.ranges)

    def chunk(self, targets: tuple[str, ...]) -> Chunk:
        axes = [Axis(name, size) for local in self._axes.values() for name, size in local.items()]
        inputs = (Input(TERMS, "f32", (_ONE,)), *(x for x in self._made if isinstance(x, Input)))
        ops = tuple(x for x in self._made if isinstance(x, Op))
        axes_of = {x.name: x.axes for x in self._made if not x.name.endswith("@part")}
        outputs = [Output(f"out{n}", name, axes_of[name]) for n, name in enumerate(targets) if name in axes_of]
        none = Output("none", TERMS, (_ONE,))
        program = Program((*axes, Axis(_ONE, 1)), inputs, ops, tuple(outputs) or (none,))
        return Chunk(program, self._places, targets)

    def _need(self, name: str, ranges: Ranges) -> str:
        """A value in these ranges; of a scan that is carried from where that is known."""
        box = {a: ranges[a] for a in self._p.value_axes[name]}
        op = self._p.op.get(name)
        if op is not None and name in self._known.carried:
            lo, hi = box[op.over[0]]
            box[op.over[0]] = (lo - lo % self._known.carried[name], hi)
        key = (name, tuple(box.values()))
        if key not in self._found:
            label = f"{name}#{len(self._found)}" if name in self._places else name
            if op is None:
                axes = tuple(self._local(a, box[a]) for a in self._inputs[name].axes)
                self._note(replace(self._inputs[name], name=label, axes=axes, strides=None), Place(name, box))
            elif name in self._known.kept:
                self._note(self._standing_in(op, box, label), Place(name, box, kept=True))
            else:
                self._compute(op, {a: (0, self._extent[a]) for a in op.over} | box, label)
            self._found[key] = label
        return self._found[key]

    def _note(self, made: Input | Op, place: Place) -> None:
        self._made.append(made)
        self._places[made.name] = place

    def _local(self, axis: str, found: Range) -> str:
        """The name of the axis that a range of an axis is."""
        name = axis if found == (0, self._extent[axis]) else f"{axis}@{found[0]}:{found[1]}"
        self._axes[axis][name] = found[1] - found[0]
        return name

    def _standing_in(self, op: Op, box: Ranges, label: str) -> Op:
        """A kept reduction, over one element that is never read."""
        axes = tuple(self._local(a, box[a]) for a in op.axes)
        terms = Ref(TERMS, ((_ONE, Index(tuple((1, a) for a in (*axes, _ONE)))),))
        operands = tuple(x if isinstance(x, Literal) else terms for x in op.operands)
        return replace(op, name=label, axes=axes, operands=operands, over=(_ONE,))

    def _compute(self, op: Op, spans: Ranges, label: str) -> str:
        operands = tuple(self._read(op, x, spans) for x in op.operands)
        axes, over = (tuple(self._local(a, spans[a]) for a in axes) for axes in (op.axes, op.over))
        self._note(replace(op, name=label, axes=axes, operands=operands, over=over), Place(op.name, dict(spans)))
        return label

    def _read(self, op: Op, x: Operand, spans: Ranges) -> Operand:
        if isinstance(x, Literal):
            return x
        access = dict(x.access)
        if x.name in x.index_values:
            raise NoChunks(f"{op.name}: {x.name} is read at its own values, so that it is needed as a whole")
        needed = {
            a: self._range(a, access[a], spans) if a in access else spans[a] for a in self._p.value_axes[x.name]
        }
        name = self._need(x.name, needed)
        found = {a: self._index(op, access.get(a), a, spans, self._places[name].ranges[a]) for a in needed}
        local = {self._local(a, self._places[name].ranges[a]): index for a, index in found.items()}
        return Ref(name, tuple(sorted((a, index) for a, index in local.items() if index is not None)))

    def _range(self, axis: str, index: Index, spans: Ranges) -> Range:
        """Which elements along an axis an index may read; one where all are out of bounds."""
        extent = self._extent[axis]
        if index.value is not None:
            return 0, extent
        ends = [sorted((c * spans[a][0], c * (spans[a][1] - 1))) for c, a in index.terms]
        lo, hi = ((index.offset + sum(end[k] for end in ends)) // index.divisor for k in (0, 1))
        return min(max(lo, 0), extent - 1), max(min(hi, extent - 1), 0) + 1

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
        name = self._need(value, spans)
        if any(self._places[name].ranges[a] != spans[a] for a in self._p.value_axes[value]):
            raise NoChunks(f"{op.name}: it is read at {value}, a scan that is not known where the chunk begins")
        return name
