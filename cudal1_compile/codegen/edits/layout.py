"""Edits of a stage: its schedule with one field off the lists, which its template can write all the same."""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.edits.edit import IllegalEdit, StageEdit
from cudal1_compile.codegen.products.bulk_copy_plan import geometry_of, plan_of
from cudal1_compile.codegen.products.copies import ordered
from cudal1_compile.codegen.products.sides import (
    BULK_COPY,
    IMPLICIT_GEMM,
    IMPLICIT_GEMM_2D,
    MULTISTAGE,
    WARP_GROUPS,
)
from cudal1_compile.codegen.products.spread import stage_for
from cudal1_compile.codegen.products.warp_groups import MIN_STAGES, occupancy
from cudal1_compile.codegen.reductions.grouped import reduced_order
from cudal1_compile.codegen.reductions.grouped_schedules import REGISTER_BUDGET, crossing_values
from cudal1_compile.codegen.stages.element import late_loads
from cudal1_compile.codegen.stages.pointwise import allows_vector
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.space import vector_fits
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_compile.codegen.strategies import stage_schedules

SPLIT = ("exact", "rows")  # kinds of which a thread may have several vectors
# by kind of stage, the kinds of schedules whose template takes any block, or any vector
FREE_VECTOR = {"pointwise": ("exact", "stride", "rows"), "reduce": ("block", "warp", "thread", "online")}
FREE_BLOCK = {
    "pointwise": (*FREE_VECTOR["pointwise"], "ragged"),
    "reduce": (*FREE_VECTOR["reduce"], "ragged", "tile", "split_block", "split_tile"),
    "window": ("exact", "stride", "rows"),
}
BULK = (BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D)
MAX_IN_FLIGHT = 8
MAX_VECTOR = 16
SPLIT_SHARED = 200 * 1024  # bytes; the rest is what lies between rows
MAX_HELD = 64  # values that a thread may have loaded before it uses one


def edited(stage: Stage, schedule: StageSchedule, edit: StageEdit) -> StageSchedule:
    """The schedule with the edit; raises IllegalEdit where its template cannot write it."""
    rules = {"block": _with_block, "vector": _with_vector, "loads in flight": _with_loads}
    changed = rules[edit.knob](stage, schedule, edit)
    if changed == schedule:
        raise IllegalEdit(f"'{edit}' changes nothing: the stage has that already")
    return changed


def _with_block(stage: Stage, s: StageSchedule, edit: StageEdit) -> StageSchedule:
    """Between the blocks of the lists, whatever their vectors."""
    if s.kind not in FREE_BLOCK.get(stage.kind, ()):
        raise IllegalEdit(f"'{edit}': the block of {s.kind} follows from its other fields")
    own = replace(s, in_flight=0)
    listed = [x.block for x in stage_schedules(stage) if replace(x, block=s.block, vector=s.vector) == own]
    low, high = min([s.block, *listed]), max([s.block, *listed])
    if edit.value % 32 or not low <= edit.value <= high:
        raise IllegalEdit(f"'{edit}': a block of {s.kind} is a multiple of 32 in {low}..{high} here")
    changed = replace(s, block=edit.value)
    if stage.kind == "reduce" and s.kind in FREE_VECTOR["reduce"]:
        _check_held(stage, changed, edit)
    return changed


def _with_vector(stage: Stage, s: StageSchedule, edit: StageEdit) -> StageSchedule:
    v = edit.value
    if s.kind not in FREE_VECTOR.get(stage.kind, ()) or (stage.kind == "reduce" and s.vector == 1):
        raise IllegalEdit(f"'{edit}': the vectors of {s.kind} are those of its lists here")
    if v & (v - 1) or v > MAX_VECTOR or not _fits(stage, v):
        raise IllegalEdit(
            f"'{edit}': vectors are powers of two up to {MAX_VECTOR} that divide what lies side by side"
        )
    changed = replace(s, vector=v)
    _check_held(stage, changed, edit)
    return changed


def _fits(stage: Stage, vector: int) -> bool:
    if stage.kind == "pointwise":
        return allows_vector(stage, vector)
    axis = reduced_order(stage)[-1]
    kept = set(stage.kept)
    buffers = [b for b in stage.tensors if not set(b.span) <= kept]
    return not late_loads(stage) and all(vector_fits(stage.program, b, axis, vector) for b in buffers)


def _check_held(stage: Stage, s: StageSchedule, edit: StageEdit) -> None:
    """Whether a thread has the registers."""
    if stage.kind == "pointwise":
        held, most = s.in_flight * s.vector * max(1, len(stage.loads)), MAX_HELD
    elif s.cached:
        lanes = {"block": s.block, "warp": 32, "thread": 1}[s.kind]
        count = stage.program.size(stage.reduced)
        held = -(-count // (lanes * s.vector)) * s.vector * max(1, crossing_values(stage))
        most = REGISTER_BUDGET
    else:
        held, most = s.vector * len(stage.loads), 2 * MAX_HELD
    if held > most:
        raise IllegalEdit(f"'{edit}': a thread would hold {held} values, at most {most} are allowed")


def _with_loads(stage: Stage, s: StageSchedule, edit: StageEdit) -> StageSchedule:
    if not 2 <= edit.value <= MAX_IN_FLIGHT:
        raise IllegalEdit(f"'{edit}': 2 to {MAX_IN_FLIGHT} loads may be in flight")
    changed = replace(s, in_flight=edit.value)
    if stage.kind == "product":
        _check_tiles(stage, changed, edit)
    elif stage.kind != "pointwise" or s.kind not in SPLIT or late_loads(stage):
        raise IllegalEdit(
            f"'{edit}': only {' and '.join(SPLIT)} and products of tiles have loads in flight to choose"
        )
    else:
        _check_held(stage, changed, edit)
        if stage.program.size(stage.kept) < 2 * s.block * s.vector * edit.value:
            raise IllegalEdit(f"'{edit}': the stage has too few elements for that many a thread")
    return changed


def _check_tiles(stage: Stage, s: StageSchedule, edit: StageEdit) -> None:
    """Whether so many tiles fit into shared memory; most launches of product_pipe tell that themselves."""
    if s.kind.endswith(WARP_GROUPS):
        fits = edit.value >= MIN_STAGES and occupancy(s, 1)[0] > 0
    elif s.kind.endswith(BULK):
        stage = stage_for(stage, s)
        sides = ordered(stage)
        plan = plan_of(stage, sides, geometry_of(stage, sides, s), s)
        fits = edit.value >= MIN_STAGES and plan is not None
    elif s.kind.endswith(MULTISTAGE):
        assert s.tile is not None
        bm, bn, bk = s.tile
        # a split product has two cut tiles of b besides
        fits = "split" not in s.kind or (edit.value * (bm + bn) + 2 * bn) * bk * 4 <= SPLIT_SHARED
    else:
        raise IllegalEdit(f"'{edit}': {s.kind} copies no tiles ahead")
    if not fits:
        raise IllegalEdit(f"'{edit}': {s.kind} has {MIN_STAGES} tiles or more, as many as fit into shared memory")
