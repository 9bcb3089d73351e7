"""Which accesses are slices: one position, or an axis at a step, as views, cat and rotate_half leave them.

in0[d2=1], in0[d4=d5+32], in0[d4=2*d5]    ->    select, slice, slice with a step
"""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_fx_passes.program.ir import Index, Program, Ref


@dataclass(frozen=True, slots=True)
class Slice:
    """[start:stop:step] of one axis, then so many elements more on either side; `out` names what is left of it."""

    out: str  # empty where one position is read
    start: int
    stop: int
    step: int = 1
    before: int = 0
    after: int = 0


def slices_of(program: Program, x: Ref, padded: bool) -> tuple[Slice, ...] | None:
    """One slice an axis of what is read; None where an access is no slice. padded: whether it may read outside."""
    access = dict(x.access)
    held = program.value_axes[x.name]
    found = [_slice(program, axis, access.get(axis, Index(((1, axis),))), padded) for axis in held]
    slices = tuple(s for s in found if s is not None)
    outs = [s.out for s in slices if s.out]
    return slices if len(slices) == len(held) and len(set(outs)) == len(outs) else None


def _slice(program: Program, axis: str, index: Index, padded: bool) -> Slice | None:
    if index.value is not None or index.divisor != 1 or len(index.terms) > 1:
        return None
    size, start = program.axis[axis].size, index.offset
    step, out = index.terms[0] if index.terms else (1, "")
    if step < 1:
        return None
    stop = start + step * (program.axis[out].size - 1 if out else 0) + 1
    if start >= 0 and stop <= size:
        return Slice(out, start, stop, step)
    low, high = max(start, 0), min(stop, size)
    if not padded or step != 1 or not out or low >= high:
        return None
    return Slice(out, low, high, 1, low - start, stop - high)
