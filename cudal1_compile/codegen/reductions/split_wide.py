"""Column sums in vectors: each thread of a tile owns `vector` neighbouring columns of a split reduction.

With one 2-byte column a thread, a warp's access moves 64 bytes; with four it moves 256. What is one value a column
stands among the elements: its loads are loop-invariant, and the compiler hoists them.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import TILE, group_order
from cudal1_compile.codegen.reductions.reduction import Phase
from cudal1_compile.codegen.reductions.split_parts import Part, PartialWriter
from cudal1_compile.codegen.stages.element import late_loads
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.space import grouped, is_unit_stride, size_of, vector_fits
from cudal1_compile.codegen.stages.stage import Stage, is_reduction
from cudal1_fx_passes.program.ir import ITEM_BYTES

CHUNKS = "split_chunks"  # written by split_chunks.py


def is_wide(schedule: StageSchedule) -> bool:
    return schedule.kind in ("split_tile", CHUNKS) and schedule.vector > 1


def column_vectors(stage: Stage, reductions: tuple[str, ...] = ("sum", "mean")) -> list[int]:
    """Vector widths along the innermost kept axis, widest first; none where a tensor is not read along it."""
    sums = all(o.fn in reductions for o in stage.ops if is_reduction(o))
    if not sums or not stage.kept or late_loads(stage):
        return []
    axis = group_order(stage)[-1]
    along = [b for b in stage.tensors if axis in b.span]
    whole = [b for b in along if not set(b.span) <= set(stage.kept)]
    if not whole or not all(is_unit_stride(b, axis) for b in along):
        return []
    widest = max(ITEM_BYTES[b.dtype] for b in whole)
    fits = [v for v in (8, 4, 2) if all(vector_fits(stage.program, b, axis, v) for b in along)]
    return [v for v in fits if v * widest <= 16]


class VectorPartialWriter(PartialWriter):
    """The first kernel of a split reduction, `vector` columns a thread."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> None:
        super().__init__(stage, schedule, name, parts)
        self.phases = [replace(p, update=p.update.replace(p.register, f"{p.register}[j]")) for p in self.phases]
        self.element_ops = [o for o in stage.ops if o in self.element_ops or o in self.group_ops]
        self.element_reads = [*self.group_reads, *self.element_reads]
        self.group_ops, self.group_reads = [], []

    def _vector_axis(self) -> str:
        return self.kept[-1]

    def _columns(self) -> int:
        return self.schedule.vector

    def _step(self) -> int:
        return 1

    def _declare(self, phase: Phase) -> str:
        return f"{phase.type} {phase.register}[{self.schedule.vector}] = {{}};"

    def _open(self) -> None:
        v, total = self.schedule.vector, size_of(self.kept)
        self.lines.add(f"const int h = (blockIdx.x * {TILE} + threadIdx.x) * {v};")
        self.lines.add(f"const int g = min(h, {total} - {v});")
        self._open_part()

    def _finish(self, level: int) -> None:
        """Threads of the first row add up the others' sums."""
        v, lines, rows, kept = self.schedule.vector, self.lines, self.schedule.block // TILE, size_of(self.kept)
        each, at = f"for (int j = 0; j < {v}; j++)", f"threadIdx.x * {v} + j"
        for p in self.phases:
            lines.add(f"__shared__ {p.type} b{p.register}[{rows}][{TILE * v}];")
            lines.add("#pragma unroll", f"{each} b{p.register}[threadIdx.y][{at}] = {p.register}[j];")
        lines.add("__syncthreads();", f"if (threadIdx.y > 0 || h >= {kept}) return;")
        for p in self.phases:
            lines.add("#pragma unroll")
            with lines.block(f"for (int y = 1; y < {rows}; y++)"):
                lines.add("#pragma unroll", f"{each} {p.register}[j] += b{p.register}[y][{at}];")

    def _store_parts(self) -> None:
        position = f"blockIdx.y * {grouped(size_of(self.kept))} + g"
        for p in self.parts:
            self.lines.add(f"vstore<{self.schedule.vector}>({p.buffer} + {position}, {p.phase.register});")
