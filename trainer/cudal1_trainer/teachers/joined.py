"""Writes a reducing stage as ONE kernel in which several blocks share a group and wait for each other.

    part of a group into registers -> the part's sums to scratch -> wait_for_blocks -> the group's sums from all
    parts -> what follows, from the same registers

Memory is read once, however long a group is; two kernels read it twice. Neighbours in the grid share a group. Each
level of reductions is a wait with a counter of its own.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_fx_passes.program import Op
from cudal1_trainer.teachers.grouped import GroupedWriter
from cudal1_trainer.teachers.reduction import Phase
from cudal1_trainer.teachers.schedule import StageSchedule
from cudal1_trainer.teachers.source import Kernel, product, signature
from cudal1_trainer.teachers.space import grouped, size_of
from cudal1_trainer.teachers.split_parts import SCRATCH_TYPE
from cudal1_trainer.teachers.stage import Buffer, Stage

MOST = 64  # blocks that share a group: they must fit on the device at once


class JoinedWriter(GroupedWriter):
    """first_scratch: the number of the first scratch that this kernel may name."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, first_scratch: int) -> None:
        super().__init__(stage, replace(schedule, mapping="block"), name)
        self.blocks, self.next = schedule.splits, first_scratch
        levels = sorted({p.level for p in self.phases})
        self.waits = {level: i for i, level in enumerate(levels)}
        self.parts = {p.register: self._buffer(SCRATCH_TYPE[p.type]) for p in self.phases}
        self.places = {p.register: self._buffer("i32") for p in self.phases if p.kind.startswith("arg")}
        self.count = self._buffer("i32")

    def write(self) -> Kernel:
        buffers = [*self.parts.values(), *self.places.values(), self.count]
        stored = [*self.stage.writes, *buffers]
        with self.lines.block(signature(self.name, self.schedule.block, self.stage.reads, stored)):
            self._write_levels()
        kept = f"{size_of(self.kept)}, " if self.kept else ""
        scratch = [f"{b.name} {b.dtype}[{kept}{self.blocks}]" for b in buffers[:-1]]
        scratch.append(f"{self.count.name} i32[{kept}{len(self.waits)}] = 0")
        grid = product(grouped(size_of(self.kept)), self.blocks) if self.kept else str(self.blocks)
        arguments = tuple(b.name for b in (*self.stage.reads, *stored))
        return Kernel(self.name, "\n".join(self.lines.text), grid, self.block, arguments, tuple(scratch))

    def _buffer(self, dtype: str) -> Buffer:
        name = f"s{self.next}"
        self.next += 1
        return Buffer(name, name, dtype, ())

    def _group_lines(self) -> list[str]:
        if not self.kept:
            return ["const int q = blockIdx.x;"]
        return [f"const int g = blockIdx.x / {self.blocks}, q = blockIdx.x % {self.blocks};"]

    def _chunks_line(self) -> str:
        vectors = product(self._threads(), self.schedule.vector)
        length = product(
            f"cdiv({size_of(self.order)}, {product(self.blocks, self.schedule.vector)})", self.schedule.vector
        )
        return f"constexpr int n = {length}, C = cdiv(n, {vectors});"

    def _open(self) -> None:
        super()._open()
        total = size_of(self.order)
        self.lines.add(f"const int c0 = min(q * n, {total}), c1 = min(c0 + n, {total});")

    def _end(self) -> str:
        return "c1"

    def _cached_position(self) -> str:
        return f"c0 + {super()._cached_position()}"

    def _loads(self, ops: list[Op], here: list[Phase], stores: list[Buffer], level: int) -> list[Buffer]:
        """In a loop of their own, in which nothing waits for what is loaded; late ones stay where they are."""
        found = super()._loads(ops, here, stores, level)
        early = [b for b in found if b.key not in self.elements.late]
        if early:
            with self.lines.block(self._loop_head(False)):
                self._open_visit()
                self._body(early, [], [], [])
        return [b for b in found if b not in early]

    def _finish(self, level: int) -> None:
        here = [p for p in self.phases if p.level == level]
        if here:
            self._join(here, level)
        super()._finish(level)

    def _join(self, here: list[Phase], level: int) -> None:
        """Every thread's accumulators become parts of the group's: the block's first threads hold one each."""
        lines, group = self.lines, f"g * {self.blocks} + " if self.kept else ""
        stores = []
        for p in here:
            value, before = self._combined(p)
            lines.add(*before, *([] if before else [f"{p.register} = {value};"]))
            stores += [f"st({held.name} + {group}q, {name});" for held, name in self._held(p)]
        with lines.block("if (threadIdx.x == 0)"):
            lines.add(*stores)
        at = [product("g", len(self.waits))] if self.kept else []
        place = " + ".join([self.count.name, *at, *([str(self.waits[level])] if self.waits[level] else [])])
        lines.add(f"wait_for_blocks({place}, {self.blocks});")
        for p in here:
            for (held, name), start in zip(self._held(p), (p.start, "0"), strict=False):
                lines.add(
                    f"{name} = threadIdx.x < {self.blocks} ? ld({held.name} + {group}threadIdx.x) : {start};"
                )

    def _held(self, p: Phase) -> list[tuple[Buffer, str]]:
        """Scratch and register of the accumulator, and of its index."""
        found = [(self.parts[p.register], p.register)]
        return found + [(b, f"x{p.op.name[1:]}") for b in [self.places.get(p.register)] if b is not None]

    def _one_thread(self) -> str:
        return "threadIdx.x == 0 && q == 0"
