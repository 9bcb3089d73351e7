"""How a tile is divided among warps, and which tiles are likely the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from cudal1_compile.codegen.products.sides import Sides, phases_of
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.stage import Stage
from cudal1_compile.kernel.candidate import Expr

RESIDENT = 132  # SMs of the largest GPU in use
LONG = ("f32_split", "tf32_long")  # a thread holds each of its sums twice
MAX_LONG = 2048  # results of a warp that does


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows and columns of a tile, and of a warp within it."""

    tile: tuple[int, int]
    warp: tuple[int, int]

    @property
    def threads(self) -> int:
        return 32 * (self.tile[0] // self.warp[0]) * (self.tile[1] // self.warp[1])


# Of two for a tile, the one with more threads is for results that have few blocks: an SM has one then.
LAYOUTS = (
    *(Layout((128, 128), (64, 64)), Layout((128, 128), (64, 32)), Layout((256, 128), (64, 64))),
    *(Layout((128, 64), (64, 32)), Layout((128, 64), (32, 32)), Layout((128, 256), (64, 64))),
    *(Layout((64, 128), (32, 64)), Layout((64, 128), (32, 32)), Layout((128, 32), (32, 32))),
    *(Layout((64, 64), (32, 32)), Layout((64, 64), (32, 16)), Layout((64, 32), (32, 16))),
)


def layouts_for(
    stage: Stage, sides: Sides, arithmetic: str, resident: int, known: Sequence[Layout]
) -> list[Layout]:
    """One of each tile: of two, the one with more threads where there are few blocks."""
    chosen: dict[tuple[int, int], Layout] = {}
    for x in sorted(known, key=lambda x: x.threads):
        more = arithmetic in LONG or blocks_of(stage, sides, x.tile) <= resident
        if (x.tile not in chosen or more) and (arithmetic not in LONG or prod(x.warp) <= MAX_LONG):
            chosen[x.tile] = x
    return list(chosen.values())


def evaluated(stage: Stage, text: str) -> int:
    """A launch expression at the stage's sizes."""
    return _evaluate(text, tuple((a.name, a.size) for a in stage.program.axes))


@lru_cache(maxsize=4096)
def _evaluate(text: str, dims: tuple[tuple[str, int], ...]) -> int:
    return Expr(text).evaluate(dict(dims))


def warp_of(schedule: StageSchedule, known: Sequence[Layout]) -> tuple[int, int]:
    assert schedule.tile is not None
    return next(x.warp for x in known if (x.tile, x.threads) == (schedule.tile[:2], schedule.block))


def blocks_of(stage: Stage, sides: Sides, tile: tuple[int, int]) -> int:
    program, (bm, bn) = stage.program, tile
    phases = prod(p.step for p in phases_of(sides.a))
    groups = program.size(sides.batch) * phases
    return -(-program.size(sides.m) // (phases * bm)) * -(-program.size(sides.n) // bn) * groups


def estimate(stage: Stage, sides: Sides, schedule: StageSchedule, resident: int) -> float:
    """For comparison within a stage: the busiest SM's products, dearer in small tiles."""
    assert schedule.tile is not None
    bm, bn, _ = schedule.tile
    blocks = -(-blocks_of(stage, sides, (bm, bn)) * schedule.splits // resident)
    alone = 1.3 if blocks == 1 and schedule.block <= 128 else 1.0
    cut = 1.2 if schedule.splits > 1 else 1.0
    return blocks * bm * bn / schedule.splits * (1 + 40 / bm + 40 / bn) * alone * cut
