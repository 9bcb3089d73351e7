"""Writes a reducing stage as TWO kernels: parts of each group to scratch, then one warp or tile joins the parts.

For stages with too few groups to fill the GPU. The stage must be flat: no reduction that needs another's result
and no output with the reduced axes. A variance travels as (mean, sum of squared deviations) of each part, which
loses nothing to cancellation; a logsumexp as (max, sum of exponentials).

Mappings:
    split_block  parts[group][part]   for reductions over the innermost axis
    split_tile   parts[part][group]   for reductions of outer axes: neighbours in memory are neighbours in groups
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_trainer.teachers.grouped import JOIN, TILE, GroupedWriter, combine_tile, write_guarded
from cudal1_trainer.teachers.reduction import Phase, phases, reduced_value
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel, Lines, product, signature
from cudal1_trainer.teachers.space import grouped, size_of
from cudal1_trainer.teachers.stage import Buffer, Stage, is_reduction, read_names

_SCRATCH_TYPE = {"float": "f32", "double": "f64", "int": "i32", "long long": "i64"}
JOIN_WARPS = 4  # groups a block in the joining kernel of split_block
JOIN_ROWS = 8  # threads that share a group in the joining kernel of split_tile


def is_splittable(stage: Stage) -> bool:
    """Whether every reduction of the stage can be cut into parts, each needing no other's result."""
    reductions = [o for o in stage.ops if is_reduction(o)]
    flat = all(set(b.span) <= set(stage.kept) for b in stage.writes)
    names = {o.name for o in reductions}
    _, levels = phases(stage.program, tuple(o for o in stage.ops if not is_reduction(o) or o.name in names))
    shallow = all(levels.get(reduced_value(o), 0) == 0 for o in reductions)
    return bool(reductions) and flat and shallow and not any(o.fn.startswith("arg") for o in reductions)


@dataclass(frozen=True, slots=True)
class Part:
    """One scratch array of partial results."""

    phase: Phase
    buffer: str
    dtype: str
    value: str  # what a block stores: v3, m3


def write_split(stage: Stage, schedule: StageSchedule, names: tuple[str, str], first_scratch: int) -> list[Kernel]:
    parts = _parts(stage, first_scratch)
    partial = _PartialWriter(stage, schedule, names[0], parts).write()
    return [partial, _write_join(stage, schedule, names[1], parts)]


def _parts(stage: Stage, first: int) -> list[Part]:
    found: list[Part] = []
    for phase in _split_phases(stage):
        kind = _SCRATCH_TYPE[phase.type]
        n = phase.op.name[1:]
        value = f"m{n}" if _is_center(phase) else f"v{n}"
        found.append(Part(phase, f"s{first + len(found)}", kind, value))
    return found


def _is_center(phase: Phase) -> bool:
    return phase.defines is None


def _split_phases(stage: Stage) -> list[Phase]:
    """Each reduction's own phases; a mean beside a variance of the same value comes from that variance."""
    centers = {reduced_value(o) for o in stage.ops if o.fn == "var"}
    ops = tuple(o for o in stage.ops if not (o.fn == "mean" and reduced_value(o) in centers))
    found, _ = phases(stage.program, ops)
    return found


