"""Writes products for warp groups: wgmma over swizzled tiles in shared memory (product_wide of the device header).

Operands lie K-major in memory, in whole vectors of 16 bytes; those that do not are packed first (packing.py).
Operands of TF32 are rounded by that, but for the larger one where it lies so: it may be rounded on its way (raw).
Where both are packed, that arithmetic is for windows and for many channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cudal1_compile.codegen.products.columns import ColumnWriter
from cudal1_compile.codegen.products.copies import ITEMS, ordered
from cudal1_compile.codegen.products.multistage import MultistageWriter
from cudal1_compile.codegen.products.packing import Packer, pack_stage
from cudal1_compile.codegen.products.product import ProductWriter
from cudal1_compile.codegen.products.sides import (
    LONG_SUM,
    PHASED,
    RAW,
    WARP_GROUPS,
    Sides,
    arithmetic_of,
    phases_of,
)
from cudal1_compile.codegen.products.warp_layouts import RESIDENT, blocks_of
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES

MAX_SHARED = 224 * 1024  # of an SM
NEAR_SHARED = 160 * 1024  # leaves L1 something
ALIGNED = 1024
MAX_BLOCKS, MIN_STAGES, MAX_STAGES = 4, 3, 6
ROW_BYTES = (128, 64, 32)  # of a tile's row
TILES = (
    *((256, 16), (256, 64), (256, 128), (192, 64), (192, 128), (192, 192)),
    *((128, 16), (128, 32), (128, 64), (128, 128), (128, 192), (128, 256)),
    *((64, 32), (64, 64), (64, 128), (64, 256)),
)
SPLITS = (1, 2, 4, 8, 16)
DEEP = 512  # channels, or columns


def warp_group_schedules(stage: Stage) -> list[StageSchedule]:
    """Every tile that fits; none where an operand cannot lie as it has to."""
    return [
        s
        for raw in (False, True)
        for sides in (ordered(stage, raw),)
        for a in sides.arithmetics
        if a in ("f16", "bf16") and not raw or a.startswith("tf32") and (raw or _pays(stage, sides))
        if pack_stage(stage, a, 0, raw) is not None
        for s in _tiles(stage, sides, a, raw)
    ]


def _pays(stage: Stage, sides: Sides) -> bool:
    """Whether an operand is read often enough, or summed over enough, to be packed first."""
    size = stage.program.size
    return size(sides.taps) > 1 or max(size(sides.channels), size(sides.n)) >= DEEP


def _tiles(stage: Stage, sides: Sides, arithmetic: str, raw: bool) -> Iterator[StageSchedule]:
    """Each tile with its sums whole and cut; parts of long sums may be short ones.

    Cached: rows that neighbouring taps share go through the SM's own cache.
    """
    size, depth = item_bytes(arithmetic), stage.program.size(sides.channels)
    fitting = [k for b in ROW_BYTES if (k := b // size) <= depth or k % depth == 0]
    bk = min(fitting, key=lambda k: steps_of(stage, sides, k) * (k * size + 64))
    terms = stage.program.size(sides.over)
    form = (PHASED if phases_of(sides.a) else "") + RAW * raw + WARP_GROUPS
    shared = (False, True) if sides.a.access and stage.program.size(sides.taps) > 1 else (False,)
    for splits in SPLITS:
        short = arithmetic.removesuffix("_long") if terms <= splits * LONG_SUM else arithmetic
        if splits > 1 and splits * bk > depth:
            break
        for bm, bn in TILES:
            made = [StageSchedule(short + form, 1, 2 * bm, near, splits, (bm, bn, bk)) for near in shared]
            yield from (s for s in made if occupancy(s, 1)[0])


def steps_of(stage: Stage, sides: Sides, bk: int, splits: int = 1) -> int:
    """Tiles of one sum: several taps in one where they are short."""
    depth, phases = stage.program.size(sides.channels), prod(p.step for p in phases_of(sides.a))
    taps = -(-stage.program.size(sides.taps) // phases)
    return -(-taps // taps_at_once(depth, bk)) * -(-depth // (splits * bk))


def taps_at_once(depth: int, bk: int) -> int:
    return max(bk // depth, 1)


def item_bytes(arithmetic: str) -> int:
    return ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]


def occupancy(schedule: StageSchedule, waiting: int) -> tuple[int, int]:
    """Blocks that share an SM where so many are `waiting`, and tiles of each on their way.

    Blocks first, so that one begins or ends while others multiply; no block where it has not the registers.
    """
    assert schedule.tile is not None
    (bm, bn, _), arithmetic = schedule.tile, arithmetic_of(schedule)
    registers = (bn if arithmetic.endswith("long") else bn // 2) + (58 if RAW in schedule.kind else 48)
    shared = NEAR_SHARED if schedule.cached else MAX_SHARED
    for blocks in range(min(waiting, 65536 // (2 * bm * registers), MAX_BLOCKS) if registers < 255 else 0, 0, -1):
        stages = min((shared // blocks - ALIGNED) // stage_bytes(schedule), schedule.in_flight or MAX_STAGES)
        if stages >= (schedule.in_flight or MIN_STAGES) and ALIGNED + (bn + 8) * (bm + 4) * 4 <= shared // blocks:
            return blocks, stages
    return 0, 0


def stage_bytes(schedule: StageSchedule) -> int:
    assert schedule.tile is not None
    bm, bn, bk = schedule.tile
    return (bm + bn) * bk * item_bytes(arithmetic_of(schedule))


def waiting_for(stage: Stage, sides: Sides, schedule: StageSchedule) -> int:
    """Blocks of the busiest SM."""
    assert schedule.tile is not None
    return -(-blocks_of(stage, sides, schedule.tile[:2]) * schedule.splits // RESIDENT)


class WarpGroupWriter(ColumnWriter, MultistageWriter):
    """One product stage: its kernels are numbered from `first`, its scratch from `scratch`."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        self.arithmetic = arithmetic_of(schedule)
        self.raw = RAW in schedule.kind
        made = pack_stage(stage, self.arithmetic, scratch, self.raw)
        assert made is not None
        self.plain, self.first, self.scratch, self.packs = stage, first, scratch, False
        packed, self.packed = made
        ProductWriter.__init__(self, packed, schedule, f"f{first + bool(self.packed)}")
        self.threads = schedule.block
        self.sides = ordered(packed, self.raw)

    def write_all(self) -> list[Kernel]:
        made = []
        if self.packed:
            packer = Packer(self.plain, self.schedule, f"f{self.first}")
            made = [packer.pack(self.packed, self.arithmetic.startswith("tf32"))]
        if self.schedule.splits > 1:
            return made + self.write_split(f"f{self.first + len(made) + 1}", self.scratch + len(self.packed))
        return [*made, self.write()]

    def _call(self, depth: str) -> str:
        """Opens the call; its launch asks for the stages' memory."""
        assert self.schedule.tile is not None
        (bm, bn, bk), size = self.schedule.tile, item_bytes(self.arithmetic)
        _, stages = occupancy(self.schedule, waiting_for(self.stage, self.sides, self.schedule))
        along = self._is_along()
        tiles = f"{stages} * ({bm} + {bn}) * {bk} * {size}"
        sums = f"{bm} * ({bn} + 8) * 4" if along else f"{bn} * ({bm} + 4) * 4"
        self.shared_bytes = f"{ALIGNED} + max({tiles}, {sums})"
        taps = taps_at_once(self.stage.program.size(self.sides.channels), bk)
        further = [int(x) for x in (self.schedule.cached, taps, self.raw, along)]
        while further and further[-1] == (0, 1, 0, 0)[len(further) - 1]:  # as the header has it anyway
            further.pop()
        words = (self.arithmetic, bm, bn, bk, stages, *further)
        return f"product_wide<{', '.join(map(str, words))}>({self._size(self.sides.taps)}, {depth},"
