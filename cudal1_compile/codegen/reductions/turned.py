"""Writes a transposing copy fused with sums over its innermost input axis: gradients of a transposed bias.

    f0   tiles of 32 x 32 through shared memory as in transposed.py; each adds up its part of the sums on the way
    f1   adds up the tiles' sums, as in a split reduction

A reduction along the input's rows writes such an output 32 bytes an element; one along the output's columns reads
so. Applies where the output's innermost axis is kept, the input's is reduced, and nothing needs a result early.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import TILE, group_order
from cudal1_compile.codegen.reductions.split_parts import (
    Part,
    ancestors,
    element_writes,
    is_splittable,
    part_buffers,
    reads_of,
)
from cudal1_compile.codegen.reductions.transposed import Sums, TransposedWriter, other_axis
from cudal1_compile.codegen.reductions.transposed import schedules as tiles
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel
from cudal1_compile.codegen.stages.stage import Stage, is_reduction, read_names

MAX_TILES = 8192  # parts of one sum


def copy_stage(stage: Stage) -> Stage:
    """The pointwise stage that writes the element outputs and computes what is summed."""
    sums = [o for o in stage.ops if is_reduction(o)]
    writes = tuple(element_writes(stage))
    below = [n for o in sums for n in read_names(o)] + [b.value for b in writes]
    needed = ancestors(stage, below)
    used = {*below, *needed, *reads_of(stage, needed)}
    whole = tuple(a.name for a in stage.program.axes if a.name in (*stage.kept, *stage.reduced))
    return replace(
        stage,
        kind="pointwise",
        kept=whole,
        reduced=(),
        reads=tuple(b for b in stage.reads if b.value in used),
        loads=tuple(b for b in stage.loads if b.value in used),
        ops=tuple(o for o in stage.ops if o.name in needed),
        writes=writes,
    )


def schedules(stage: Stage) -> list[StageSchedule]:
    if stage.program.is_symbolic or not element_writes(stage) or not is_splittable(stage):
        return []
    if any(o.fn not in ("sum", "mean", "amax", "amin", "prod") for o in stage.ops if is_reduction(o)):
        return []
    copy = copy_stage(stage)
    inner, axis = memory_order(copy)[-1], other_axis(copy)
    if inner not in stage.kept or axis not in stage.reduced or memory_order(copy) != copy.writes[0].axes:
        return []
    size = stage.program.axis
    outside = [a for a in stage.reduced if a != axis]
    splits = -(-size[axis].size // TILE) * stage.program.size(tuple(outside))
    return [replace(s, kind="turn", splits=splits) for s in tiles(copy) if 2 <= splits <= MAX_TILES]


def write_turned(stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> Kernel:
    copy = copy_stage(stage)
    order, axis = memory_order(copy), other_axis(copy)
    kept = group_order(stage)
    buffers = tuple(replace(b, axes=kept) for b in part_buffers(parts))
    over = tuple(a for a in order if a in stage.reduced and a != axis)
    sums = Sums(tuple(p.phase for p in parts), buffers, over)
    kernel = TransposedWriter(copy, schedule, name, sums).write()
    shape = ", ".join([str(schedule.splits), *kept])
    return replace(kernel, scratch=tuple(f"{b.name} {b.dtype}[{shape}]" for b in buffers))
