"""Writes a reducing stage as TWO kernels: partial results of each group to scratch, then one warp or tile a group.

For stages with too few groups for full occupancy. No reduction may need another's result. Outputs with the reduced
axes that need no reduction are written by the first kernel. With `cached` a block's part fits in registers, so
that a variance reads memory once. A variance travels as (mean, sum of squared deviations) of each part, which
loses nothing to cancellation; a logsumexp as (max, sum of exponentials).

Kinds:
    split_block  parts[group][part]   for reductions over the innermost axis
    split_tile   parts[part][group]   for reductions of outer axes: neighbours in memory are neighbours in groups
    split_chunks the same for variances of what no cache holds: memory is read once (split_chunks.py)
"""

from __future__ import annotations

from dataclasses import dataclass

from cudal1_compile.codegen.reductions.grouped import (
    TILE,
    GroupedWriter,
    combine_tile,
    join,
    reduced_order,
    write_guarded,
)
from cudal1_compile.codegen.reductions.ragged import RaggedPartWriter
from cudal1_compile.codegen.reductions.reduction import declare, reduced_value, shift
from cudal1_compile.codegen.reductions.split_chunks import CHUNK, ChunkWriter
from cudal1_compile.codegen.reductions.split_parts import (
    Part,
    PartialWriter,
    cut_parts,
    element_writes,
    is_center,
    part_buffers,
    reads_of,
)
from cudal1_compile.codegen.reductions.split_wide import CHUNKS, VectorPartialWriter, is_wide
from cudal1_compile.codegen.reductions.turned import write_turned
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, Lines, product, signature
from cudal1_compile.codegen.stages.space import grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, closure, is_reduction

FINAL_WARPS = 4  # groups a block in the joining kernel of split_block
FINAL_ROWS = 8  # threads that share a group in the joining kernel of split_tile


def write_split(stage: Stage, schedule: StageSchedule, names: tuple[str, str], first_scratch: int) -> list[Kernel]:
    parts = cut_parts(stage, first_scratch)
    tile = schedule.kind in ("split_tile", "turn", CHUNKS)
    step, total = CHUNK if schedule.kind == CHUNKS else schedule.vector, grouped(size_of(reduced_order(stage)))
    length = product(f"cdiv({total}, {product(schedule.splits, step)})", step)
    join_kernel = write_final_kernel(
        stage, names[1], parts, Cut(str(schedule.splits), length), FINAL_ROWS if tile else 0
    )
    if schedule.kind == "turn":
        return [write_turned(stage, schedule, names[0], parts), join_kernel]
    writers = {"split_ragged": RaggedPartWriter, CHUNKS: ChunkWriter}
    writer = writers.get(schedule.kind, VectorPartialWriter if is_wide(schedule) else PartialWriter)
    return [writer(stage, schedule, names[0], parts).write(), join_kernel]


@dataclass(frozen=True, slots=True)
class Cut:
    """Expressions of the code: how many parts each group has, and how long they are (the last may be shorter).

    counts: a buffer that holds the length of each, where they differ.
    """

    parts: str
    length: str = ""
    counts: str = ""


def write_final_kernel(stage: Stage, name: str, parts: list[Part], cut: Cut, tile: int) -> Kernel:
    """The second kernel: combines the parts, then the group operations, then the results.

    tile: threads that share a group, neighbours in memory being neighbours in groups; 0 is a warp a group.
    """
    writer = GroupedWriter(stage, StageSchedule("tile" if tile else "warp", 1, 0), name)
    kept, total = size_of(writer.kept), grouped(size_of(writer.order))
    threads = TILE * tile if tile else 32 * FINAL_WARPS
    needed = {o.name for o in stage.ops if is_reduction(o)}
    early = element_writes(stage)
    writes = [b for b in stage.writes if b not in early]
    # what only the parts or the first kernel's outputs need was computed there
    held = needed | {b.value for b in stage.loads}
    wanted = closure(stage.program, [b.value for b in writes], held)
    ops = [o for o in writer.group_ops if o.name in wanted]
    used = {n for o in ops for n in reads_of(stage, {o.name})} | {b.value for b in writes}
    group_reads = [b for b in writer.group_reads if b.value in used and b.value not in needed]
    group_params = list({b.name: b for b in group_reads}.values())
    buffers = part_buffers(parts)
    if cut.counts:
        buffers.append(Buffer(cut.counts, cut.counts, "f32", ()))
    lines = Lines()
    group = writer.group
    with lines.block(signature(name, threads, [*buffers, *group_params], writes)):
        _open_final(lines, kept, bool(tile))
        if cut.length and any(p.phase.op.fn == "var" for p in parts):
            lines.add(f"const int n = {cut.length};")
        _FinalPhases(lines, writer, cut, parts, tile).write(total)
        lines.add(*_means_of_variances(stage, parts))
        group.spelled.update({o.name: o.name for o in stage.ops if is_reduction(o)})
        lines.add(*group.index_lines([*group_reads, *writes], ops))
        lines.add(*[group.load(b)[0] or "" for b in group_reads if b.key not in group.late])
        lines.add(*[line for o in ops for line in group.statements(o)])
        stores = [group.store(b)[2] or "" for b in writes]
        write_guarded(lines, f"threadIdx.y == 0 && h < {kept}" if tile else "lane == 0", stores)
    names = tuple(b.name for b in (*buffers, *group_params, *writes))
    block = f"dim3({TILE}, {tile})" if tile else str(threads)
    grid = f"cdiv({kept}, {TILE if tile else FINAL_WARPS})"
    return Kernel(name, "\n".join(lines.text), grid, block, names)


