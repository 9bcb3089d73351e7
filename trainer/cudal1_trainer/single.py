"""Programs without axes of size 1, as the compiler imports them: a dim of size 1 is no axis there.

    without_single(program)      not in canonical form; axes stay that an index reads, or that operations run along

Measured: with such axes left in, no structure had the form that a batch of one has in use, and of 25 shapes of
convolutions that a model had too few right replies for, 9 were of one image.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Input, Op, Output, Program, Ref


def without_single(p: Program) -> Program:
    gone = {a.name for a in p.axes if a.size == 1 and not a.symbolic} - _needed(p)
    if not gone:
        return p

    def left(axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a for a in axes if a not in gone)

    def strides(x: Input | Output) -> tuple[int, ...] | None:
        return x.strides and tuple(s for s, a in zip(x.strides, x.axes, strict=True) if a not in gone)

    return Program(
        tuple(a for a in p.axes if a.name not in gone),
        tuple(replace(i, axes=left(i.axes), strides=strides(i)) for i in p.inputs),
        tuple(replace(o, axes=left(o.axes), over=left(o.over)) for o in p.ops),
        tuple(replace(o, axes=left(o.axes), strides=strides(o)) for o in p.outputs),
    )


def _needed(p: Program) -> set[str]:
    """Axes that an index joins or reads, that bound a value, or that are all that an operation runs along."""
    found = {i.domain.below for i in p.inputs if i.domain.below is not None}
    for op in p.ops:
        for axis, index in (pair for x in op.operands if isinstance(x, Ref) for pair in x.access):
            found |= {axis, *(name for _, name in index.terms)}
        if op.over and not _sums_others(p, op):
            found |= set(op.over)
    return found


def _sums_others(p: Program, op: Op) -> bool:
    return OPS[op.fn].kind in (Kind.REDUCE, Kind.DOT) and p.size(op.over) > 1
