"""Which products product_bulk and product_fill may multiply: their tiles, stages, occupancy and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as product_of
from math import prod

from cudal1_compile.codegen.products.copies import COPY_BYTES, ordered, strides_of
from cudal1_compile.codegen.products.planes import Planes, Planes2d, planes_of
from cudal1_compile.codegen.products.sides import (
    BULK_COPY,
    IMPLICIT_GEMM,
    IMPLICIT_GEMM_2D,
    LONG_SUM,
    PHASED,
    Sides,
    arithmetic_of,
    before,
    phases_of,
)
from cudal1_compile.codegen.products.warp_groups import item_bytes
from cudal1_compile.codegen.products.warp_layouts import RESIDENT, evaluated
from cudal1_compile.codegen.stages.pointwise import memory_order
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import grouped, vector_fits
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_compile.kernel.candidate import MAX_EXPRESSION

MAX_SHARED = 226 * 1024  # of an SM
BARRIERS = 384  # bytes, with what aligns them
TILES = (
    *((256, 32), (256, 64), (256, 128), (192, 64), (192, 128)),
    *((128, 32), (128, 64), (128, 128), (128, 256), (64, 64), (64, 128), (64, 256)),
)
ROW_BYTES = (128, 256, 64)  # of a position in a tile
MIN_STAGES, MAX_STAGES = 3, 6
MAX_BLOCKS = 4
SPLITS = (1, 2, 4, 8)
MIN_DEPTH = 16  # channels
MIN_COLUMNS = 512  # of a product without windows: what is packed is read often enough
MIN_TAPS = 4  # steps of a window: what is computed for a halo tile is read often enough
PRODUCER_REGISTERS = 64  # registers of a thread that fills a halo tile
QUARTER = 512  # registers by lanes
MAX_2D, GAIN_2D = 1.15, 0.85  # tiles of eight rows, over those of one run; positions of their halo tiles
COPY_PRODUCERS, COMPUTE_PRODUCERS = 32, 256  # threads besides the consumers; where they compute halo tiles


@dataclass(frozen=True, slots=True)
class BulkCopyPlan:
    """inner: window axes of a halo tile; blocks: of an SM; shared: bytes, as a launch expression."""

    inner: int
    stages: int
    halos: int
    blocks: int
    shared: str


def bulk_copy_schedules(stage: Stage) -> Iterator[StageSchedule]:
    """Every tile that fits, its sums whole and cut."""
    sides, size = ordered(stage), stage.program.size
    planes = planes_of(stage, sides)
    depth, columns = size(sides.channels), size(sides.n)
    if planes is None or depth < MIN_DEPTH or not (sides.taps or max(columns, depth) >= MIN_COLUMNS):
        return
    if all(x.stride == 1 for x in planes.axes):
        yield from _tiles(stage, sides, planes, BULK_COPY, COPY_PRODUCERS)
    if prod(x.taps for x in planes.axes) >= MIN_TAPS and _may_compute_halo(stage, sides):
        yield from _tiles(stage, sides, planes, IMPLICIT_GEMM, COMPUTE_PRODUCERS)
        if len(planes.axes) > 1 and all(x.step == 1 for x in planes.axes):
            planes_2d = Planes2d(planes.plain, planes.axes)
            found = _tiles(stage, sides, planes_2d, IMPLICIT_GEMM_2D, COMPUTE_PRODUCERS)
            yield from (s for s in found if s.tile and _is_worth(stage, planes, planes_2d, s.tile[0]))


def geometry_of(stage: Stage, sides: Sides, schedule: StageSchedule) -> Planes:
    """Of a schedule that bulk_copy_schedules gave."""
    planes = planes_of(stage, sides)
    assert planes is not None
    return Planes2d(planes.plain, planes.axes) if schedule.kind.endswith(IMPLICIT_GEMM_2D) else planes


def by_vectors(stage: Stage, sides: Sides) -> bool:
    """Whether channels lie side by side in the image: then few neighbouring positions do."""
    loads = [strides_of(stage, b) for b in before(stage, sides.a.name)[0] if len(b.axes) > 1]
    return any(min(at, key=lambda a: at[a]) in sides.channels for at in loads)


def _may_compute_halo(stage: Stage, sides: Sides) -> bool:
    """Whether reads of a halo tile coalesce: along positions, or along channels in whole vectors of 16 bytes."""
    if not by_vectors(stage, sides):
        return True
    vector = max(COPY_BYTES // item_bytes(a) for a in sides.arithmetics)
    loads = before(stage, sides.a.name)[0]
    fitting = all(vector_fits(stage.program, b, sides.channels[-1], vector) for b in loads)
    return len(sides.channels) == 1 and fitting


def _between(stage: Stage, sides: Sides, schedule: StageSchedule) -> int:
    """Positions more that a halo tile has so that its planes lie apart."""
    assert schedule.tile is not None
    if not schedule.kind.endswith((IMPLICIT_GEMM, IMPLICIT_GEMM_2D)) or not by_vectors(stage, sides):
        return 0
    planes = schedule.tile[2] * item_bytes(arithmetic_of(schedule)) // COPY_BYTES
    return 2 * max(8 // planes, 1) - 1


def _tiles(stage: Stage, sides: Sides, planes: Planes, form: str, further: int) -> Iterator[StageSchedule]:
    """further: threads besides those that multiply."""
    size = stage.program.size
    depth, columns, terms = size(sides.channels), size(sides.n), size(sides.over)
    form = (PHASED if phases_of(sides.a) else "") + form
    for arithmetic in sides.arithmetics:
        if not arithmetic.startswith(("tf32", "f16", "bf16")):
            continue
        for splits, bk, (bm, bn) in product_of(SPLITS, _depths(depth, item_bytes(arithmetic)), TILES):
            short = arithmetic.removesuffix("_long") if terms <= splits * LONG_SUM else arithmetic
            schedule = StageSchedule(short + form, 1, 2 * bm + further, splits=splits, tile=(bm, bn, bk))
            many = splits > 1 and (splits * bk > depth or waiting_for(stage, sides, planes, schedule) > 2)
            empty = bn >= 2 * columns and bn > 32
            if not many and not empty and plan_of(stage, sides, planes, schedule) is not None:
                yield schedule


def _is_worth(stage: Stage, planes: Planes, planes_2d: Planes2d, rows: int) -> bool:
    """Whether tiles of eight rows have less around them, and little outside of the image."""
    more = evaluated(stage, planes_2d.tall(rows)) / evaluated(stage, planes.tall(rows))
    positions = evaluated(stage, planes.halo(rows, 2))
    return more <= MAX_2D and more * evaluated(stage, planes_2d.halo(rows, 2)) <= GAIN_2D * positions


def _depths(depth: int, size: int) -> list[int]:
    """Channels of a step: those that leave little empty; short ones only where they leave less."""
    padded = {b // size: -(-depth // (b // size)) * (b // size) for b in ROW_BYTES}
    least = min(padded.values())
    long = [k for k, n in padded.items() if k * size > ROW_BYTES[-1] and n * 4 <= least * 5]
    return long or [ROW_BYTES[-1] // size]


def waiting_for(stage: Stage, sides: Sides, planes: Planes, schedule: StageSchedule) -> int:
    """Blocks of the busiest SM."""
    assert schedule.tile is not None
    (bm, bn, _), size = schedule.tile, stage.program.size
    tiles = evaluated(stage, planes.tall(bm)) * prod(x.step for x in planes.axes)
    return -(-tiles * -(-size(sides.n) // bn) * size(sides.batch) * schedule.splits // RESIDENT)


def _room(schedule: StageSchedule) -> int:
    """Blocks of an SM, by its registers."""
    assert schedule.tile is not None
    registers = -(-registers_of(schedule) // 8) * 8
    if not schedule.kind.endswith((IMPLICIT_GEMM, IMPLICIT_GEMM_2D)):
        return 65536 // (registers * schedule.block)
    groups = schedule.tile[0] // 64  # of four warps, one to each quarter of an SM
    blocks, even = QUARTER // (max(registers, PRODUCER_REGISTERS) * (groups + 2)), QUARTER // (groups + 2) // 8 * 8
    # those who fill give some away, but an instruction's own must fit into an even share
    more = even + (even - PRODUCER_REGISTERS) * 2 // groups // 8 * 8
    return blocks or int(registers <= more and schedule.tile[1] // 2 + 26 <= even)


def registers_of(schedule: StageSchedule) -> int:
    """Of a thread, at least, as ptxas has it."""
    assert schedule.tile is not None
    bn = schedule.tile[1]
    return (bn if "long" in schedule.kind else bn // 2) + 32


def _positions(halos: int, parts: int, length: str, between: int) -> str:
    """Of all halo tiles."""
    if not between:
        return product(halos * parts, grouped(length))
    return f"{halos} * ({product(parts, grouped(length)) if parts > 1 else length} + {between})"


def plan_of(stage: Stage, sides: Sides, planes: Planes, schedule: StageSchedule) -> BulkCopyPlan | None:
    """The most window axes in a halo tile, then the most blocks of an SM, then stages."""
    assert schedule.tile is not None
    (bm, bn, bk), size = schedule.tile, item_bytes(arithmetic_of(schedule))
    along = memory_order(stage)[-1:] == sides.n[-1:]
    sums = f"{bm} * ({bn} + 8) * 4" if along else f"{bn} * ({bm} + 4) * 4"
    room = min(_room(schedule), waiting_for(stage, sides, planes, schedule), MAX_BLOCKS)
    between = _between(stage, sides, schedule)
    wanted = (schedule.in_flight,) if schedule.in_flight else range(MAX_STAGES, MIN_STAGES - 1, -1)
    for inner in planes.inner:
        taps = prod(x.taps for x in planes.axes[len(planes.axes) - inner :])
        length, parts = planes.halo(bm, inner), planes.parts(inner)
        for blocks in range(room, 0, -1):
            for stages in wanted:
                halos = 2 if taps >= 4 else 3 if taps > 1 else stages
                positions = _positions(halos, parts, length, between)
                tiles = f"({stages * bn} + {positions}) * {bk * size}"
                text = f"{BARRIERS} + max({tiles}, {sums})"
                if len(text) <= MAX_EXPRESSION and evaluated(stage, text) + 1024 <= MAX_SHARED // blocks:
                    return BulkCopyPlan(inner, stages, halos, blocks, text)
    return None
