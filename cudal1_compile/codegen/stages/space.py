"""Loop variables over axes, and the memory offsets that follow from them.

A variable runs over one axis or over several flattened ones, outermost first: `c` over (d0, d2). A tensor whose
memory order contains all axes of a variable side by side is indexed by the variable itself, any other axis by
its own index, which is taken out of the variable once: `const int i2 = c % d2;`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from cudal1_compile.codegen.stages.stage import Buffer
from cudal1_fx_passes.program.ir import Index, Program

Derived = tuple[str, int, str]  # an axis as (another one, times how much, plus a third)


@dataclass(frozen=True, slots=True)
class Var:
    name: str
    axes: tuple[str, ...]


def size_of(axes: Iterable[str]) -> str:
    """The number of elements over `axes`, by name: `d0 * d2`."""
    return " * ".join(axes) or "1"


def grouped(text: str) -> str:
    """Parentheses where a product or sum is about to be divided or multiplied."""
    return f"({text})" if " " in text else text


def signed(by: int) -> str:
    """` - 1`; nothing for 0."""
    return f" {'-' if by < 0 else '+'} {abs(by)}" if by else ""


def axis_index(axis: str) -> str:
    """The name of an axis's index: i2 for d2, w0 for k0."""
    return ("w" if axis[0] == "k" else "i") + axis[1:]


