"""What integer inputs may hold beyond their declared domain: which of them serve as indices, which have a marker.

    t1 = where(ne(in1, -100), in1, 0);  read x[d1=t1]     ->  in1 in [0, d1), or -100

An input that ends up as an index must lie within the axis that it indexes, even where its domain does not say
so. A literal that it is compared with for equality (a label to be ignored) is a value that callers pass, so it
is tried too, unless the input indexes without a `where` in between, which would read out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudal1_fx_passes.program import Literal, Program, Ref

_CARRIES = ("where", "cast")


def indexed_axes(program: Program, name: str) -> tuple[str, ...]:
    """The axes that an input's values index, directly or through casts and selections."""
    return tuple(axis for value, axis in _indices(program) if name in _sources(program, value, _CARRIES))


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
