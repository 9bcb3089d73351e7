"""How many bytes a schedule moves: for the prior.

    traffic(program, schedules)     one a schedule: bytes asked for, bytes in whole 32-byte sectors

Every stage reads its tensors as often as it passes over them and writes its results; split reductions write and
read their parts. Where neighbouring threads do not touch neighbouring elements, each access costs a sector.
Caches are not modelled: what a second pass costs, the fit learns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cudal1_compile.codegen.products.epilogue_reduction import EPILOGUE_REDUCED, unread
from cudal1_compile.codegen.reductions.grouped import group_order, reduced_order
from cudal1_compile.codegen.reductions.grouped_schedules import is_row_like, pass_count
from cudal1_compile.codegen.reductions.split_wide import CHUNKS
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import Schedule, StageSchedule
from cudal1_compile.codegen.stages.space import is_unit_stride
from cudal1_compile.codegen.stages.stage import Buffer, Stage, cut_stages
from cudal1_fx_passes.program.ir import ITEM_BYTES, Program

SECTOR = 32  # bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    asked: float  # bytes
    sectors: float  # bytes


def bytes_moved(program: Program) -> int:
    """Every input read once, every output written once."""
    read_bytes = sum(program.size(i.axes) * ITEM_BYTES[i.dtype] for i in program.inputs)
    return read_bytes + sum(program.size(o.axes) * ITEM_BYTES[program.output_dtype(o)] for o in program.outputs)


def traffic(program: Program, schedules: Sequence[Schedule]) -> list[Traffic]:
    plans = {flat: cut_stages(program, flat) for flat in {s.flat for s in schedules}}
    stages = {flat: plan.stages if plan is not None else () for flat, plan in plans.items()}
    known: dict[tuple[bool, int, StageSchedule, bool], Traffic] = {}  # schedules share their stages

    def of_stage(flat: bool, i: int, chosen: Sequence[StageSchedule]) -> Traffic:
        reduces = [s.kind for s in chosen[i + 1 : i + 2]] == [EPILOGUE_REDUCED]
        key, plan = (flat, i, chosen[i], reduces), plans[flat]
        if key not in known:
            left = unread(plan, i) if reduces and plan is not None else set()
            known[key] = _of_stage(stages[flat][i], chosen[i], left)
        return known[key]

    found = []
    for s in schedules:
        if len(s.stages) != len(stages[s.flat]):
            found.append(_fused(program, s, stages[s.flat]))
            continue
        parts = [of_stage(s.flat, i, s.stages) for i in range(len(s.stages))]
        found.append(Traffic(sum(t.asked for t in parts), sum(t.sectors for t in parts)))
    return found


def _fused(program: Program, schedule: Schedule, stages: Sequence[Stage]) -> Traffic:
    """One pass for both stages."""
    parts = max(s.splits for s in schedule.stages) * max((program.size(s.kept) for s in stages), default=1)
    whole = float(bytes_moved(program) + 8 * parts)
    return Traffic(whole, whole)


def _of_stage(stage: Stage, s: StageSchedule, left: set[str]) -> Traffic:
    """left: what is not stored."""
    passes, loads = 1, stage.loads
    parts = 8.0 * s.splits * stage.program.size(stage.kept) if s.splits > 1 else 0.0
    if s.kind == EPILOGUE_REDUCED:  # the product before it stores parts of its columns, nothing else is read
        parts = 8.0 * -(-stage.program.size(stage.reduced) // (s.block // 2)) * stage.program.size(stage.kept)
        loads = tuple(b for b in loads if set(b.span) <= set(stage.kept))
    elif stage.kind == "reduce" and not s.cached and s.kind != CHUNKS:
        passes = pass_count(stage, s.kind == "online")
    elif stage.kind == "window":
        passes = 2  # a window's elements come from L1; it is not one read all the same
    along = _thread_axis(stage, s)
    asked = sectors = parts
    for b, times in [*((b, passes) for b in loads), *((b, 1) for b in stage.writes if b.name not in left)]:
        size = float(times * stage.program.size(b.span) * ITEM_BYTES[b.dtype])
        asked += size
        sectors += size * _sector_share(b, along, s)
    return Traffic(asked, sectors)


def _thread_axis(stage: Stage, s: StageSchedule) -> str | None:
    """The axis along which neighbouring threads work."""
    if stage.kind != "reduce":
        order = memory_order(stage)
    elif is_row_like(stage) and s.kind not in ("thread", "tile", "split_tile"):
        order = reduced_order(stage)
    else:
        order = group_order(stage)
    return order[-1] if order else None


def _sector_share(b: Buffer, along: str | None, s: StageSchedule) -> float:
    if along is None or along not in b.span or is_unit_stride(b, along) or s.kind in ("transpose", "turn"):
        return 1.0
    return SECTOR / ITEM_BYTES[b.dtype]
