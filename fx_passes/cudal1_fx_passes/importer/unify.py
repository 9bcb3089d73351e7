"""Named axes by unification: which dims of a region's values are the same axis.

An atom is an extent that is not yet known to split or to equal another. A dim of an FX value is a
row-major tuple of atoms, empty where its size is 1. Pointwise operations unify dims, views regroup the
atoms of a shape, and both split an atom on demand (6 = 2*3), everywhere at once. Two atoms that occur in
one value stay apart for good, because a value never has an axis twice.

Sizes are ints or sympy expressions; a symbolic size splits only by an exact factor. Nothing here guards
on a SymInt. What does NOT happen here: memory layouts (emit.py) and merging axes (merge.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy

Extent: TypeAlias = int | sympy.Expr
Dim = tuple["Atom", ...]


class AxisConflict(Exception):
    """Two dims cannot be one axis: the sizes do not divide, or an axis would occur twice in a value."""


@dataclass(eq=False)
class Atom:
    """One extent. After unification `same` points to its representative; after a split `parts` replaces it."""

    extent: Extent
    hint: int  # elements; of a symbolic extent the example's
    window: bool = False
    same: Atom | None = None
    parts: tuple[Atom, ...] | None = None
    apart: set[Atom] = field(default_factory=set)
    whole: str = ""  # why it must not be split; "" where it may

    @property
    def symbolic(self) -> bool:
        return not isinstance(self.extent, int)


def new_atom(extent: Extent, hint: int, window: bool = False) -> Atom:
    return Atom(extent, hint, window)


def new_dim(extent: Extent, hint: int) -> Dim:
    """A dim of one fresh atom, or of none where the size is 1."""
    return () if extent == 1 else (new_atom(extent, hint),)


def find(atom: Atom) -> Atom:
    while atom.same is not None:
        atom = atom.same
    return atom


def leaves(dim: Iterable[Atom]) -> list[Atom]:
    """The unsplit representatives that a dim consists of, outermost first."""
    found: list[Atom] = []
    for atom in dim:
        root = find(atom)
        if root.parts is None:
            found.append(root)
        else:
            found.extend(leaves(root.parts))
    return found


def keep_whole(atom: Atom, reason: str) -> Atom:
    """Forbids splitting the atom. Raises AxisConflict where it is split already."""
    found = leaves((atom,))
    if len(found) != 1:
        raise AxisConflict(f"{reason} needs one axis, the dim is split into {[a.hint for a in found]}")
    found[0].whole = reason
    return found[0]


def keep_apart(atoms: Iterable[Atom]) -> None:
    """Declares that the atoms occur in one value. Raises AxisConflict where one of them occurs twice."""
    found = leaves(atoms)
    everything = set(found)
    if len(everything) != len(found):
        raise AxisConflict("an axis would occur twice in one value")
    for atom in found:
        atom.apart |= everything
        atom.apart.discard(atom)


def unify(left: Dim, right: Dim) -> None:
    """Makes two dims one. Raises AxisConflict."""
    a, b = leaves(left), leaves(right)
    while a and b:
        x, y = find(a.pop()), find(b.pop())
        if x is y:
            continue
        if x.extent == y.extent:
            _join(x, y)
        elif (outer := divide(x.extent, y.extent)) is not None:
            out, inner = _split(x, outer, y.extent)
            _join(inner, y)
            a.append(out)
        elif (outer := divide(y.extent, x.extent)) is not None:
            out, inner = _split(y, outer, x.extent)
            _join(inner, x)
            b.append(out)
        else:
            raise AxisConflict(f"dims of {x.extent} and {y.extent} do not divide one another")
    if a or b:
        raise AxisConflict(
            f"dims {[x.extent for x in leaves(left)]} and {[x.extent for x in leaves(right)]} differ"
        )


def regroup(dims: Sequence[Dim], extents: Sequence[Extent]) -> tuple[Dim, ...]:
    """The dims of a view with the given sizes over the same elements in row-major order."""
    stack = [atom for dim in dims for atom in leaves(dim)]
    made: list[Dim] = []
    for extent in reversed(extents):
        made.append(_take(stack, extent))
    if stack:
        raise AxisConflict(f"a view leaves {[a.extent for a in stack]} over")
    return tuple(reversed(made))


def can_regroup(dim: Dim, length: int) -> bool:
    """Whether the innermost `length` elements of a static dim are, or can become, axes of their own."""
    for atom in reversed(leaves(dim)):
        if length % atom.hint == 0:
            length //= atom.hint
        else:
            return atom.hint % length == 0 and not atom.whole
        if length == 1:
            return True
    return False


def _take(stack: list[Atom], extent: Extent) -> Dim:
    """Pops the innermost atoms whose product is `extent`."""
    taken: list[Atom] = []
    need: Extent = extent
    while need != 1:
        if not stack:
            raise AxisConflict(f"a view asks for {extent}, more elements than there are")
        x = stack.pop()
        rest = divide(need, x.extent)
        if rest is not None:
            taken.append(x)
            need = rest
            continue
        outer = divide(x.extent, need)
        if outer is None:
            raise AxisConflict(f"a view cuts {x.extent} at {need}, which does not divide it")
        out, inner = _split(x, outer, need)
        taken.append(inner)
        stack.append(out)
        need = 1
    return tuple(reversed(taken))


def divide(a: Extent, b: Extent) -> Extent | None:
    """a / b where it is exact for every value of the symbols, else None."""
    if isinstance(a, (int, sympy.Integer)) and isinstance(b, (int, sympy.Integer)):
        return int(a) // int(b) if a % b == 0 else None
    if a == b:
        return 1
    quotient = sympy.cancel(sympy.sympify(a) / sympy.sympify(b))
    number, denominator = sympy.fraction(quotient)
    if denominator != 1 or not _is_product(number):
        return None
    return int(number) if number.is_Integer else number


def _is_product(expr: sympy.Expr) -> bool:
    """Whether an expression is made of integers and symbols by + and *, so that it is an integer for sure."""
    return all(x.is_Integer or x.is_Symbol for x in expr.atoms())


def _join(x: Atom, y: Atom) -> None:
    if y in x.apart or x in y.apart:
        raise AxisConflict(f"an axis of {x.extent} would occur twice in one value")
    y.same = x
    x.window = x.window and y.window
    x.whole = x.whole or y.whole
    x.apart |= y.apart
    for other in y.apart:
        other.apart.add(x)


def _split(x: Atom, outer: Extent, inner: Extent) -> tuple[Atom, Atom]:
    if x.whole:
        raise AxisConflict(
            f"an axis of {x.extent} would be split into {outer}*{inner}, but {x.whole} needs it whole"
        )
    if isinstance(inner, int):
        inner_hint = inner
    elif isinstance(outer, int):
        inner_hint = x.hint // outer
    else:
        raise AxisConflict(f"an axis of {x.extent} would be split into two symbolic sizes")
    out, inn = Atom(outer, x.hint // inner_hint, x.window), Atom(inner, inner_hint, x.window)
    for child in (out, inn):
        child.apart |= x.apart
        for other in x.apart:
            other.apart.add(child)
    out.apart.add(inn)
    inn.apart.add(out)
    x.parts = (out, inn)
    return out, inn
