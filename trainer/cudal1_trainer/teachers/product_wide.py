"""Writes product stages for warp groups (product_wide of the device header).

Operands lie k by k in memory, in whole vectors of 16 bytes; those that do not are packed first (product_pack.py).
Operands of TF32 always are, which rounds them too, so that arithmetic is for convolutions with windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod

from cudal1_fx_passes.program import ITEM_BYTES
from cudal1_trainer.teachers.product import ProductWriter
from cudal1_trainer.teachers.product_copies import ITEMS, ordered
from cudal1_trainer.teachers.product_layouts import blocks_of
from cudal1_trainer.teachers.product_pack import Packer, pack_stage
from cudal1_trainer.teachers.product_pipe import PipeWriter
from cudal1_trainer.teachers.product_sides import PHASED, WIDE, Sides, phases_of
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel
from cudal1_trainer.teachers.stage import Stage

MAX_SHARED = 225 * 1024  # of a multiprocessor
ROW_BYTES = (128, 64, 32)  # of a tile's row
TILES = (
    *((64, 32), (64, 64), (64, 128), (64, 256), (128, 32), (128, 64), (128, 128), (128, 192), (128, 256)),
    *((256, 64), (256, 128)),
)
SPLITS = (1, 2, 4, 8, 16)


def wide_schedules(stage: Stage, resident: int) -> list[StageSchedule]:
    """Tiles by their expected time; none where an operand cannot lie as it has to."""
    sides = ordered(stage)
    found = [
        s
        for a in sides.arithmetics
        if a in ("f16", "bf16") or a.startswith("tf32") and stage.program.size(sides.taps) > 1
        if pack_stage(stage, a, 0) is not None
        for s in _tiles(stage, sides, a, resident)
    ]
    return sorted(found, key=lambda s: expected_us(stage, sides, s, resident))


def _tiles(stage: Stage, sides: Sides, arithmetic: str, resident: int) -> Iterator[StageSchedule]:
    """Each tile with its sums whole, and cut where that is expected to be faster."""
    size, depth = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)], stage.program.size(sides.channels)
    bk = min((b // size for b in ROW_BYTES if b // size <= depth), key=lambda k: -(-depth // k) * (k * size + 64))
    form = arithmetic + (PHASED if phases_of(sides.a) else "") + WIDE
    for bm, bn in TILES:
        if not room_for((bm, bn, bk), arithmetic):
            continue
        whole = StageSchedule(form, 1, 2 * bm, tile=(bm, bn, bk))
        parts = [1] if phases_of(sides.a) else [n for n in SPLITS if n * bk <= depth]
        fastest = min(parts, key=lambda n: expected_us(stage, sides, replace(whole, splits=n), resident))
        yield whole
        if fastest > 1:
            yield replace(whole, splits=fastest)


def arithmetic_of(schedule: StageSchedule) -> str:
    return schedule.mapping.removesuffix(WIDE).removesuffix(PHASED)


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
    size = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]
    return 0 if registers > 255 else min(MAX_SHARED // shared_bytes(tile, size), 65536 // (2 * bm * registers), 8)


def expected_us(stage: Stage, sides: Sides, schedule: StageSchedule, resident: int) -> float:
    """For comparison within a stage, on an H100: what limits a step, times the rounds of blocks."""
    assert schedule.tile is not None
    program, (bm, bn, bk) = stage.program, schedule.tile
    arithmetic = arithmetic_of(schedule)
    size = ITEM_BYTES[ITEMS.get(arithmetic, arithmetic)]
    blocks = blocks_of(stage, sides, (bm, bn)) * schedule.splits
    at_once = min(room_for(schedule.tile, arithmetic), ceil(blocks / resident))
    depth = -(-program.size(sides.channels) // (schedule.splits * bk))
    steps = depth * program.size(sides.taps) / prod(p.step for p in phases_of(sides.a))
    products = bm * bn * bk * size / 4096 * (1.5 if arithmetic.endswith("long") else 1.2)
    copies = (bm + bn) * bk * size / 40
    step = max(at_once * max(products, copies), 1000 / (stages_of(schedule.tile, size) - 2))
    cycles = ceil(blocks / (resident * at_once)) * (1500 + steps * step + at_once * bm * bn / 6)
    joined = 2 + program.size((*sides.batch, *sides.m, *sides.n)) * (schedule.splits * 4 + 4) / 2e6
    return cycles / 1700 + (joined if schedule.splits > 1 else 0)


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
        size = ITEM_BYTES[ITEMS.get(self.arithmetic, self.arithmetic)]
        self.shared_bytes = shared_bytes(tile, size)
        words: Sequence[object] = (self.arithmetic, *tile, stages_of(tile, size))
        return f"product_wide<{', '.join(map(str, words))}>({self._size(self.sides.taps)}, {depth},"
