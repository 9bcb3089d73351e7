"""Where the parts of reductions and scans lie in what is joined of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.chunk_program import Chunk, Place
from cudal1_compile.judge.oracle.partial_sums import SCANS, At, State, as_reduction, partial
from cudal1_fx_passes.program.evaluate import run_op
from cudal1_fx_passes.program.ir import Op, Program, Ref


@dataclass(frozen=True, slots=True)
class Places:
    """whole: the program. carried: of each scan the terms in one block."""

    whole: Program
    carried: Mapping[str, int]

    def shape(self, name: str) -> list[int]:
        """Of a scan: what its terms come to up to the end of each block."""
        op = self.whole.op[name]
        sizes = [self.whole.axis[a].size for a in as_reduction(op).axes]
        return [-(-self.whole.axis[op.over[0]].size // self.carried[name]), *sizes] if op.fn in SCANS else sizes

    def region(self, place: Place) -> At:
        return tuple(slice(*place.ranges[a]) for a in as_reduction(self.whole.op[place.source]).axes)

    def joins(self, place: Place) -> tuple[At, At | None]:
        """Where a part is joined, and with what: nothing where its terms are the first."""
        op, at = self.whole.op[place.source], self.region(place)
        first = all(place.ranges[a][0] == 0 for a in op.over)
        if op.fn not in SCANS:
            return at, None if first else at
        block = place.ranges[op.over[0]][0] // self.carried[place.source]
        return (block, *at), None if first else (block - 1, *at)

    def carry(self, place: Place, state: State) -> State:
        """What comes before a part of a scan that does not begin its axis, of one element along it."""
        op = self.whole.op[place.source]
        axis = op.over[0]
        at = (place.ranges[axis][0] // self.carried[place.source] - 1, *self.region(place))
        return tuple(x[at].unsqueeze(op.axes.index(axis)) for x in state)

    def begins(self, place: Place) -> bool:
        return all(place.ranges[a][0] == 0 for a in self.whole.op[place.source].over)

    def partial(self, run: Callable[[Op], Tensor], op: Op, chunk: Chunk, count: Tensor | None) -> State:
        """What the terms of a part of a reduction give."""
        source, place = op.operands[0], chunk.places[op.name]
        assert isinstance(source, Ref)
        over = self.whole.op[place.source].over
        extents = [self.whole.axis[a].size for a in over]
        dtype = chunk.program.value_dtype[source.name]
        return partial(run, as_reduction(op), dtype, count, [place.ranges[a] for a in over], extents)


def count_of(chunk: Chunk, op: Op, values: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """How many of a reduction's terms lie in bounds, float64."""
    source = op.operands[0]
    assert isinstance(source, Ref)
    ones = torch.ones((), dtype=torch.float64, device=device).expand(values[source.name].shape)
    counted = replace(op, fn="sum", dtype="f64", operands=op.operands[:1])
    return run_op(chunk.program, counted, {**values, source.name: ones}, device)
