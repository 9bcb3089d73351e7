"""Passes over a program's chunks, as chunk_plan.py plans them and chunks.py takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from cudal1_compile.judge.oracle.chunk_program import Box, Known, Range, Target
from cudal1_fx_passes.program.ir import Program

Stage = Literal["parts", "rivals", "outputs"]


@dataclass(frozen=True, slots=True)
class Pass:
    """values: reductions and scans whose parts are joined, or outputs. tile: the step along each axis that is cut.

    rivals: the parts are those of the errors of positions, whose best are known.
    """

    stage: Stage
    values: tuple[str, ...]
    tile: Mapping[str, int]

    def tiles(self, program: Program) -> Iterator[dict[str, Range]]:
        """The ranges of the axes that are cut, the last one fastest."""
        sizes = [(a, program.axis[a].size, step) for a, step in self.tile.items()]
        steps = ([(a, (lo, min(lo + step, size))) for lo in range(0, size, step)] for a, size, step in sizes)
        return (dict(found) for found in product(*steps))

    def targets(self, program: Program, tile: Mapping[str, Range]) -> list[Target]:
        outputs = {o.name: o.value for o in program.outputs}
        in_parts = self.stage != "outputs"
        names = self.values if in_parts else [outputs[name] for name in self.values]
        return [Target(name, ranges_of(program, name, tile, in_parts), in_parts) for name in names]


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """size_bytes: the most that is held beside inputs and outputs. work: elements computed, for comparison."""

    passes: tuple[Pass, ...]
    known: Known
    size_bytes: int
    work: float


def ranges_of(program: Program, name: str, tile: Mapping[str, Range], in_parts: bool) -> Box:
    """What a tile leaves of each axis of a value, or of the terms of a reduction or scan."""
    over = program.op[name].over if in_parts else ()
    return {a: tile.get(a, (0, program.axis[a].size)) for a in (*program.value_axes[name], *over)}
