"""How one stage, and a whole program, is laid out on the GPU: what a design line says."""

from __future__ import annotations

import re
from dataclasses import dataclass

_N = r"([1-9]\d{0,8})"  # what a model writes may be any number
# one group a field in either form, in one order
_DESCRIBED = re.compile(
    rf"(\w+), vector {_N}, block {_N}(?:, tile {_N}x{_N}x{_N})?(, near|, registers)?(?:, splits {_N})?"
    rf"(?:, loads in flight {_N})?"
)
_STAGE = re.compile(r"(\w+)\.(\d+)\.(\d+)(?:\.t(\d+)x(\d+)x(\d+))?(\.r)?(?:\.s(\d+))?(?:\.f(\d+))?")


@dataclass(frozen=True, slots=True)
class StageSchedule:
    """kind: what owns the work (exact, stride, rows; block, warp, thread, tile; split_block, split_tile)."""

    kind: str
    vector: int  # elements a thread moves at once
    block: int  # threads
    cached: bool = False  # values stay in registers between passes; a product's, in L1 between taps
    splits: int = 1  # parts into which each group's reduction is cut
    tile: tuple[int, int, int] | None = None  # of a product: rows, columns, depth
    in_flight: int = 0  # tiles, or vectors of a thread, on their way at once; 0: as the template has it

    def describe(self) -> str:
        words = [self.kind, f"vector {self.vector}", f"block {self.block}"]
        if self.tile:
            words.append(f"tile {'x'.join(map(str, self.tile))}")
        if self.cached:
            words.append("near" if self.tile else "registers")
        if self.splits > 1:
            words.append(f"splits {self.splits}")
        if self.in_flight:
            words.append(f"loads in flight {self.in_flight}")
        return ", ".join(words)


def read_stage(words: str) -> StageSchedule | None:
    """What `describe` gave; None for anything else."""
    m = _DESCRIBED.fullmatch(words)
    found = None if m is None else _stage_of(m)
    return found if found is not None and found.describe() == words else None


@dataclass(frozen=True, slots=True)
class Schedule:
    """One strategy with the schedule of each of its stages, in order."""

    strategy: str
    stages: tuple[StageSchedule, ...]
    flat: bool = False  # reductions in stages of their own, so that they can be split


def print_schedule(schedule: Schedule) -> str:
    """`strategy/kind.vector.block[.r][.sN];...`, with ! after the strategy where the plan is flat."""
    stages = ";".join(_print_stage(s) for s in schedule.stages)
    return f"{schedule.strategy}{'!' if schedule.flat else ''}/{stages}"


def parse_schedule(name: str) -> Schedule:
    strategy, _, rest = name.partition("/")
    stages = []
    for part in rest.split(";"):
        m = _STAGE.fullmatch(part)
        if not m:
            raise ValueError(f"schedule {name!r}: {part!r} is not like block.4.256.r.s16")
        stages.append(_stage_of(m))
    return Schedule(strategy.removesuffix("!"), tuple(stages), strategy.endswith("!"))


def _stage_of(m: re.Match[str]) -> StageSchedule:
    tile = (int(m[4]), int(m[5]), int(m[6])) if m[4] else None
    return StageSchedule(m[1], int(m[2]), int(m[3]), m[7] is not None, int(m[8] or 1), tile, int(m[9] or 0))


def _print_stage(s: StageSchedule) -> str:
    tile = f".t{'x'.join(map(str, s.tile))}" if s.tile else ""
    splits = f".s{s.splits}" if s.splits > 1 else ""
    in_flight = f".f{s.in_flight}" if s.in_flight else ""
    return f"{s.kind}.{s.vector}.{s.block}{tile}{'.r' if s.cached else ''}{splits}{in_flight}"
