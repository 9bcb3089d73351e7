"""The first kernel of a split reduction: which stages have one, and what it hands to the second."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cudal1_compile.codegen.reductions.grouped import TILE, GroupedWriter, combine_tile, write_guarded
from cudal1_compile.codegen.reductions.reduction import Phase, phases, reduced_value
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, product, signature
from cudal1_compile.codegen.stages.space import grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage, is_reduction, read_keys, read_names

SCRATCH_TYPE = {"float": "f32", "double": "f64", "int": "i32", "long long": "i64"}


def is_splittable(stage: Stage) -> bool:
    """Whether every reduction of the stage can be cut into parts, each needing no other's result."""
    reductions = [o for o in stage.ops if is_reduction(o)]
    names = {o.name for o in reductions}
    _, levels = phases(stage.program, tuple(o for o in stage.ops if not is_reduction(o) or o.name in names))
    early = [reduced_value(o) for o in reductions] + [b.value for b in element_writes(stage)]
    shallow = all(levels.get(value, 0) == 0 for value in early)
    return bool(reductions) and shallow


def element_writes(stage: Stage) -> list[Buffer]:
    """What is one value an element, not one a group."""
    return [b for b in stage.writes if not set(b.span) <= set(stage.kept)]


@dataclass(frozen=True, slots=True)
class Part:
    """One scratch array of partial results."""

    phase: Phase
    buffer: str
    dtype: str
    value: str  # what a block stores: v3, m3
    index: str = ""  # an i32 array of the indices of an argmax


def cut_parts(stage: Stage, first: int) -> list[Part]:
    found: list[Part] = []
    for phase in _split_phases(stage):
        kind = SCRATCH_TYPE[phase.type]
        n = phase.op.name[1:]
        value = f"m{n}" if is_center(phase) else f"v{n}"
        index = f"s{first + 1}" if phase.kind.startswith("arg") else ""
        found.append(Part(phase, f"s{first}", kind, value, index))
        first += 1 + bool(index)
    return found


def part_buffers(parts: list[Part]) -> list[Buffer]:
    """The scratch of the parts, in order."""
    pairs = [pair for p in parts for pair in ((p.buffer, p.dtype), (p.index, "i32")) if pair[0]]
    return [Buffer(name, name, dtype, ()) for name, dtype in pairs]


def is_center(phase: Phase) -> bool:
    return phase.defines is None


def _split_phases(stage: Stage) -> list[Phase]:
    """Each reduction's own phases; a mean beside a variance of the same value comes from that variance."""
    centers = {reduced_value(o) for o in stage.ops if o.fn == "var"}
    ops = tuple(o for o in stage.ops if not (o.fn == "mean" and reduced_value(o) in centers))
    found, _ = phases(stage.program, ops)
    return found


class PartialWriter(GroupedWriter):
    """The first kernel: like a grouped kernel, over one part of each group's elements."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, parts: list[Part]) -> None:
        inner = replace(schedule, kind=schedule.kind.removeprefix("split_"))
        super().__init__(stage, inner, name)
        self.splits, self.parts = schedule.splits, parts
        self.phases = [p.phase for p in parts]
        below = [n for p in parts for n in read_names(p.phase.op)] + [b.value for b in self.element_writes]
        needed = ancestors(stage, below)
        self.group_ops = [o for o in self.group_ops if o.name in needed]
        self.element_ops = [o for o in self.element_ops if o.name in needed]
        used = {*needed, *reads_of(stage, needed), *below}
        self.reads = tuple(b for b in stage.reads if b.value in used)
        read = [*(o for o in stage.ops if o.name in needed), *(p.phase.op for p in parts)]
        loaded = {k for o in read for k in read_keys(o)} | {b.value for b in self.element_writes}
        self.group_reads = [b for b in self.group_reads if b.key in loaded]
        self.group_writes = []

    def write(self) -> Kernel:
        buffers = part_buffers(self.parts)
        stored = [*self.element_writes, *buffers]
        with self.lines.block(signature(self.name, self.schedule.block, self.reads, stored)):
            self._open()
            for level in range(max(p.level for p in self.phases) + 1):
                self._pass(level)
                self._finish(level)
            self._store_parts()
        kept, s = size_of(self.kept), self.splits
        shape = f"[{s}, {kept}]" if self.schedule.kind == "tile" else f"[{kept}, {s}]"
        scratch = tuple(f"{b.name} {b.dtype}{shape}" for b in buffers)
        groups = f"cdiv({kept}, {product(TILE, self._columns())})" if self.schedule.kind == "tile" else kept
        arguments = tuple(b.name for b in (*self.reads, *stored))
        text = "\n".join(self.lines.text)
        return Kernel(self.name, text, f"dim3({groups}, {s})", self.block, arguments, scratch)

    def _columns(self) -> int:
        """Groups a thread of a tile."""
        return 1

    def _step(self) -> int:
        """Neighbouring elements of a group that a thread takes at once."""
        return self.schedule.vector

    def _open(self) -> None:
        super()._open()
        self._open_part()

    def _open_part(self) -> None:
        if not self.schedule.cached:
            self.lines.add(f"const int n = {self._length()};")
        total = size_of(self.order)
        self.lines.add(f"const int c0 = min((int)blockIdx.y * n, {total}), c1 = min(c0 + n, {total});")

    def _length(self) -> str:
        """Elements of a part."""
        step = self._step()
        return product(f"cdiv({size_of(self.order)}, {product(self.splits, step)})", step)

    def _chunks_line(self) -> str:
        vectors = product(self._threads(), self.schedule.vector)
        return f"constexpr int n = {self._length()}, C = cdiv(n, {vectors});"

    def _end(self) -> str:
        return "c1"

    def _cached_position(self) -> str:
        return f"c0 + {super()._cached_position()}"

    def _loop_head(self, stores: bool) -> str:
        if self.schedule.cached:
            return super()._loop_head(stores)
        self.lines.add("#pragma unroll 4")
        first, step = product(self._first(), self._step()), product(self._threads(), self._step())
        return f"for (int c = c0 + {first}; c < c1; c += {step})"

    def _finish(self, level: int) -> None:
        here = [p for p in self.parts if p.phase.level == level]
        if self.schedule.kind == "tile":
            self.lines.add(*combine_tile([p.phase for p in here], self.schedule.block // TILE))
        for p in here:
            value, before = self._combined(p.phase)
            self.lines.add(*before)
            mean = p.phase.op.fn == "var" and is_center(p.phase)
            tail = " / max(c1 - c0, 1)" if mean else ""
            self.lines.add(f"const {p.phase.type} {p.value} = {value}{tail};")

    def _store_parts(self) -> None:
        kept = size_of(self.kept)
        position = f"g * {self.splits} + blockIdx.y" if self.kept else "blockIdx.y"
        guard = "threadIdx.x == 0"
        if self.schedule.kind == "tile":
            position = f"blockIdx.y * {grouped(kept)} + g" if self.kept else "blockIdx.y"
            guard = f"threadIdx.y == 0 && h < {kept}"
        stores = [f"st({p.buffer} + {position}, {p.value});" for p in self.parts]
        stores += [f"st({p.index} + {position}, x{p.phase.op.name[1:]});" for p in self.parts if p.index]
        write_guarded(self.lines, guard, stores)


def ancestors(stage: Stage, wanted: list[str]) -> set[str]:
    from_name = {o.name: o for o in stage.ops}
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name in from_name and name not in found:
            found.add(name)
            todo += reads_of(stage, {name})
    return found


def reads_of(stage: Stage, names: set[str]) -> list[str]:
    return [n for o in stage.ops if o.name in names for n in read_names(o)]
