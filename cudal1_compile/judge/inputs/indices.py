"""What integer inputs may hold beyond their declared domain: which of them serve as indices, which have a marker.

    t1 = where(ne(in1, -100), in1, 0);  read x[d1=t1]     ->  in1 in [0, d1), or -100

An input that ends up as an index must lie within the axis that it indexes, even where its domain does not say
so; but beyond it where a clamp takes care of that. A literal that it is compared with for equality (a label to
be ignored) is a value that callers pass, so it is tried too, unless the input indexes without a `where` in
between, which would read out of bounds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Literal, Op, Operand, Program, Ref

_CARRIES = ("where", "cast", "maximum", "minimum")
_MOVES = (*_CARRIES, "add", "sub", "neg")  # by a little, as in `arange + 1 <= length`
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
_ON_NUMBERS: dict[str, Callable[..., int]] = _ARITHMETIC | {
    "cast": int,
    "neg": operator.neg,
    "maximum": max,
    "minimum": min,
    **{fn: getattr(operator, fn) for fn in _COMPARISONS},
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_not": operator.not_,
    "where": lambda condition, a, b: a if condition else b,
}
BEYOND = 8  # an end that a clamp leaves open is tried as far


@dataclass(frozen=True, slots=True)
class IndexRange:
    """What an input that serves as an index may be, ends included; an open end lies behind a clamp."""

    lo: int
    hi: int
    lo_open: bool = False
    hi_open: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the input may be anything."""
        return self.lo_open and self.hi_open

    def moved(self, low: int, high: int) -> IndexRange:
        return replace(self, lo=self.lo + low, hi=self.hi + high)

    def negated(self) -> IndexRange:
        return IndexRange(-self.hi, -self.lo, self.hi_open, self.lo_open)

    def __and__(self, other: IndexRange) -> IndexRange:
        """What both allow: an end is open where it is for both."""
        lows = [r.lo for r in (self, other) if not r.lo_open]
        highs = [r.hi for r in (self, other) if not r.hi_open]
        return IndexRange(
            max(lows, default=min(self.lo, other.lo)),
            min(highs, default=max(self.hi, other.hi)),
            not lows,
            not highs,
        )


def index_range(program: Program, name: str, extent: Mapping[str, int]) -> IndexRange | None:
    """For which values of an input all that it indexes is read inside; None where it indexes nothing.

    It may be selected, clamped, shifted, multiplied, added to another and counted from the end on its way.
    """
    found: IndexRange | None = None
    todo = [(value, IndexRange(0, max(0, extent[axis] - 1))) for value, axis in indexing(program)]
    while todo:
        value, range_ = todo.pop()
        if value == name:
            found = found & range_ if found else range_
        if (op := program.op.get(value)) is not None:
            todo += _behind(program, op, range_, extent)
    return found


def _behind(
    program: Program, op: Op, wanted: IndexRange, extent: Mapping[str, int]
) -> Iterator[tuple[str, IndexRange]]:
    """Operands of what is to lie in a range, and the range in which they are to lie for it."""
    operands = op.operands[1:] if op.fn == "where" else op.operands
    if op.fn in ("add", "sub"):
        yield from _summands(program, op, wanted, extent)
    elif op.fn == "mul":
        yield from _factors(op, wanted)
    elif op.fn == "where" and (found := _from_the_end(program, op, wanted)):
        yield found
    elif op.fn in _CARRIES:
        literal = next((int(x.value) for x in operands if isinstance(x, Literal)), None)
        if literal is not None and wanted.lo <= literal <= wanted.hi:
            if op.fn == "maximum" and not wanted.lo_open:
                wanted = replace(wanted, lo=wanted.lo - BEYOND, lo_open=True)
            if op.fn == "minimum" and not wanted.hi_open:
                wanted = replace(wanted, hi=wanted.hi + BEYOND, hi_open=True)
        yield from ((x.name, wanted) for x in operands if isinstance(x, Ref))


