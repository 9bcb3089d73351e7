"""How a large case is divided, so that its oracle has room: slices of one axis, else chunks.

A slice is a program of its own, along an axis that nothing reduces, reads shifted or gathers. Where there is none,
or one slice is too large, chunks of several passes do (oracle/chunk_plan.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cudal1_compile.judge.oracle.chunk_passes import ChunkPlan
from cudal1_compile.judge.oracle.chunk_plan import chunk_plan
from cudal1_compile.judge.oracle.chunk_program import NoChunks
from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_fx_passes.program.ir import Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

CHUNK_BYTES = 1 << 30  # of a case that goes chunk by chunk, beside its tensors


@dataclass(frozen=True, slots=True)
class Slices:
    """An axis along which everything is cut, and the elements of it in one slice.

    shown: which of them are looked at, in order; None: all.
    """

    axis: str
    step: int
    shown: Sequence[int] | None = None

    def ranges(self, program: Program, sizes: Mapping[str, int]) -> Iterator[tuple[int, int]]:
        extent = sizes.get(self.axis, program.axis[self.axis].size)
        starts = range(0, extent, self.step)
        for start in starts if self.shown is None else (starts[i] for i in self.shown):
            yield start, min(extent, start + self.step)

    def hidden(self, program: Program, sizes: Mapping[str, int], most: int) -> Iterator[tuple[int, int]]:
        """What is not shown, at most so many slices in one."""
        start, end = 0, sizes.get(self.axis, program.axis[self.axis].size)
        for low, high in [*self.ranges(program, sizes), (end, end)]:
            for begin in range(start, low, most * self.step):
                yield begin, min(low, begin + most * self.step)
            start = high


def cut_of(
    program: Program, sizes: Mapping[str, int], room_bytes: int, line_bytes: int = 0
) -> Slices | ChunkPlan | None:
    """None where it has to be whole. line_bytes: of a slice of one line, where that is more."""
    need = oracle_bytes(program, sizes)
    axis = parallel_axis(program, sizes)
    extent = sizes.get(axis, program.axis[axis].size) if axis is not None else 1
    if need > max(room_bytes, line_bytes) * extent:
        try:
            return chunk_plan(program, sizes, min(room_bytes, CHUNK_BYTES))
        except NoChunks:  # as well as can be
            pass
    return Slices(axis, max(1, min(extent, int(extent * room_bytes / need)))) if axis is not None else None


def least_oracle_bytes(program: Program, room_bytes: int) -> int:
    """What the oracle of a large case takes at its least, at the example's sizes; chunks within `room_bytes`."""
    axis = parallel_axis(program, {})
    need = oracle_bytes(program, {}) // (program.axis[axis].size if axis else 1)
    if need <= room_bytes:
        return need
    try:
        return chunk_plan(program, {}, min(room_bytes, CHUNK_BYTES)).size_bytes
    except NoChunks:
        return need


def parallel_axis(program: Program, sizes: Mapping[str, int]) -> str | None:
    """The largest axis along which the program can be cut into independent slices, if there is one."""
    fixed: set[str] = set()
    for op in program.ops:
        fixed |= set(op.over)
        fixed |= {a for a in op.axes if OPS[op.fn].kind is Kind.IOTA}
        for x in op.operands:
            if isinstance(x, Ref):
                for axis, index in x.access:
                    fixed |= {axis, *(a for _, a in index.terms)}
    fixed |= {i.domain.below for i in program.inputs if i.domain.below is not None}
    free = [a.name for a in program.axes if a.name not in fixed and all(a.name in o.axes for o in program.outputs)]
    extent = {a.name: sizes.get(a.name, a.size) for a in program.axes}
    return max(free, key=extent.__getitem__, default=None) if free else None
