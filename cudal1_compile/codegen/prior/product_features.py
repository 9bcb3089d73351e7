"""What the speed of a product stage's schedule may depend on, in numbers; zeros without a product."""

from __future__ import annotations

import math
from functools import lru_cache

from cudal1_compile.codegen.products.sides import FORMS, SPREAD, Sides
from cudal1_compile.codegen.products.spread import stage_for
from cudal1_compile.codegen.products.times import Times
from cudal1_compile.codegen.products.warp_layouts import blocks_of, estimate
from cudal1_compile.codegen.stages.schedule import Schedule, StageSchedule
from cudal1_compile.codegen.stages.stage import Stage, cut_stages
from cudal1_fx_passes.program.ir import Program

RESIDENT = 132  # SMs of the GPU that is measured
# in a schedule kind
MARKS = (*(form for form in FORMS if form != SPREAD), "direct", "strip", "f32_split", "long")
COUNT = len(MARKS) + 9


def describe_product(program: Program, schedule: Schedule) -> list[float]:
    """COUNT numbers, of the first product stage."""
    if not program.has_product:  # to look a plan up hashes the whole program
        return [0.0] * COUNT
    plan = cut_stages(program, flat=schedule.flat)
    if plan is not None and len(plan.stages) == len(schedule.stages):
        for stage, s in zip(plan.stages, schedule.stages, strict=True):
            if stage.kind == "product":
                times = _times(stage)
                return [*_of_stage(stage_for(stage, s), s), math.log2(times.us(s) / times.least)]
    return [0.0] * COUNT


@lru_cache(8)
def _times(stage: Stage) -> Times:
    return Times(stage)


def _of_stage(stage: Stage, s: StageSchedule) -> list[float]:
    sides, size = Sides(stage), stage.program.size
    marks = [float(mark in s.kind) for mark in MARKS]
    rows, columns, depth = size(sides.m), size(sides.n), size(sides.over)
    whole = [1.0, math.log2(columns) / 4, math.log2(depth) / 4]
    if s.tile is None:
        return [*marks, *whole, *[0.0] * 5]
    bm, bn, bk = s.tile
    wanted = rows * columns * size(sides.batch)
    computed = blocks_of(stage, sides, (bm, bn)) * bm * bn
    work = estimate(stage, sides, s, RESIDENT) * RESIDENT
    tile = [math.log2(bm) - 6, math.log2(bn) - 6, math.log2(bk) - 4]
    return [*marks, *whole, *tile, math.log2(computed / wanted), math.log2(work / wanted)]
