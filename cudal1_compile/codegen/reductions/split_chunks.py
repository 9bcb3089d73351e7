"""Column variances that read memory once, however long a part of the columns is.

A thread takes CHUNK rows of `vector` neighbouring columns at a time: their own mean and squares about it are
joined to what it has so far (Chan's formula), so that nothing is lost to cancellation and nothing is kept but
sums: of the chunks' means too, for a mean that was moved to an infinite value is no number at the next one. Two
passes over a part read it again from L2, or, where all parts together are larger, from memory.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import TILE
from cudal1_compile.codegen.reductions.reduction import Phase, reduced_value
from cudal1_compile.codegen.reductions.split_parts import Part, element_writes, is_center, part_buffers
from cudal1_compile.codegen.reductions.split_wide import VectorPartialWriter, column_vectors
from cudal1_compile.codegen.stages.element import write_visit
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, signature
from cudal1_compile.codegen.stages.space import Space, Var, grouped, size_of
from cudal1_compile.codegen.stages.stage import Stage, is_reduction

CHUNK = 4  # rows; what a part's length is a multiple of


def chunk_vectors(stage: Stage) -> list[int]:
    """Vector widths along the columns, widest first; none where no variance reads memory twice."""
    found = [o for o in stage.ops if is_reduction(o)]
    if any(stage.program.axis[a].symbolic for a in stage.reduced) or element_writes(stage):
        return []
    plain = {o.fn for o in found} <= {"var", "mean", "sum"} and any(o.fn == "var" for o in found)
    if not plain or stage.program.size(stage.reduced) % CHUNK or any(o.dtype == "f64" for o in found):
        return []
    return column_vectors(stage, ("sum", "mean", "var"))


class ChunkWriter(VectorPartialWriter):
    """The first kernel of such a split reduction."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> None:
        super().__init__(stage, replace(schedule, kind="split_tile"), name, parts)
        space = Space(stage.program, (Var("g", self.kept), Var("r", self.order)))
        self.elements = replace(self.elements, space=space)
        self.sums = [p for p in self.phases if p.op.fn != "var"]
        self.variances = [p for p in self.phases if p.op.fn == "var" and is_center(p)]

    def _step(self) -> int:
        return CHUNK

    def write(self) -> Kernel:
        v, rows, lines = self.schedule.vector, self.schedule.block // TILE, self.lines
        buffers = part_buffers(self.parts)
        with lines.block(signature(self.name, self.schedule.block, self.reads, buffers)):
            self._open()
            lines.add(*[f"{p.type} {p.register}[{v}] = {{}};" for p in self.sums])
            for p in self.variances:
                n = _number(p)
                lines.add(f"{p.type} m{n}[{v}] = {{}}, v{n}[{v}] = {{}};")
            lines.add("int i = 0;")
            begin = f"c0 + threadIdx.y * {CHUNK}"
            lines.add("#pragma unroll 2")
            with lines.block(f"for (int c = {begin}; c < c1; c += {rows} * {CHUNK})"):
                self._take_chunk()
                self._combine_chunk()
            self._combine_rows(rows)
            self._store_parts()
        kept, s = size_of(self.kept), self.splits
        scratch = tuple(f"{b.name} {b.dtype}[{s}, {kept}]" for b in buffers)
        arguments = tuple(b.name for b in (*self.reads, *buffers))
        grid = f"dim3(cdiv({kept}, {TILE * v}), {s})"
        return Kernel(self.name, "\n".join(lines.text), grid, self.block, arguments, scratch)

    def _take_chunk(self) -> None:
        """The values of some rows, and the sums of those that are only summed."""
        lines, v = self.lines, self.schedule.vector
        for p in self.variances:
            lines.add(f"{p.type} x{_number(p)}[{CHUNK}][{v}];")
        lines.add("#pragma unroll")
        with lines.block(f"for (int u = 0; u < {CHUNK}; u++)"):
            lines.add("const int r = c + u;")

            def updates() -> list[str]:
                value = self.elements.spelled
                kept = [f"x{_number(p)}[u][j] = {value[reduced_value(p.op)]};" for p in self.variances]
                return [*kept, *(p.update.format(v=value[reduced_value(p.op)], c="r") for p in self.sums)]

            write_visit(lines, v, self.elements.visit(self.element_reads, self.element_ops, [], updates))

    def _combine_chunk(self) -> None:
        lines, each = self.lines, f"for (int j = 0; j < {self.schedule.vector}; j++)"
        lines.add(f"const float w = 1.0f / max(i, 1), f = {CHUNK}.0f * i / (i + 1);")
        for p in self.variances:
            n = _number(p)
            rows = " + ".join(f"x{n}[{u}][j]" for u in range(CHUNK))
            lines.add("#pragma unroll")
            with lines.block(each):
                lines.add(f"const float e{n} = ({rows}) * {1 / CHUNK}f, u{n} = i == 0 ? 0 : e{n} - m{n}[j] * w;")
                lines.add("#pragma unroll")
                away = f"(x{n}[u][j] - e{n})"
                lines.add(f"for (int u = 0; u < {CHUNK}; u++) v{n}[j] += {away} * {away};")
                lines.add(f"v{n}[j] += f * u{n} * u{n};", f"m{n}[j] += e{n};")
        lines.add("i++;")

    def _combine_rows(self, rows: int) -> None:
        """Threads of the first row join the others' sums to theirs."""
        lines, v = self.lines, self.schedule.vector
        each, at = f"for (int j = 0; j < {v}; j++)", f"threadIdx.x * {v} + j"
        held = [p.register for p in self.sums] + [f"{x}{_number(p)}" for p in self.variances for x in "mv"]
        for name in held:
            lines.add(f"__shared__ float b{name}[{rows}][{TILE * v}];")
            lines.add("#pragma unroll", f"{each} b{name}[threadIdx.y][{at}] = {name}[j];")
        lines.add(f"__shared__ int bi[{rows}];", "if (threadIdx.x == 0) bi[threadIdx.y] = i;")
        lines.add("__syncthreads();", f"if (threadIdx.y > 0 || h >= {size_of(self.kept)}) return;", "int w = 0;")
        lines.add("#pragma unroll", f"for (int y = 0; y < {rows}; y++) w += bi[y];")
        lines.add("#pragma unroll")
        with lines.block(each):
            for p in self.sums:
                lines.add(f"{p.register}[j] = 0;")
            for n in map(_number, self.variances):
                lines.add(f"m{n}[j] = 0;", f"v{n}[j] = 0;")
            lines.add("#pragma unroll")
            with lines.block(f"for (int y = 0; y < {rows}; y++)"):
                lines.add(*[f"{p.register}[j] += b{p.register}[y][{at}];" for p in self.sums])
                lines.add(*[f"m{n}[j] += bm{n}[y][{at}];" for n in map(_number, self.variances)])
            lines.add(*[f"m{n}[j] /= max(w, 1);" for n in map(_number, self.variances)])
            lines.add("#pragma unroll")
            with lines.block(f"for (int y = 0; y < {rows}; y++)"):
                for n in map(_number, self.variances):
                    lines.add(f"const float e{n} = bm{n}[y][{at}] / max(bi[y], 1) - m{n}[j];")
                    lines.add(f"v{n}[j] += bv{n}[y][{at}] + {CHUNK} * bi[y] * e{n} * e{n};")

    def _store_parts(self) -> None:
        position = f"blockIdx.y * {grouped(size_of(self.kept))} + g"
        for p in self.parts:
            value = p.value if p.phase.op.fn == "var" else p.phase.register
            self.lines.add(f"vstore<{self.schedule.vector}>({p.buffer} + {position}, {value});")


def _number(phase: Phase) -> str:
    return phase.op.name[1:]
