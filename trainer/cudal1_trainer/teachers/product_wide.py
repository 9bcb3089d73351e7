"""Writes product stages for warp groups (product_wide of the device header).

Operands lie k by k in memory, in whole vectors of 16 bytes; those that do not are packed first (product_pack.py).
Operands of TF32 always are, which rounds them too, so that arithmetic is for windows and for many channels.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudal1_fx_passes.program import ITEM_BYTES
from cudal1_trainer.teachers.product import ProductWriter
from cudal1_trainer.teachers.product_copies import ITEMS, ordered
from cudal1_trainer.teachers.product_pack import Packer, pack_stage
from cudal1_trainer.teachers.product_pipe import PipeWriter
from cudal1_trainer.teachers.product_sides import LONG_SUM, PHASED, WIDE, Sides, phases_of
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel
from cudal1_trainer.teachers.stage import Stage

MAX_SHARED = 225 * 1024  # of a multiprocessor
ROW_BYTES = (128, 64, 32)  # of a tile's row
TILES = (
    *((256, 64), (256, 128), (128, 32), (128, 64), (128, 128), (128, 192), (128, 256)),
    *((64, 32), (64, 64), (64, 128), (64, 256)),
)
SPLITS = (1, 2, 4, 8, 16)
DEEP = 512  # channels


def wide_schedules(stage: Stage) -> list[StageSchedule]:
    """Every tile that fits; none where an operand cannot lie as it has to."""
    sides = ordered(stage)
    return [
        s
        for a in sides.arithmetics
        if a in ("f16", "bf16") or a.startswith("tf32") and _pays(stage, sides)
        if pack_stage(stage, a, 0) is not None
        for s in _tiles(stage, sides, a)
    ]


def _pays(stage: Stage, sides: Sides) -> bool:
    """Whether an operand is read often enough, or summed over enough, to be packed first."""
    return stage.program.size(sides.taps) > 1 or stage.program.size(sides.channels) >= DEEP


def _tiles(stage: Stage, sides: Sides, arithmetic: str) -> Iterator[StageSchedule]:
    """Each tile with its sums whole and cut; parts of long sums may be short ones.

    Cached: rows that neighbouring taps share go through the multiprocessor's own cache.
    """
    size, depth = item_bytes(arithmetic), stage.program.size(sides.channels)
    bk = min((b // size for b in ROW_BYTES if b // size <= depth), key=lambda k: -(-depth // k) * (k * size + 64))
    terms = stage.program.size(sides.over)
    phased = PHASED if phases_of(sides.a) else ""
    shared = (False, True) if sides.a.access and stage.program.size(sides.taps) > 1 else (False,)
    for splits in SPLITS:
        short = arithmetic.removesuffix("_long") if terms <= splits * LONG_SUM else arithmetic
        if splits > 1 and (phased or splits * bk > depth):
            break
        for bm, bn in TILES:
            if room_for((bm, bn, bk), short):
                form = short + phased + WIDE
                yield from (StageSchedule(form, 1, 2 * bm, near, splits, (bm, bn, bk)) for near in shared)


def arithmetic_of(schedule: StageSchedule) -> str:
    return schedule.mapping.removesuffix(WIDE).removesuffix(PHASED)


def item_bytes(arithmetic: str) -> int:
    return ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]


def stages_of(tile: tuple[int, int, int], size: int) -> int:
    """Tiles on their way: as many as let two blocks share a multiprocessor, if that is three."""
    taken = (tile[0] + tile[1]) * tile[2] * size
    return min(5, MAX_SHARED // 2 // taken) if 3 * taken <= MAX_SHARED // 2 else 4


def shared_bytes(tile: tuple[int, int, int], size: int) -> int:
    bm, bn, bk = tile
    return 1024 + max(stages_of(tile, size) * (bm + bn) * bk * size, bn * (bm + 4) * 4)


def room_for(tile: tuple[int, int, int], arithmetic: str) -> int:
    """Blocks that share a multiprocessor."""
    bm, bn, _ = tile
    registers = (bn if arithmetic.endswith("long") else bn // 2) + 60  # of a thread
    if registers > 255:
        return 0
    return min(MAX_SHARED // shared_bytes(tile, item_bytes(arithmetic)), 65536 // (2 * bm * registers), 8)


class WideWriter(PipeWriter):
    """One product stage: its kernels are numbered from `first`, its scratch from `scratch`."""

    def __init__(self, stage: Stage, schedule: StageSchedule, first: int, scratch: int) -> None:
        self.arithmetic = arithmetic_of(schedule)
        made = pack_stage(stage, self.arithmetic, scratch)
        assert made is not None
        self.plain, self.first, self.scratch, self.packs = stage, first, scratch, False
        packed, self.packed = made
        ProductWriter.__init__(self, packed, schedule, f"f{first + bool(self.packed)}")
        self.threads = schedule.block
        self.sides = ordered(packed)

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
        tile = self.schedule.tile
        assert tile is not None
        size = item_bytes(self.arithmetic)
        self.shared_bytes = shared_bytes(tile, size)
        words = (self.arithmetic, *tile, stages_of(tile, size), *([1] if self.schedule.cached else []))
        return f"product_wide<{', '.join(map(str, words))}>({self._size(self.sides.taps)}, {depth},"
