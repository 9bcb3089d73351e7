"""What integer inputs may hold beyond their declared domain: which of them serve as indices, which have a marker.

    t1 = where(ne(in1, -100), in1, 0);  read x[d1=t1]     ->  in1 in [0, d1), or -100

An input that ends up as an index must lie within the axis that it indexes, even where its domain does not say
so. A literal that it is compared with for equality (a label to be ignored) is a value that callers pass, so it
is tried too, unless the input indexes without a `where` in between, which would read out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudal1_fx_passes.program import Literal, Operand, Program, Ref

_CARRIES = ("where", "cast", "maximum", "minimum")
_MOVES = (*_CARRIES, "add", "sub", "neg")  # by a little, as in `arange + 1 <= length`
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def indexed_axes(program: Program, name: str) -> tuple[str, ...]:
    """The axes that an input's values index, directly or through casts and selections."""
    return tuple(axis for value, axis in _indices(program) if name in _sources(program, value, _CARRIES))


def index_shifts(program: Program, name: str) -> tuple[int, int]:
    """The least and the most that is added to an input on its way to an index, as 2 in `emb[position + 2]`."""
    found = {0}
    todo = [(value, 0) for value, _ in _indices(program)]
    while todo:
        value, shift = todo.pop()
        if value == name:
            found.add(shift)
        op = program.op.get(value)
        if op is None or op.fn not in ("cast", "maximum", "minimum", "add", "sub"):
            continue
        x, literal = op.operands[0], op.operands[-1]
        by = 0
        if op.fn in ("add", "sub"):
            if not isinstance(literal, Literal):
                continue
            by = int(literal.value) if op.fn == "add" else -int(literal.value)
        if isinstance(x, Ref):
            todo.append((x.name, shift + by))
    return min(found), max(found)


def markers(program: Program, name: str) -> tuple[int, ...]:
    """Literals that an input is compared with for equality and may safely be replaced by."""
    if any(name in _sources(program, value, ("cast",)) for value, _ in _indices(program)):
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


def _indices(program: Program) -> Iterator[tuple[str, str]]:
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
