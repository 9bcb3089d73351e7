"""Which schedules a product stage may have, the likely best first."""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.products.bulk_copy_plan import bulk_copy_schedules
from cudal1_compile.codegen.products.few_channel_halo import few_channel_halo_schedules
from cudal1_compile.codegen.products.halo_tile import halo_tile_schedules
from cudal1_compile.codegen.products.multistage import multistage_schedules
from cudal1_compile.codegen.products.offset_table import fits_table
from cudal1_compile.codegen.products.register_blocked import ALL
from cudal1_compile.codegen.products.register_blocked_nhwc import MAX_HELD, nhwc_schedules
from cudal1_compile.codegen.products.register_blocked_phases import phase_schedules
from cudal1_compile.codegen.products.sides import (
    OFFSET_TABLE,
    PHASED,
    TAPS,
    THREADS,
    Sides,
    dot_of,
    phases_of,
    slides_of,
)
from cudal1_compile.codegen.products.spread import spread_of, spread_schedule
from cudal1_compile.codegen.products.times import Times
from cudal1_compile.codegen.products.warp_groups import warp_group_schedules
from cudal1_compile.codegen.products.warp_layouts import RESIDENT
from cudal1_compile.codegen.products.window_sums import window_schedules
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import Ref

DIRECT_TERMS = 512  # at most, of one thread's loop; more where there is one column, and so no tile
# rows, columns, depth of a tile; the depth is doubled for half types
TILES = ((128, 64, 16), (128, 128, 16), (128, 32, 16), (64, 64, 16), (64, 32, 32), (32, 128, 16), (128, 8, 16))
FEW = 8  # columns, most of which a tile would leave empty
NEAR = 4  # schedules
DEEP = 16  # channels from which on the window is worth a walk of its own


def schedules(stage: Stage) -> list[StageSchedule]:
    """The likely best first; none where a window reads along an axis of its result, whose index has one name."""
    read = [position for x in dot_of(stage).operands if isinstance(x, Ref) for position in x.access]
    if any(a == name for a, i in read for _, name in i.terms):
        return []
    found = _schedules(stage)
    if (spread := spread_of(stage)) is not None:
        found = [s for s in found if not s.tile] + [spread_schedule(s) for s in _schedules(spread) if s.tile]
    return _varied(sorted(found, key=Times(stage).us))


def _schedules(stage: Stage) -> list[StageSchedule]:
    sides = Sides(stage)
    program = stage.program
    tall, columns, depth = (program.size(axes) for axes in (sides.m, sides.n, sides.over))
    found = []
    if sides.arithmetics and columns > 1:
        tiles = sorted(TILES, key=lambda t: _waste(tall, columns, t))
        forms = ["", TAPS] if sides.taps and program.size(sides.channels) >= DEEP else [""]
        if phases_of(sides.a):
            forms = [PHASED + f for f in forms]
        for arithmetic in sides.arithmetics:
            deeper = 2 if arithmetic in ("f16", "bf16") else 1
            found += [
                StageSchedule(arithmetic + form, 1, THREADS, tile=(m, n, k * deeper))
                for m, n, k in tiles[:4]
                for form in forms[::-1]
            ]
            tabled = [replace(s, kind=arithmetic + OFFSET_TABLE) for s in found if s.kind == arithmetic]
            found += [s for s in tabled if fits_table(stage, sides, s)]
        blocks = -(-tall // tiles[0][0]) * -(-columns // tiles[0][1]) * program.size(sides.batch)
        parts = min(depth // 64, 2 * RESIDENT // blocks)
        if parts > 1 and not phases_of(sides.a):
            # few results of many terms: enough blocks only if the sums are cut
            splits = 2 ** (parts.bit_length() - 1)
            cut = [replace(s, splits=n) for s in found[:2] for n in (splits, splits // 2) if n > 1]
            found = [s for s in cut if not s.kind.endswith((TAPS, OFFSET_TABLE))] + found
        found += multistage_schedules(stage, RESIDENT) + halo_tile_schedules(stage, RESIDENT)
        found += [*warp_group_schedules(stage), *few_channel_halo_schedules(stage), *bulk_copy_schedules(stage)]
    slides = slides_of(stage, sides)
    if slides is not None and 1 < columns <= FEW:
        held = columns * program.size((slides[0].window, slides[1].window))
        found += [
            StageSchedule(ALL, r, b) for r in (8, 4, 2) for b in (256, 128) if r * columns + held <= MAX_HELD
        ]
    found += phase_schedules(stage, sides)
    summed = window_schedules(stage, sides)
    found += summed
    if depth <= DIRECT_TERMS or columns == 1 and not summed:
        if slides is not None:
            found += [StageSchedule("strip", rows, block) for rows in (8, 4) for block in (256, 128)]
        found += nhwc_schedules(stage, sides)
        found += [StageSchedule("direct", 1, block) for block in (256, 128)]
    return found


def _varied(found: list[StageSchedule]) -> list[StageSchedule]:
    """Of a tile, the best cut and the whole; few whose rows go through L1."""
    first: dict[object, StageSchedule] = {}
    for s in found:
        first.setdefault((s.kind, s.block, s.tile or s.vector, s.cached, s.splits > 1 if s.tile else s.splits), s)
    near = [s for s in first.values() if s.cached][:NEAR]
    return [s for s in first.values() if not s.cached or s in near]


def _waste(rows: int, columns: int, tile: tuple[int, int, int]) -> tuple[float, int]:
    """Computed results over wanted ones, in steps that matter; then the larger tile."""
    m, n, _ = tile
    computed = -(-rows // m) * m * -(-columns // n) * n
    blocks = -(-rows // m) * -(-columns // n)
    share = computed / (rows * columns)
    return round(share * (1.0 if blocks >= 132 else 132 / blocks), 1), -m * n