@dataclass(frozen=True)
class Space:
    """The variables in scope. `renamed` gives an axis another index expression (windows, gathers)."""

    program: Program
    variables: tuple[Var, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    registers: Mapping[str, str] = field(default_factory=dict)  # of values that other accesses use as an index
    reach: Mapping[str, int] = field(default_factory=dict)  # axes of which an access takes neighbours at once
    derived: Mapping[str, Derived] = field(default_factory=dict)  # axes that no variable runs over

    def offset(self, buffer: Buffer) -> str:
        """The offset of the current element in elements: `(i0 * d1 + g) * d2 + i2`, or "" for the first."""
        at = self.moved(buffer)
        if buffer.strides is not None:
            terms = [f"{grouped(at.index(a))} * {buffer.name}_{a}" for a in buffer.axes]
            return " + ".join(terms)
        text = ""
        for name, size in at._units(buffer.axes):
            text = name if not text else f"{grouped(text)} * {grouped(size)} + {name}"
        return text

    def moved(self, buffer: Buffer) -> Space:
        """This space with the buffer's access put in: each accessed axis has its own, clamped index."""
        if not buffer.access:
            return self
        renamed = {**self.renamed, **{a: self.position(a, i) for a, i in buffer.access}}
        return replace(self, renamed=renamed)

    def position(self, axis: str, index: Index) -> str:
        """An index as an expression that stays within the axis."""
        if index.value is not None:
            return f"min(max((int){self.registers.get(index.value, index.value)}, 0), {axis} - 1)"
        text = self.affine(index)
        lowest, highest = bounds(self.program, index)
        if lowest < 0:
            text = f"max({text}, 0)"
        return (
            f"min({text}, {axis} - {self.reach.get(axis, 1)})" if highest >= self.program.axis[axis].size else text
        )

    def affine(self, index: Index) -> str:
        """(sum of terms + offset) / divisor, in the names of this space."""
        text = ""
        for factor, axis in index.terms:
            name = grouped(self.index(axis))
            term = name if abs(factor) == 1 else f"{abs(factor)} * {name}"
            text += (f" {'-' if factor < 0 else '+'} {term}") if text else ("-" if factor < 0 else "") + term
        if index.offset or not text:
            text = f"{text}{signed(index.offset)}" if text else str(index.offset)
        return text if index.divisor == 1 else f"({text}) / {index.divisor}"

    def needed_axes(self, buffers: Iterable[Buffer]) -> list[str]:
        """Axes whose own index the offsets of `buffers` use, in program order."""
        names: set[str] = set()
        for b in buffers:
            at = dict(b.access)
            if b.strides is not None:
                names |= set(b.axes) - set(at)
            else:
                moved = self.moved(b)
                names |= {a for a in b.axes if a not in at and not moved._in_whole_variable(a, b.axes)}
            names |= {a for i in at.values() for _, a in i.terms}
        return [a.name for a in self.program.axes if a.name in names]

    def index(self, axis: str) -> str:
        """The index of one axis: its variable where that runs over it alone."""
        if axis in self.renamed:
            return self.renamed[axis]
        for v in self.variables:
            if v.axes == (axis,):
                return v.name
        return axis_index(axis)

    def index_line(self, axis: str) -> str | None:
        """Declares the index of an axis; None where a variable or a rename is it."""
        if axis in self.renamed:
            return None
        if axis in self.derived:
            whole, step, part = self.derived[axis]
            return f"const int {axis_index(axis)} = {self.index(whole)} * {step} + {self.index(part)};"
        for v in self.variables:
            if axis in v.axes and len(v.axes) > 1:
                at = v.axes.index(axis)
                text = v.name
                if inner := v.axes[at + 1 :]:
                    text += f" / {grouped(size_of(inner))}"
                if at > 0:
                    text += f" % {axis}"
                return f"const int {axis_index(axis)} = {text};"
        return None

    def _units(self, axes: tuple[str, ...]) -> list[tuple[str, str]]:
        """(index, size) outermost first; a run that is a whole variable is one unit."""
        units: list[tuple[str, str]] = []
        at = 0
        while at < len(axes):
            v = self._whole(axes, at)
            if v is not None and len(v.axes) > 1:
                units.append((v.name, size_of(v.axes)))
                at += len(v.axes)
            else:
                units.append((self.index(axes[at]), axes[at]))
                at += 1
        return units

    def _whole(self, axes: tuple[str, ...], at: int) -> Var | None:
        for v in self.variables:
            if v.axes and axes[at : at + len(v.axes)] == v.axes and not set(v.axes) & set(self.renamed):
                return v
        return None

    def _in_whole_variable(self, axis: str, axes: tuple[str, ...]) -> bool:
        at = 0
        while at < len(axes):
            v = self._whole(axes, at)
            step = len(v.axes) if v is not None else 1
            if axis in axes[at : at + step]:
                return v is not None
            at += step
        return False


def bounds(program: Program, index: Index) -> tuple[int, int]:
    """The lowest and highest position that an affine index takes."""
    lowest = highest = index.offset
    for factor, axis in index.terms:
        reach = factor * (program.axis[axis].size - 1)
        lowest, highest = lowest + min(0, reach), highest + max(0, reach)
    return lowest // index.divisor, highest // index.divisor


def is_unit_stride(buffer: Buffer, axis: str) -> bool:
    """Whether neighbours along `axis` are neighbours in memory."""
    if axis not in buffer.axes or any(_uses(i, axis) for _, i in buffer.access) or axis in dict(buffer.access):
        return False
    if buffer.strides is not None:
        return buffer.strides[buffer.axes.index(axis)] == 1
    return buffer.axes[-1] == axis


def shifted_axis(program: Program, buffer: Buffer, axis: str, vector: int) -> str | None:
    """The axis along which vectors lie side by side and aligned, at a constant distance: d3 of `in0[d3=d2-64]`.

    What lies outside the bounds lies there for a whole vector at a time.
    """
    moved = [(a, i) for a, i in buffer.access if _uses(i, axis) or a == axis]
    if len(moved) != 1 or vector == 1:
        return None
    along, index = moved[0]
    inner = replace(buffer, access=())
    plain = index.value is None and index.terms == ((1, axis),) and index.divisor == 1
    fits = is_unit_stride(inner, along) and vector_fits(program, inner, along, vector)
    aligned = plain and fits and index.offset % vector == 0
    return along if aligned and axis not in set(buffer.axes) - {along} else None


def _uses(index: Index, axis: str) -> bool:
    return any(a == axis for _, a in index.terms)


def vector_fits(program: Program, buffer: Buffer, axis: str, vector: int) -> bool:
    """Whether vectors of `vector` elements along `axis` are aligned in this tensor, or not used for it."""
    if program.axis[axis].symbolic or program.axis[axis].size % vector:
        return False
    if not is_unit_stride(buffer, axis) or buffer.strides is None:
        return True
    return all(s % vector == 0 for a, s in zip(buffer.axes, buffer.strides, strict=True) if a != axis)
