"""Cuts a program into stages: each is one pass structure over memory, with scratch between them.

A stage reads buffers (inputs, or scratch that an earlier stage wrote), computes operations and writes buffers.
A reducing stage has the axes it keeps (one group each) and the axes it reduces; everything that those two span
and that is ready is absorbed into it. What is left over is pointwise. A stage says nothing about threads.

This module does not handle scans, windows or contractions: it returns None and their own strategies apply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cudal1_fx_passes.ops import OPS, Kind
from cudal1_fx_passes.program import Op, Output, Program, Ref


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that holds `value`: an input, an output or scratch; `axes` in memory order, outermost first."""

    name: str
    value: str
    dtype: str
    axes: tuple[str, ...]
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """kept and reduced: axes in program order; without `reduced` the stage is pointwise over `kept`."""

    program: Program
    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    reads: tuple[Buffer, ...]
    ops: tuple[Op, ...]
    writes: tuple[Buffer, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        held = {*self.kept, *self.reduced}
        return tuple(a.name for a in self.program.axes if a.name in held)


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages in order and the scratch buffers between them."""

    stages: tuple[Stage, ...]
    scratch: tuple[Buffer, ...]


def is_reduction(op: Op) -> bool:
    return OPS[op.fn].kind is Kind.REDUCE


def is_plain(program: Program) -> bool:
    """Only pointwise operations, reductions and index values, every operand read in place."""
    kinds = (Kind.POINTWISE, Kind.REDUCE, Kind.IOTA)
    in_place = all(not x.access for op in program.ops for x in op.operands if isinstance(x, Ref))
    return in_place and all(OPS[op.fn].kind in kinds for op in program.ops)


def read_names(op: Op) -> list[str]:
    names = [x.name for x in op.operands if isinstance(x, Ref)]
    return names + [i.value for x in op.operands if isinstance(x, Ref) for _, i in x.access if i.value is not None]


def closure(program: Program, wanted: list[str], held: set[str]) -> set[str]:
    """Names of the operations needed for `wanted` when the values in `held` are in memory."""
    found: set[str] = set()
    todo = [w for w in wanted if w not in held]
    while todo:
        name = todo.pop()
        if name in found or name not in program.op:
            continue
        found.add(name)
        todo += [n for n in read_names(program.op[name]) if n not in held]
    return found


def cut_stages(program: Program, flat: bool = False) -> Plan | None:
    """Returns None where the program is not plain.

    flat: reductions are stages of their own and everything with reduced axes is left to pointwise stages, so
    that each reduction can be split over more blocks than it has groups.
    """
    return _Cutter(program, flat).run() if is_plain(program) else None


class _Cutter:
    def __init__(self, program: Program, flat: bool) -> None:
        self.program, self.flat = program, flat
        self.held: dict[str, Buffer] = {
            i.name: Buffer(i.name, i.name, i.dtype, i.axes, i.strides) for i in program.inputs
        }
        self.outputs = list(program.outputs)
        self.waiting = [op for op in program.ops if is_reduction(op)]
        self.scratch: list[Buffer] = []
        self.stages: list[Stage] = []

    def run(self) -> Plan:
        while self.waiting and self.outputs:
            needed = self._needed([o.value for o in self.outputs])
            self.waiting = [op for op in self.waiting if op.name in needed]
            if self.waiting:
                self._reduce()
        for axes in dict.fromkeys(self.program.value_axes[o.value] for o in self.outputs):
            self._emit(axes, (), [o for o in self.outputs if self.program.value_axes[o.value] == axes], [])
        return Plan(tuple(self.stages), tuple(self.scratch))

    def _needed(self, wanted: list[str]) -> set[str]:
        return closure(self.program, wanted, set(self.held))

    def _blocked(self, name: str, allowed: set[str]) -> bool:
        """Whether computing `name` takes a waiting reduction that is not among `allowed`."""
        inside = self._needed([name])
        return any(op.name in inside and op.name not in allowed for op in self.waiting)

    def _reduce(self) -> None:
        first = next(op for op in self.waiting if not self._blocked(op.name, {op.name}))
        kept, reduced = first.axes, self._ordered(first.over)
        chosen: set[str] = set()
        for op in self.waiting:  # in program order, so the ones below come first
            same = op.axes == kept and self._ordered(op.over) == reduced
            if same and not self._blocked(op.name, {op.name} if self.flat else chosen | {op.name}):
                chosen.add(op.name)
        self.waiting = [op for op in self.waiting if op.name not in chosen]
        spans = (kept,) if self.flat else (kept, self._ordered((*kept, *reduced)))
        done = [
            o
            for o in self.outputs
            if self.program.value_axes[o.value] in spans and not self._blocked(o.value, set())
        ]
        self.outputs = [o for o in self.outputs if o not in done]
        self._emit(kept, reduced, done, self._frontier(chosen, kept))

    def _frontier(self, chosen: set[str], kept: tuple[str, ...]) -> list[str]:
        """Group values that later stages read: they go to scratch."""
        group = {
            op.name
            for op in self.program.ops
            if op.axes == kept
            and self._needed([op.name]) & chosen
            and not self._blocked(op.name, set())
        }
        later = [o.value for o in self.outputs] + [op.name for op in self.waiting]
        rest = closure(self.program, later, set(self.held) | group)
        read = {n for name in rest for n in read_names(self.program.op[name])} | set(later)
        return [op.name for op in self.program.ops if op.name in group and op.name in read]

    def _emit(
        self, kept: tuple[str, ...], reduced: tuple[str, ...], outputs: list[Output], frontier: list[str]
    ) -> None:
        program = self.program
        writes: list[Buffer] = []
        for out in program.outputs:
            if out in outputs:
                writes.append(Buffer(out.name, out.value, program.output_dtype(out), out.axes, out.strides))
        # an output that holds a value in full precision serves later stages too
        written = {w.value: w for w in writes if w.value in frontier and w.dtype not in ("f16", "bf16")}
        fresh: list[Buffer] = []
        for name in [n for n in frontier if n not in written]:
            dtype = program.value_dtype[name]
            buffer = Buffer(
                f"s{len(self.scratch) + len(fresh)}",
                name,
                "f32" if dtype in ("f16", "bf16") else dtype,
                program.value_axes[name],
            )
            fresh.append(buffer)
        writes += fresh
        wanted = [w.value for w in writes]
        inside = self._needed(wanted)
        ops = tuple(op for op in program.ops if op.name in inside)
        used = {n for op in ops for n in read_names(op)} | set(wanted)
        reads = tuple(b for name, b in self.held.items() if name in used)
        self.stages.append(Stage(program, kept, reduced, reads, ops, tuple(writes)))
        self.scratch += fresh
        self.held |= {b.value: replace(b) for b in fresh}
        self.held |= written

    def _ordered(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a.name for a in self.program.axes if a.name in axes)
