"""Which schedules a scan stage may have, the likely best first.

The estimate is of a GPU's time: bytes over bandwidth with what lanes read beside their own, or the serial chain of
a block (its loads, its barriers) times the waves of blocks, whichever is longer, and waits between blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from cudal1_compile.codegen.reductions.grouped import TILE
from cudal1_compile.codegen.reductions.semaphore_reduction import MOST
from cudal1_compile.codegen.stages.element import late_loads, operand_keys
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.space import is_unit_stride, vector_fits
from cudal1_compile.codegen.stages.stage import Buffer, Stage, is_barrier, read_names
from cudal1_fx_passes.program.ir import ITEM_BYTES, Op

STEP = 8  # elements of a thread in one step of a loop over a row that registers do not hold
HELD = 64  # values that a thread keeps at most, all arrays together
SM_COUNT = 132
BYTES_A_US = 2.9e6
CHAIN_US, CHUNK_US, BARRIER_US, WAIT_US = 1.0, 0.02, 0.05, 3.0  # a wait needs a memset before the launch
SHUFFLES_A_US = 5e6  # of lanes, the whole device
LANES_THAT_SCAN = {"warp": 7, "block": 14, "joined": 14}  # shuffles a chunk and lane


def is_supported(stage: Stage) -> bool:
    """One scan, no reduction beside it, and every value of a row's own axes or of the whole."""
    return sum(is_barrier(o) for o in stage.ops) == 1


def schedules(stage: Stage) -> list[StageSchedule]:
    if not is_supported(stage):
        return []
    axis = stage.reduced[0]
    count = stage.program.axis[axis].size
    static = not stage.program.axis[axis].symbolic
    crossing = len(crossing_values(stage))
    buffers = [b for b in stage.tensors if axis in b.span]
    along = [is_unit_stride(b, axis) for b in buffers]
    found = []
    for vector in _vectors(stage, buffers) if any(along) else []:
        for kind, block, lanes in _row_kinds(count, vector):
            held = -(-count // (lanes * vector)) * vector * crossing
            found.append(StageSchedule(kind, vector, block, static and held <= _limit(block)))
        found += [s for s in _inter_block("joined", vector, count, crossing) if static]
    if not all(along):
        for block in (256, 512, 1024, 128):
            held = -(-count // (block // TILE)) * crossing
            found.append(StageSchedule("tile", 1, block, static and held <= _limit(block)))
        found += [s for s in _inter_block("joined_tile", 1, count, crossing) if static]
        found += [StageSchedule("thread", 1, b, static and count * crossing <= HELD) for b in (64, 128)]
    return sorted(dict.fromkeys(found or [StageSchedule("warp", 1, 128)]), key=_estimate(stage, crossing))


def _vectors(stage: Stage, buffers: list[Buffer]) -> list[int]:
    wide = () if late_loads(stage) else (8, 4, 2)
    narrow = min((ITEM_BYTES[b.dtype] for b in buffers), default=4)
    fits = [v for v in wide if all(vector_fits(stage.program, b, stage.reduced[0], v) for b in buffers)]
    return [v for v in fits if v * narrow <= 16 or v == 4] + [1]


def _row_kinds(count: int, vector: int) -> list[tuple[str, int, int]]:
    """(kind, block, threads that share a row)"""
    found = [("thread", b, 1) for b in (128, 64)] if count <= 32 else []
    found += [("warp", b, 32) for b in (128, 256, 64)] if count * 2 >= 32 * vector or count <= 32 else []
    return found + [("block", b, b) for b in (128, 256, 512, 1024) if b * vector <= 2 * count]


def _limit(block: int) -> int:
    return min(HELD, 65536 // block - 24)


def _inter_block(kind: str, vector: int, count: int, crossing: int) -> list[StageSchedule]:
    """Blocks that share a row (32 of them) and keep it in registers."""
    found = []
    for block in (256, 512):
        lanes = block // TILE if kind == "joined_tile" else block
        for held in (4, 8, 16, 32):
            blocks = -(-count * crossing // (lanes * max(vector * crossing, held)))
            if 2 <= blocks <= MOST:
                found.append(StageSchedule(kind, vector, block, True, blocks))
    return found


def needing(stage: Stage, scan: Op) -> set[str]:
    """Operations that need the scan's result, and it."""
    found = {scan.name}
    for op in stage.ops:
        if found & set(read_names(op)):
            found.add(op.name)
    return found


def crossing_values(stage: Stage) -> set[str]:
    """What is made or loaded before the scan and needed after it, and the scan itself."""
    scan = next(o for o in stage.ops if is_barrier(o))
    after, late, kept = needing(stage, scan), late_loads(stage), set(stage.kept)
    wanted = {k for o in stage.ops if o.name in after and o is not scan for k in operand_keys(o)}
    wanted |= {v for b in stage.loads if b.key in wanted & late.keys() for v in b.index_values}
    wanted |= {b.value for b in stage.writes}
    before = [o for o in stage.ops if o.name not in after]
    early = {k for o in (*before, scan) for k in operand_keys(o)}
    made = {o.name for o in before if not set(o.axes) <= kept}
    loaded = {b.key for b in stage.loads if not set(b.span) <= kept and (b.key not in late or b.key in early)}
    return {scan.name} | wanted & (made | loaded)


def _estimate(stage: Stage, crossing: int) -> Callable[[StageSchedule], float]:
    """Microseconds on an H100, roughly."""
    program, axis = stage.program, stage.reduced[0]
    rows, count = program.size(stage.kept), program.axis[axis].size
    whole = [b for b in stage.tensors if axis in b.span]

    def estimate(s: StageSchedule) -> float:
        tile = s.kind in ("tile", "joined_tile")
        lanes = {"thread": 1, "warp": 32, "tile": s.block // TILE, "joined_tile": s.block // TILE}.get(
            s.kind, s.block
        )
        by_column = tile or s.kind == "thread"
        moved = 0.0
        for b in whole:
            size = ITEM_BYTES[b.dtype]
            apart = is_unit_stride(b, axis) == by_column and not (by_column and count * size <= 64)
            moved += program.size(b.span) * size * (max(1.0, 32 / size / s.vector) if apart else 1.0)
        held = -(-count // (lanes * s.vector * s.splits)) * s.vector if s.cached else STEP
        steps = -(-count // (lanes * held * s.splits))
        registers = 24 + held * crossing
        resident = min(2048 // s.block, 65536 // (registers * s.block), 32) or 1
        blocks = rows * lanes * s.splits / s.block
        full = blocks / (SM_COUNT * resident)
        chunks = held / s.vector
        chain = CHAIN_US + CHUNK_US * chunks + BARRIER_US * (lanes > 32 or tile)
        if tile:
            chain += 0.01 * lanes + CHUNK_US * held
        useful = count / (lanes * held * s.splits * steps)
        flight = min(
            1.0, min(1.0, full) * resident * s.block * held * useful * 4 / 24576
        )  # bytes on their way an SM
        memory = moved / (BYTES_A_US * max(flight, 0.02))
        shuffled = program.size((*stage.kept, axis)) / s.vector * LANES_THAT_SCAN.get(s.kind, 0) / SHUFFLES_A_US
        serial = steps * chain * max(1.0, full)
        return max(memory, shuffled, serial) + 0.3 * min(memory, serial) + WAIT_US * (s.splits > 1)

    return estimate
