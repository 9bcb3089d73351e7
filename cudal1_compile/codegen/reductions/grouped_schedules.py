"""Which schedules a reducing stage may have, the likely best first.

The rules are those of a memory-bound GPU: 16-byte accesses, full occupancy, a group's values kept in registers
where they fit (so that memory is read once), no block larger than its group has work for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial

from cudal1_compile.codegen.reductions import turned
from cudal1_compile.codegen.reductions.grouped import TILE, group_order, main_buffer, reduced_order
from cudal1_compile.codegen.reductions.online import has_online
from cudal1_compile.codegen.reductions.ragged import ragged_vectors
from cudal1_compile.codegen.reductions.reduction import phases
from cudal1_compile.codegen.reductions.semaphore_reduction import MOST
from cudal1_compile.codegen.reductions.split_chunks import CHUNK, chunk_vectors
from cudal1_compile.codegen.reductions.split_parts import is_splittable
from cudal1_compile.codegen.reductions.split_wide import CHUNKS, column_vectors, is_wide
from cudal1_compile.codegen.stages.element import late_loads, operand_keys
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.space import vector_fits
from cudal1_compile.codegen.stages.stage import Stage, is_reduction
from cudal1_fx_passes.program.ir import ITEM_BYTES

SM_COUNT = 132  # the layouts are tuned for this many; they are right on any GPU
ROUNDED_SUMS = ("sum", "mean", "var", "logsumexp", "prod")
REGISTER_BUDGET = 96  # values of a group that a thread may keep, all arrays together
MAX_SPLITS = 512
PART_REGISTERS = 32  # values that a thread of a split reduction keeps: enough loads in flight, and full SMs
MAX_SERIAL = 1024  # terms that one thread adds up: longer sums are at times too far off


def is_row_like(stage: Stage) -> bool:
    """Whether the innermost axis of the largest tensor is reduced: threads then run along a group."""
    held = main_buffer(stage)
    if held.strides is not None and held.axes:
        inner = min(zip(held.strides, held.axes, strict=True))[1]
        return inner in stage.reduced
    return not held.axes or held.axes[-1] in stage.reduced


def schedules(stage: Stage) -> list[StageSchedule]:
    found = _row_schedules(stage) if is_row_like(stage) else _column_schedules(stage)
    found += _split_schedules(stage) if is_splittable(stage) else []
    found += _online_schedules(stage)
    found += _semaphore_schedules(stage)
    found += turned.schedules(stage)
    found += _ragged_schedules(stage) if is_row_like(stage) else []
    if any(o.fn in ROUNDED_SUMS for o in stage.ops):
        shortest = min(_serial_terms(stage, s) for s in found)
        found = [s for s in found if _serial_terms(stage, s) <= max(MAX_SERIAL, shortest)]
    return sorted(dict.fromkeys(found), key=_ranking(stage))


def _serial_terms(stage: Stage, s: StageSchedule) -> int:
    return -(-stage.program.size(stage.reduced) // _lanes(s))


def _lanes(s: StageSchedule) -> int:
    """Threads that share a group."""
    kind = s.kind.removeprefix("split_")
    rows = {"warp": 32, "thread": 1} | dict.fromkeys(("tile", "chunks", "turn", "joined_tile"), s.block // TILE)
    return rows.get(kind, s.block) * s.splits


@lru_cache(maxsize=64)  # every schedule of a stage asks again
def pass_count(stage: Stage, online: bool = False) -> int:
    found, levels = phases(stage.program, stage.ops, online)
    stored = [levels.get(b.value, 0) for b in stage.writes if not set(b.span) <= set(stage.kept)]
    return max([p.level for p in found] + stored) + 1


def crossing_values(stage: Stage) -> int:
    """How many values of an element must be kept from one pass to the next, at most."""
    found, levels = phases(stage.program, stage.ops)
    kept = set(stage.kept)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for op in stage.ops:
        at = max([p.level for p in found if p.op is op] + [0]) if is_reduction(op) else levels[op.name]
        for key in operand_keys(op):
            first[key] = min(first.get(key, at), at)
            last[key] = max(last.get(key, at), at)
    for b in stage.writes:
        last[b.value] = max(last.get(b.value, 0), levels.get(b.value, 0))
    held = [b.key for b in stage.loads if not set(b.span) <= kept]
    made = [o.name for o in stage.ops if not set(o.axes) <= kept]
    spans = [(first[k], last[k]) for k in held if k in first] + [(levels[n], last.get(n, 0)) for n in made]
    return max(sum(a <= at < b for a, b in spans) for at in range(pass_count(stage)))


def _static(stage: Stage) -> bool:
    return not any(stage.program.axis[a].symbolic for a in stage.reduced)


def row_vectors(stage: Stage) -> list[int]:
    """Vector widths along the innermost reduced axis, widest first."""
    axis = reduced_order(stage)[-1]
    buffers = [b for b in stage.tensors if not set(b.span) <= set(stage.kept)]
    if late_loads(stage) or not buffers:
        return [1]
    narrow = min(ITEM_BYTES[b.dtype] for b in buffers)
    widths = [v for v in (8, 4, 2) if v * narrow <= 16]
    return [v for v in widths if all(vector_fits(stage.program, b, axis, v) for b in buffers)] + [1]


def _row_schedules(stage: Stage) -> list[StageSchedule]:
    count = stage.program.size(stage.reduced)
    several, crossing = pass_count(stage) > 1, max(1, crossing_values(stage))
    found = []
    vectors = row_vectors(stage)
    for vector in vectors if len(vectors) == 1 or count < 128 else vectors[:-1]:
        for kind, block, lanes in _row_kinds(count, vector):
            held = -(-count // (lanes * vector)) * vector
            limit = min(REGISTER_BUDGET, 65536 // block - 24 if block > 256 else REGISTER_BUDGET)
            fits = several and _static(stage) and held * crossing <= limit
            if fits:
                found.append(StageSchedule(kind, vector, block, True))
            if not fits or kind == "block":
                found.append(StageSchedule(kind, vector, block, False))
    return found


def _row_kinds(count: int, vector: int) -> list[tuple[str, int, int]]:
    """(kind, block, threads that share a group)"""
    found = []
    if count <= 64:
        found += [("thread", b, 1) for b in (128, 256)]
    if 16 <= count <= 8192:
        found += [("warp", b, 32) for b in (128, 256)]
    for block in (64, 128, 256, 512, 1024):
        if count >= 96 and block * vector <= 2 * count:
            found.append(("block", block, block))
    return found or [("warp", 128, 32)]


def _column_schedules(stage: Stage) -> list[StageSchedule]:
    count = stage.program.size(stage.reduced)
    several, crossing = pass_count(stage) > 1, max(1, crossing_values(stage))
    found = []
    for block in (64, 128, 256):
        fits = several and _static(stage) and count * crossing <= REGISTER_BUDGET
        found.append(StageSchedule("thread", 1, block, fits))
    if stage.kept and count >= 16:
        for block in (256, 512, 1024):
            rows = block // TILE
            limit = min(REGISTER_BUDGET, 65536 // block - 24)
            fits = several and _static(stage) and -(-count // rows) * crossing <= limit
            if rows <= count:
                found.append(StageSchedule("tile", 1, block, fits))
    return found


def _ragged_schedules(stage: Stage) -> list[StageSchedule]:
    """Rows whose length no vector divides, a block each; a sum over everything also in parts."""
    count, several = stage.program.size(stage.reduced), pass_count(stage) > 1
    crossing = max(1, crossing_values(stage))
    found = []
    for vector in ragged_vectors(stage):
        for block in (64, 128, 256, 512, 1024):
            held = -(-(count + vector - 1) // (block * vector)) * vector
            limit = min(REGISTER_BUDGET, 65536 // block - 24 if block > 256 else REGISTER_BUDGET)
            if count >= 96 and block * vector <= 2 * count:
                found.append(StageSchedule("ragged", vector, block, several and held * crossing <= limit))
        if stage.kept or not is_splittable(stage) or several:
            continue
        for block in (256, 512):
            splits = min(MAX_SPLITS, _power_of_two(count / (block * vector)))
            found += [
                StageSchedule("split_ragged", vector, block, False, s) for s in (splits, splits // 4) if s > 1
            ]
    return found


def _online_schedules(stage: Stage) -> list[StageSchedule]:
    count = stage.program.size(stage.reduced)
    if count < 4096 or not is_row_like(stage) or not has_online(stage):
        return []
    return [StageSchedule("online", v, b) for v in row_vectors(stage)[:2] for b in (256, 512, 1024)]


def _split_schedules(stage: Stage) -> list[StageSchedule]:
    groups, count = stage.program.size(stage.kept), stage.program.size(stage.reduced)
    rows = is_row_like(stage)
    if (groups if rows else -(-groups // TILE)) >= SM_COUNT * 4 or count < (512 if rows else 64):
        return []
    found = []
    kind = "split_block" if rows else "split_tile"
    several = pass_count(stage) > 1 and crossing_values(stage) == 1 and _static(stage)
    for block in (128, 256, 512):
        for vector in row_vectors(stage)[:2] if rows else [1, *column_vectors(stage)[:2]]:
            blocks = groups if rows else -(-groups // (TILE * vector))
            work = block * vector if rows else block // TILE
            for waves in (8, 4, 2, 1, 1 / 4, 1 / 16, 1 / 64):
                splits = _power_of_two(SM_COUNT * waves * 256 // block / blocks)
                if 2 <= splits <= MAX_SPLITS and count >= splits * work:
                    found.append(StageSchedule(kind, vector, block, False, splits))
            splits = 2 * _power_of_two(count * vector / (work * PART_REGISTERS))
            if several and 2 <= splits <= 4 * MAX_SPLITS:
                found.append(StageSchedule(kind, vector, block, True, splits))
    for vector in [] if rows else chunk_vectors(stage)[:2]:
        for block in (128, 256):
            most = min(SM_COUNT * 2048 / block / -(-groups // (TILE * vector)), count / (block // TILE * CHUNK))
            splits = min(_power_of_two(most), MAX_SPLITS)
            found += [StageSchedule(CHUNKS, vector, block, False, s) for s in (splits, splits // 2) if s > 1]
    return found


def _semaphore_schedules(stage: Stage) -> list[StageSchedule]:
    """Blocks that share a row and keep it in registers: for what follows the reductions of long rows.

    A result that needs another one (a sum of exponentials) is worth a wait where rows are few.
    """
    count, crossing = stage.program.size(stage.reduced), max(1, crossing_values(stage))
    follows = any(not set(b.span) <= set(stage.kept) for b in stage.writes)
    few = stage.program.size(stage.kept) < 2 * SM_COUNT and not is_splittable(stage)
    if not _static(stage) or not (follows or few) or pass_count(stage) == 1:
        return []
    found = []
    if not is_row_like(stage):
        for block in () if any(o.fn in ("argmax", "argmin") for o in stage.ops) else (512, 256):
            rows = block // TILE
            for held in (PART_REGISTERS, PART_REGISTERS // 2):
                blocks = -(-count * crossing // (rows * held))
                if stage.kept and 2 <= blocks <= rows:  # a part for each row of threads
                    found.append(StageSchedule("joined_tile", 1, block, True, blocks))
        return found
    for vector in row_vectors(stage)[:1]:
        for block in (256, 512):
            for held in (PART_REGISTERS, PART_REGISTERS // 2):
                blocks = -(-count * crossing // (block * held))
                if 2 <= blocks <= MOST:
                    found.append(StageSchedule("joined", vector, block, True, blocks))
    return found


def _power_of_two(x: float) -> int:
    return 1 << max(0, int(x).bit_length() - 1)


def _ranking(stage: Stage) -> Callable[[StageSchedule], float]:
    """An estimate of badness: idle SMs, repeated passes, narrow accesses, awkward block sizes."""
    groups, count = stage.program.size(group_order(stage)), stage.program.size(stage.reduced)
    item = ITEM_BYTES[main_buffer(stage).dtype]
    row_like = is_row_like(stage)
    passes_of = cache(partial(pass_count, stage))

    def rank(s: StageSchedule) -> float:
        if s.kind == "turn":
            return 0.0  # all others touch a sector an element
        lanes, columns = _lanes(s), s.vector if is_wide(s) else 1
        vector = s.vector // columns
        threads = groups * lanes / columns
        passes = 1 if s.cached or s.kind == CHUNKS else passes_of(s.kind == "online")
        busy = min(1.0, threads / (SM_COUNT * 1024))
        held = -(-count // (lanes * vector)) * vector
        waste = held * lanes / max(1, count)
        along = is_wide(s) or (row_like and s.kind != "thread")
        wide = min(16, s.vector * item) / 16 if along else 0.7
        return passes * waste / (busy * (0.5 + 0.5 * wide)) + 0.02 * abs(s.block.bit_length() - 9)

    return rank