def _means_of_variances(stage: Stage, parts: list[Part]) -> list[str]:
    centers = {reduced_value(p.phase.op): p for p in parts if p.phase.op.fn == "var" and is_center(p.phase)}
    means = [(o, centers[reduced_value(o)]) for o in stage.ops if o.fn == "mean" and reduced_value(o) in centers]
    return [f"const {p.phase.type} {o.name} = {p.value};" for o, p in means]


def _open_final(lines: Lines, kept: str, tile: bool) -> None:
    if tile:
        lines.add(f"const int h = blockIdx.x * {TILE} + threadIdx.x;", f"const int g = min(h, {kept} - 1);")
    else:
        lines.add(f"const int g = blockIdx.x * {FINAL_WARPS} + threadIdx.x / 32;")
        lines.add(f"if (g >= {kept}) return;", "const int lane = threadIdx.x % 32;")


@dataclass
class _FinalPhases:
    """Loops over the parts of a group: one for all centers and plain results, one for what needs a center."""

    lines: Lines
    writer: GroupedWriter
    cut: Cut
    parts: list[Part]
    tile: int

    def write(self, total: str) -> None:
        for deep in (False, True):
            here = [p for p in self.parts if (p.phase.level > 0) == deep]
            if here:
                self._loop(here, total)

    def _loop(self, here: list[Part], total: str) -> None:
        lines = self.lines
        for p in here:
            lines.add(declare(p.phase))
        first, step = ("threadIdx.y", self.tile) if self.tile else ("lane", 32)
        lines.add("#pragma unroll 4")
        with lines.block(f"for (int s = {first}; s < {self.cut.parts}; s += {step})"):
            lines.add(*[line for p in here for line in self._update(p, total)])
        if self.tile:
            lines.add(*combine_tile([p.phase for p in here], self.tile))
        for p in here:
            value = p.phase.register if self.tile else f"warp_{p.phase.kind}({p.phase.register})"
            if p.index and not self.tile:
                lines.add(f"warp_{p.phase.kind}({p.phase.register}, x{p.phase.op.name[1:]});")
            lines.add(*[f.format(p=value, n=total) for f in p.phase.finish])

    def _update(self, p: Part, total: str) -> list[str]:
        read = self._read(p)
        register, fn = p.phase.register, p.phase.op.fn
        count = self._at(self.cut.counts) if self.cut.counts else f"max(min(n, {total} - s * n), 0)"
        if fn == "var" and is_center(p.phase):
            return [f"{register} += {read} * {count};"]
        if fn in ("var", "logsumexp") and not is_center(p.phase):
            center = next(o for o in self.parts if o.phase.op is p.phase.op and is_center(o.phase))
            if fn == "var":
                away = f"{self._read(center)} - {center.value}"
                e = f"e{p.value[1:]}"
                return [f"const {p.phase.type} {e} = {away};", f"{register} += {read} + {count} * {e} * {e};"]
            return [f"{register} += {read} * expf({self._read(center)} - {shift(center.value)});"]
        return [join(p.phase, read, self._read(p, True))]

    def _read(self, p: Part, index: bool = False) -> str:
        return self._at(p.index if index else p.buffer)

    def _at(self, buffer: str) -> str:
        kept = size_of(self.writer.kept)
        if not self.writer.kept:
            return f"ld({buffer} + s)"
        return (
            f"ld({buffer} + s * {grouped(kept)} + g)" if self.tile else f"ld({buffer} + g * {self.cut.parts} + s)"
        )
