"""How one stage, and a whole program, is laid out on the GPU: what a design line says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageSchedule:
    """mapping: what owns the work (exact, stride, rows; block, warp, thread, tile; split_block, split_tile)."""

    mapping: str
    vector: int  # elements a thread moves at once
    block: int  # threads
    cached: bool = False  # values stay in registers between passes; a product's, in the nearest cache between taps
    splits: int = 1  # parts into which each group's reduction is cut
    tile: tuple[int, int, int] | None = None  # of a product: rows, columns, depth

    def describe(self) -> str:
        words = [self.mapping, f"vector {self.vector}", f"block {self.block}"]
        if self.tile:
            words.append(f"tile {'x'.join(map(str, self.tile))}")
        if self.cached:
            words.append("near" if self.tile else "registers")
        if self.splits > 1:
            words.append(f"splits {self.splits}")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One strategy with the schedule of each of its stages, in order."""

    strategy: str
    stages: tuple[StageSchedule, ...]
    flat: bool = False  # reductions in stages of their own, so that they can be split
