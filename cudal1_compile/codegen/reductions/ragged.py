"""Writes reductions of rows that no vector divides: vectors stand where memory is aligned, the row's ends are cut.

    ragged        a block a row; the first vector starts up to a vector before the row
    split_ragged  a sum over everything in parts; only the last vector is cut

What lies outside the row is read as 0 and takes no part.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import GroupedWriter, reduced_order
from cudal1_compile.codegen.reductions.split_parts import Part, PartialWriter
from cudal1_compile.codegen.stages.element import late_loads
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import product
from cudal1_compile.codegen.stages.space import is_unit_stride
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import ITEM_BYTES


def ragged_vectors(stage: Stage) -> list[int]:
    """Vector widths for rows that no vector of that width divides; none where tensors lie otherwise."""
    whole = [b for b in stage.tensors if not set(b.span) <= set(stage.kept)]
    order = reduced_order(stage)
    if late_loads(stage) or not whole or stage.program.is_symbolic:
        return []
    if not stage.kept and any(o.fn == "iota" for o in stage.ops):
        return []  # a vector may cross from one row into the next
    lies = _lies_as_rows if stage.kept else _lies_flat
    if not all(lies(b, order) for b in whole):
        return []
    count = stage.program.size(stage.reduced)
    wanted = max(2, 16 // max(ITEM_BYTES[b.dtype] for b in whole))
    return [v for v in (wanted, wanted // 2) if v > 1 and count % v]


def _lies_as_rows(b: Buffer, order: tuple[str, ...]) -> bool:
    return len(order) == 1 and is_unit_stride(b, order[0])


def _lies_flat(b: Buffer, order: tuple[str, ...]) -> bool:
    return b.axes == order and b.strides is None and not b.access


class RaggedWriter(GroupedWriter):
    """One reducing stage, a block a group."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str) -> None:
        super().__init__(stage, replace(schedule, kind="block"), name)
        v, row = self.schedule.vector, product(*self.order)
        self.shift = f" - g * {row} % {v}" if self.kept else ""  # the row starts so far behind an aligned position
        start = "-c" if self.kept else "0"
        self.elements.within = f"{start}, {row} - c, "

    def _mask(self) -> list[str]:
        low = "c + j < 0 || " if self.kept else ""
        return [f"if ({low}c + j >= {self._end()}) continue;"]

    def _chunks_line(self) -> str:
        v = self.schedule.vector
        return f"constexpr int C = cdiv({product(*self.order)} + {v - 1}, {product(self._threads(), v)});"

    def _cached_position(self) -> str:
        return super()._cached_position() + self.shift

    def _start(self) -> str:
        return super()._start() + self.shift


class RaggedPartWriter(PartialWriter):
    """The first kernel of a split sum over everything."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> None:
        super().__init__(stage, replace(schedule, kind="split_block"), name, parts)
        self.elements.within = "0, c1 - c, "

    def _mask(self) -> list[str]:
        return ["if (c + j >= c1) continue;"]