class _PartialWriter(GroupedWriter):
    """The first kernel: like a grouped kernel, over one part of each group's elements."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> None:
        inner = replace(schedule, mapping=schedule.mapping.removeprefix("split_"))
        super().__init__(stage, inner, name)
        self.splits, self.parts = schedule.splits, parts
        self.phases = [p.phase for p in parts]
        below = [n for p in parts for n in read_names(p.phase.op)]
        needed = _ancestors(stage, below)
        self.group_ops = [o for o in self.group_ops if o.name in needed]
        self.element_ops = [o for o in self.element_ops if o.name in needed]
        used = {*needed, *_reads(stage, needed), *below}
        self.reads = tuple(b for b in stage.reads if b.value in used)
        self.group_reads = [b for b in self.group_reads if b.key in used or b.value in used]
        self.element_writes, self.group_writes = [], []

    def write(self) -> Kernel:
        buffers = [Buffer(p.buffer, p.buffer, p.dtype, ()) for p in self.parts]
        with self.lines.block(signature(self.name, self.schedule.block, self.reads, buffers)):
            self._open()
            for level in range(max(p.level for p in self.phases) + 1):
                self._pass(level)
                self._finish(level)
            self._store_parts()
        kept, s = size_of(self.kept), self.splits
        shape = f"[{s}, {kept}]" if self.schedule.mapping == "tile" else f"[{kept}, {s}]"
        scratch = tuple(f"{p.buffer} {p.dtype}{shape}" for p in self.parts)
        groups = f"cdiv({kept}, {TILE})" if self.schedule.mapping == "tile" else kept
        arguments = (*(b.name for b in self.reads), *(p.buffer for p in self.parts))
        text = "\n".join(self.lines.text)
        return Kernel(self.name, text, f"dim3({groups}, {s})", self.block, arguments, scratch)

    def _open(self) -> None:
        super()._open()
        total = size_of(self.order)
        step = self.schedule.vector
        self.lines.add(f"const int n = {product(f'cdiv({total}, {product(self.splits, step)})', step)};")
        self.lines.add(f"const int c0 = min((int)blockIdx.y * n, {total}), c1 = min(c0 + n, {total});")

    def _loop_head(self, stores: bool) -> str:
        s = self.schedule
        first = self._first() if s.vector == 1 else f"{self._first()} * {s.vector}"
        self.lines.add("#pragma unroll 4")
        return f"for (int c = c0 + {first}; c < c1; c += {product(self._threads(), s.vector)})"

    def _finish(self, level: int) -> None:
        here = [p for p in self.parts if p.phase.level == level]
        if self.schedule.mapping == "tile":
            self.lines.add(*combine_tile([p.phase for p in here], self.schedule.block // TILE))
        for p in here:
            value, _ = self._combined(p.phase)
            mean = p.phase.op.fn == "var" and _is_center(p.phase)
            tail = " / max(c1 - c0, 1)" if mean else ""
            self.lines.add(f"const {p.phase.type} {p.value} = {value}{tail};")

    def _store_parts(self) -> None:
        kept = size_of(self.kept)
        place = f"g * {self.splits} + blockIdx.y" if self.kept else "blockIdx.y"
        guard = "threadIdx.x == 0"
        if self.schedule.mapping == "tile":
            place = f"blockIdx.y * {grouped(kept)} + g" if self.kept else "blockIdx.y"
            guard = f"threadIdx.y == 0 && h < {kept}"
        write_guarded(self.lines, guard, [f"st({p.buffer} + {place}, {p.value});" for p in self.parts])


def _ancestors(stage: Stage, wanted: list[str]) -> set[str]:
    from_name = {o.name: o for o in stage.ops}
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name in from_name and name not in found:
            found.add(name)
            todo += _reads(stage, {name})
    return found


def _reads(stage: Stage, names: set[str]) -> list[str]:
    return [n for o in stage.ops if o.name in names for n in read_names(o)]


def _write_join(stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> Kernel:
    """The second kernel: joins the parts, then the group operations, then the results."""
    tile = schedule.mapping == "split_tile"
    writer = GroupedWriter(stage, StageSchedule("tile" if tile else "warp", 1, 0), name)
    kept, total = size_of(writer.kept), grouped(size_of(writer.order))
    threads = TILE * JOIN_ROWS if tile else 32 * JOIN_WARPS
    needed = {o.name for o in stage.ops if is_reduction(o)}
    ops = [o for o in writer.group_ops if OPS[o.fn].kind is not Kind.REDUCE]
    used = {n for o in ops for n in _reads(stage, {o.name})} | {b.value for b in stage.writes}
    group_reads = [b for b in writer.group_reads if b.value in used and b.value not in needed]
    group_params = list({b.name: b for b in group_reads}.values())
    buffers = [Buffer(p.buffer, p.buffer, p.dtype, ()) for p in parts]
    lines = Lines()
    group = writer.group
    with lines.block(signature(name, threads, [*buffers, *group_params], stage.writes)):
        _open_join(lines, kept, tile)
        if any(p.phase.op.fn == "var" for p in parts):
            step = schedule.vector
            lines.add(f"const int n = {product(f'cdiv({total}, {product(schedule.splits, step)})', step)};")
        _JoinPhases(lines, writer, schedule.splits, parts, tile).write(total)
        lines.add(*_means_of_variances(stage, parts))
        group.spelled.update({o.name: o.name for o in stage.ops if is_reduction(o)})
        lines.add(*group.index_lines([*group_reads, *stage.writes], ops))
        lines.add(*[group.load(b)[0] or "" for b in group_reads if b.key not in group.late])
        lines.add(*[line for o in ops for line in group.statements(o)])
        stores = [group.store(b)[2] or "" for b in stage.writes]
        write_guarded(lines, f"threadIdx.y == 0 && h < {kept}" if tile else "lane == 0", stores)
    names = tuple(b.name for b in (*buffers, *group_params, *stage.writes))
    block = f"dim3({TILE}, {JOIN_ROWS})" if tile else str(threads)
    grid = f"cdiv({kept}, {TILE if tile else JOIN_WARPS})"
    return Kernel(name, "\n".join(lines.text), grid, block, names)


def _means_of_variances(stage: Stage, parts: list[Part]) -> list[str]:
    centers = {reduced_value(p.phase.op): p for p in parts if p.phase.op.fn == "var" and _is_center(p.phase)}
    means = [(o, centers[reduced_value(o)]) for o in stage.ops if o.fn == "mean" and reduced_value(o) in centers]
    return [f"const {p.phase.type} {o.name} = {p.value};" for o, p in means]


def _open_join(lines: Lines, kept: str, tile: bool) -> None:
    if tile:
        lines.add(f"const int h = blockIdx.x * {TILE} + threadIdx.x;", f"const int g = min(h, {kept} - 1);")
    else:
        lines.add(f"const int g = blockIdx.x * {JOIN_WARPS} + threadIdx.x / 32;")
        lines.add(f"if (g >= {kept}) return;", "const int lane = threadIdx.x % 32;")


@dataclass
class _JoinPhases:
    """Loops over the parts of a group: one for all centers and plain results, one for what needs a center."""

    lines: Lines
    writer: GroupedWriter
    splits: int
    parts: list[Part]
    tile: bool

    def write(self, total: str) -> None:
        for deep in (False, True):
            here = [p for p in self.parts if (p.phase.level > 0) == deep]
            if here:
                self._loop(here, total)

    def _loop(self, here: list[Part], total: str) -> None:
        lines = self.lines
        for p in here:
            lines.add(f"{p.phase.type} {p.phase.register} = {p.phase.start};")
        first, step = ("threadIdx.y", JOIN_ROWS) if self.tile else ("lane", 32)
        lines.add("#pragma unroll 4")
        with lines.block(f"for (int s = {first}; s < {self.splits}; s += {step})"):
            lines.add(*[line for p in here for line in self._update(p, total)])
        if self.tile:
            lines.add(*combine_tile([p.phase for p in here], JOIN_ROWS))
        for p in here:
            value = p.phase.register if self.tile else f"warp_{p.phase.kind}({p.phase.register})"
            lines.add(*[f.format(p=value, n=total) for f in p.phase.finish])

    def _update(self, p: Part, total: str) -> list[str]:
        read = self._read(p)
        register, fn = p.phase.register, p.phase.op.fn
        count = f"max(min(n, {total} - s * n), 0)"
        if fn == "var" and _is_center(p.phase):
            return [f"{register} += {read} * {count};"]
        if fn in ("var", "logsumexp") and not _is_center(p.phase):
            center = next(o for o in self.parts if o.phase.op is p.phase.op and _is_center(o.phase))
            away = f"{self._read(center)} - {center.value}"
            if fn == "var":
                e = f"e{p.value[1:]}"
                return [f"const {p.phase.type} {e} = {away};", f"{register} += {read} + {count} * {e} * {e};"]
            return [f"{register} += {read} * expf({away});"]
        return [JOIN[p.phase.kind].format(p=register, x=read)]

    def _read(self, p: Part) -> str:
        kept = size_of(self.writer.kept)
        if not self.writer.kept:
            return f"ld({p.buffer} + s)"
        return (
            f"ld({p.buffer} + s * {grouped(kept)} + g)" if self.tile else f"ld({p.buffer} + g * {self.splits} + s)"
        )