def _summands(
    program: Program, op: Op, wanted: IndexRange, extent: Mapping[str, int]
) -> Iterator[tuple[str, IndexRange]]:
    """Beside a literal or a place the other takes what is left; of two others each takes half."""
    spans = [_span(program, x, extent) for x in op.operands]
    if op.fn == "sub" and (second := spans[1]) is not None:
        spans[1] = -second[1], -second[0]
    for at, x in enumerate(op.operands):
        if not isinstance(x, Ref) or spans[at] is not None:
            continue
        if (other := spans[1 - at]) is not None:
            own = wanted.moved(-other[0], -other[1])
        else:
            own = replace(wanted, lo=-(-wanted.lo // 2), hi=wanted.hi // 2)
        if own.lo <= own.hi:
            yield x.name, own.negated() if at and op.fn == "sub" else own


def _factors(op: Op, wanted: IndexRange) -> Iterator[tuple[str, IndexRange]]:
    """What a literal multiplies: `i * 7` in a table of rows of 7."""
    by = next((int(x.value) for x in op.operands if isinstance(x, Literal)), 0)
    for x in op.operands:
        if isinstance(x, Ref) and by > 0 and -(-wanted.lo // by) <= wanted.hi // by:
            yield x.name, replace(wanted, lo=-(-wanted.lo // by), hi=wanted.hi // by)


def _span(program: Program, x: Operand, extent: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the most of a literal, or of places along an axis, also shifted or a stride apart."""
    if isinstance(x, Literal):
        return int(x.value), int(x.value)
    op = program.op.get(x.name)
    if op is None:
        return None
    if op.fn == "iota":
        return 0, extent[op.over[0]] - 1
    spans = [_span(program, y, extent) for y in op.operands]
    if op.fn == "cast":
        return spans[0]
    if op.fn not in _ARITHMETIC or spans[0] is None or spans[1] is None:
        return None
    found = [_ARITHMETIC[op.fn](a, b) for a in spans[0] for b in spans[1]]
    return min(found), max(found)


def _from_the_end(program: Program, op: Op, wanted: IndexRange) -> tuple[str, IndexRange] | None:
    """Of `where(x < 0, x + n, x)`: x, which may be negative too."""
    condition, moved, plain = op.operands
    if not isinstance(condition, Ref) or not isinstance(moved, Ref) or not isinstance(plain, Ref):
        return None
    test, shift = program.op.get(condition.name), program.op.get(moved.name)
    if (
        test is None
        or shift is None
        or (test.fn, shift.fn) != ("lt", "add")
        or test.operands != (plain, Literal(0))
    ):
        return None
    by = shift.operands[1]
    if shift.operands[0] != plain or not isinstance(by, Literal):
        return None
    return plain.name, replace(wanted, lo=wanted.lo - int(by.value))


def reads_inside(program: Program, name: str, value: int, extent: Mapping[str, int]) -> bool:
    """Whether all that an input indexes is read inside where it holds `value`, whatever the other inputs hold.

    Not so where an index is made of anything but the input, literals and what they decide, in integers.
    """
    known: dict[str, int | float] = {name: value}
    made = {name}  # of the input, known or not
    for op in program.ops:
        refs = [x for x in op.operands if isinstance(x, Ref)]
        if any(x.name in made for x in refs):
            made.add(op.name)
            run = _ON_NUMBERS.get(op.fn) if op.dtype not in FLOAT_DTYPES else None
            if run is not None and all(x.name in known and not x.access for x in refs):
                known[op.name] = run(*(known[x.name] if isinstance(x, Ref) else x.value for x in op.operands))
    places = [(known.get(index), axis) for index, axis in indexing(program) if index in made]
    return all(place is not None and 0 <= place < extent[axis] for place, axis in places)


def markers(program: Program, name: str) -> tuple[int, ...]:
    """Literals that an input is compared with for equality and may safely be replaced by."""
    if any(name in _sources(program, value, ("cast",)) for value, _ in indexing(program)):
        return ()
    found = set()
    for op in program.ops:
        if op.fn not in ("eq", "ne"):
            continue
        literals = [o.value for o in op.operands if isinstance(o, Literal)]
        refs = [o.name for o in op.operands if isinstance(o, Ref)]
        if any(name in _sources(program, r, _CARRIES) for r in refs):
            found |= {int(v) for v in literals if float(v).is_integer()}
    return tuple(sorted(found))


def compared_axes(program: Program, name: str) -> tuple[str, ...]:
    """The axes with whose places an input's values are compared: those of masks, classes and lengths."""
    places = {op.name: op.over[0] for op in program.ops if op.fn == "iota"}
    found: dict[str, None] = {}
    for operands in _comparisons(program):
        sources = [_sources(program, x.name, _MOVES) if isinstance(x, Ref) else set() for x in operands]
        for own, other in (sources, reversed(sources)):
            if name in own:
                found |= dict.fromkeys(places[n] for n in sorted(other & places.keys()))
    return tuple(found)


def compared_literals(program: Program, name: str) -> tuple[int, ...]:
    """Whole literals with which an input's values are compared."""
    found: set[int] = set()
    for operands in _comparisons(program):
        literals = [x.value for x in operands if isinstance(x, Literal)]
        if any(isinstance(x, Ref) and name in _sources(program, x.name, _MOVES) for x in operands):
            found |= {int(v) for v in literals if float(v).is_integer()}
    return tuple(sorted(found))


def _comparisons(program: Program) -> Iterator[tuple[Operand, ...]]:
    return (op.operands for op in program.ops if op.fn in _COMPARISONS)


def indexing(program: Program) -> Iterator[tuple[str, str]]:
    """(value that indexes, axis indexed) of every access by value."""
    for op in program.ops:
        for x in op.operands:
            if isinstance(x, Ref):
                for axis, index in x.access:
                    if index.value is not None:
                        yield index.value, axis


def _sources(program: Program, value: str, through: tuple[str, ...]) -> set[str]:
    """Values from which `value` is taken over unchanged, itself included; a condition is not taken over."""
    found: set[str] = set()
    todo = [value]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        op = program.op.get(name)
        if op is not None and op.fn in through:
            operands = op.operands[1:] if op.fn == "where" else op.operands
            todo += [x.name for x in operands if isinstance(x, Ref)]
    return found
