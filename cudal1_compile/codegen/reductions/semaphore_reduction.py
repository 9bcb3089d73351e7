"""Writes a reducing stage as ONE kernel: blocks share a group and meet at a semaphore in global memory.

    part of a group into registers -> the part's sums to scratch -> wait_for_blocks -> the group's sums from all
    parts -> the epilogue, from the same registers

Memory is read once, however long a group is; two kernels read it twice. Neighbours in the grid share a group. Each
level of reductions is a wait with a counter of its own. Not so variances: a part's squares are about its own mean,
and are moved to the group's once both are told.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_compile.codegen.reductions.grouped import TILE, GroupedWriter
from cudal1_compile.codegen.reductions.reduction import Phase, reduced_value
from cudal1_compile.codegen.reductions.split_parts import SCRATCH_TYPE
from cudal1_compile.codegen.stages.schedule import StageSchedule
from cudal1_compile.codegen.stages.source import Kernel, product, signature
from cudal1_compile.codegen.stages.space import grouped, size_of
from cudal1_compile.codegen.stages.stage import Buffer, Stage
from cudal1_fx_passes.program.ir import Op

MOST = 64  # blocks that share a group: they must fit on the device at once


class SemaphoreReductionWriter(GroupedWriter):
    """first_scratch: the number of the first scratch that this kernel may name."""

    def __init__(self, stage: Stage, schedule: StageSchedule, name: str, first_scratch: int) -> None:
        self.tile = schedule.kind == "joined_tile"
        super().__init__(stage, replace(schedule, kind="tile" if self.tile else "block"), name)
        self.lane = f"threadIdx.{'y' if self.tile else 'x'}"  # which part of its group a thread looks up
        self.blocks, self.next = schedule.splits, first_scratch
        self.centers = self._centers()
        if self.centers:
            self.phases = [self._about_own_mean(p) for p in self.phases]
            self.level = {name: 2 if at else 0 for name, at in self.level.items()}
        levels = sorted({p.level for p in self.phases} - ({0} if self.centers else set()))
        self.waits = {level: i for i, level in enumerate(levels)}
        self.parts = {p.register: self._buffer(SCRATCH_TYPE[p.type]) for p in self.phases}
        self.positions = {p.register: self._buffer("i32") for p in self.phases if p.kind.startswith("arg")}
        self.count = self._buffer("i32")

    def _centers(self) -> dict[str, Phase]:
        """The phase of each variance's mean, where nothing else needs a first result; else nothing."""
        first = {reduced_value(p.op): p for p in self.phases if p.level == 0 and p.op.fn in ("mean", "var")}
        later = [p for p in self.phases if p.level > 0]
        if not all(p.op.fn == "var" and self.level.get(reduced_value(p.op), 0) == 0 for p in later):
            return {}
        return {p.register: first[reduced_value(p.op)] for p in later}

    def _about_own_mean(self, p: Phase) -> Phase:
        if p.register not in self.centers:
            return p
        away = f"({{v}} - e{p.op.name[1:]})"
        return replace(p, level=1, update=f"{p.register} += {away} * {away};")

    def write(self) -> Kernel:
        buffers = [*self.parts.values(), *self.positions.values(), self.count]
        stored = [*self.stage.writes, *buffers]
        with self.lines.block(signature(self.name, self.schedule.block, self.stage.reads, stored)):
            self._write_levels()
        groups = f"cdiv({size_of(self.kept)}, {TILE})" if self.tile else size_of(self.kept)
        kept, wide = f"{groups}, " if self.kept else "", f", {TILE}" if self.tile else ""
        scratch = [f"{b.name} {b.dtype}[{kept}{self.blocks}{wide}]" for b in buffers[:-1]]
        scratch.append(f"{self.count.name} i32[{kept}{len(self.waits)}] = 0")
        grid = product(groups if self.tile else grouped(groups), self.blocks) if self.kept else str(self.blocks)
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

    def _tile_line(self) -> str:
        return f"const int h = blockIdx.x / {self.blocks} * {TILE} + threadIdx.x, q = blockIdx.x % {self.blocks};"

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
        for p in here:
            value, before = self._combined(p)
            self.lines.add(*before, *([] if before else [f"{p.register} = {value};"]))
        if self.centers and level == 0:
            for register, center in self.centers.items():
                self.lines.add(f"const {center.type} e{register[1:]} = {center.register} / max(c1 - c0, 1);")
            return
        if here:
            here = self.phases if self.centers else here
            self._share(here, level)
            self._finish_phases([p for p in here if p.register not in self.centers])
            self._move_squares()
            self._finish_phases([p for p in here if p.register in self.centers])
        self._group_statements(level + 1)

    def _combined(self, p: Phase) -> tuple[str, list[str]]:
        return (f"tile_{p.kind}({p.register})", []) if self.tile else super()._combined(p)

    def _move_squares(self) -> None:
        """From each part's mean to the group's."""
        if not self.centers:
            return
        total = size_of(self.order)
        self.lines.add(f"const int held = max(min(n, {total} - (int){self.lane} * n), 0);")
        for register, center in self.centers.items():
            mean = center.defines or f"m{center.op.name[1:]}"
            self.lines.add(f"const {center.type} u{register[1:]} = {center.register} / max(held, 1) - {mean};")
            self.lines.add(f"{register} += held * u{register[1:]} * u{register[1:]};")

    def _share(self, here: list[Phase], level: int) -> None:
        """Every block's results become parts of the group's: its first threads hold one each."""
        lines = self.lines
        first = f"g * {self.blocks} + " if self.kept else ""
        group, own, others = "g", f"{first}q", f"{first}threadIdx.x"
        if self.tile:
            group, column = f"blockIdx.x / {self.blocks}", f" * {TILE} + threadIdx.x"
            own, others = f"blockIdx.x{column}", f"(blockIdx.x - q + threadIdx.y){column}"
        with lines.block(f"if ({self.lane} == 0)"):
            for p in here:
                lines.add(*[f"st({held.name} + {own}, {name});" for held, name in self._held(p)])
        at = [product(group, len(self.waits))] if self.kept else []
        position = " + ".join([self.count.name, *at, *([str(self.waits[level])] if self.waits[level] else [])])
        lines.add(f"wait_for_blocks({position}, {self.blocks});")
        for p in here:
            for (held, name), start in zip(self._held(p), (p.start, "0"), strict=False):
                lines.add(f"{name} = {self.lane} < {self.blocks} ? ld({held.name} + {others}) : {start};")

    def _held(self, p: Phase) -> list[tuple[Buffer, str]]:
        """Scratch and register of the accumulator, and of its index."""
        found = [(self.parts[p.register], p.register)]
        return found + [(b, f"x{p.op.name[1:]}") for b in [self.positions.get(p.register)] if b is not None]

    def _one_thread(self) -> str:
        return f"{super()._one_thread()} && q == 0"
