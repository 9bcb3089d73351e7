"""Programs without axes of size 1, as the compiler imports them: a dim of size 1 is no axis there.

    without_single(program)      not in canonical form; an axis stays that an index names or that bounds a value

Measured: with such axes left in, no structure had the form that a batch of one has in use, and of 25 shapes of
convolutions that a model had too few right replies for, 9 were of one image.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.ir import Input, Output, Program, Ref


def without_single(p: Program) -> Program:
    """Raises ProgramError where such an axis is all that an operation runs along: none is imported."""
    gone = {a.name for a in p.axes if a.size == 1 and not a.symbolic} - _kept(p)
    if not gone:
        return p
    if any(set(op.over) <= gone for op in p.ops if op.over):
        raise ProgramError("an operation runs along axes of size 1 alone")

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


def _kept(p: Program) -> set[str]:
    found = {i.domain.below for i in p.inputs if i.domain.below is not None}
    accesses = (pair for op in p.ops for x in op.operands if isinstance(x, Ref) for pair in x.access)
    return found | {name for axis, index in accesses for name in (axis, *(a for _, a in index.terms))}
