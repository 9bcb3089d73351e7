"""Transposed convolutions whose stride is as long as their window: every output meets one position of the image.

    t0[d2, d3] = dot(in0, in1[d5=(d2-k0)/2, d6=(d3-k1)/2]) over d4,k0,k1
    t0[2*d5+k0, 2*d6+k1] = dot(in0, in1) over d4

The second is a plain GEMM with the window among the weight's columns: the image is read once, not once a phase,
and what lies side by side in the result is stored at the same time.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.products.sides import SPREAD, Sides, arithmetic_of, dot_of, phases_of
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.space import Derived
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import Ref


def spread_of(stage: Stage) -> Stage | None:
    """The stage as a plain product; None where a window does not fill its steps, or rows are not innermost."""
    sides, program = Sides(stage), stage.program
    phases, size = phases_of(sides.a), {a.name: a.size for a in program.axes}
    if not phases or len(phases) != len(sides.a.access) or memory_order(stage)[-1] != phases[-1].out:
        return None
    if any(a.symbolic for a in program.axes):
        return None
    images = [axis for axis, _ in sides.a.access]
    for p, image in zip(phases, images, strict=True):
        if p.offset or size[p.window] != p.step or size[p.out] != p.step * size[image]:
            return None
    outs, windows = {p.out for p in phases}, {p.window for p in phases}
    columns = [a for a in program.value_axes[sides.b.name] if a in {*sides.n, *windows}]
    kept = (*sides.batch, *(a for a in sides.m if a not in outs), *columns, *images)
    plain = tuple(replace(x, access=()) if isinstance(x, Ref) else x for x in sides.dot.operands)
    dot = replace(sides.dot, operands=plain, over=sides.channels)
    ops = tuple(dot if o is sides.dot else o for o in stage.ops)
    return replace(stage, kept=kept, reduced=sides.channels, ops=ops)


def derived_of(stage: Stage) -> dict[str, Derived]:
    """Of a spread stage: each axis of the result by those that make it up."""
    whole = stage.program.op[dot_of(stage).name]
    found = {}
    for x in whole.operands:
        if isinstance(x, Ref):
            for (image, _), p in zip(x.access, phases_of(x), strict=False):
                found[p.out] = (image, p.step, p.window)
    return {} if set(found) & set(stage.kept) else found


def stage_for(stage: Stage, schedule: StageSchedule) -> Stage:
    """The stage that the schedule is of."""
    spread = spread_of(stage) if SPREAD in schedule.kind else stage
    assert spread is not None
    return spread


def spread_schedule(schedule: StageSchedule) -> StageSchedule:
    """A schedule of the plain product as one of the stage."""
    arithmetic = arithmetic_of(schedule)
    return replace(schedule, kind=schedule.kind.replace(arithmetic, arithmetic + SPREAD, 1))
