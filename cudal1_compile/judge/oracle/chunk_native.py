"""The native reference over the chunks of a program.

    chunk -> run() -> values; parts of reductions are joined -> finish() -> kept, for later chunks

It has of a sum over all chunks the oracle's, rounded once: no number of the dtype is nearer, so that the tolerance
of a sum is no wider than by what aten makes of it. Where aten's is not finite (joined of what it gives for chunks,
in float32 where the dtype is a half type) it is that; so are a maximum and a minimum, which are one of their own
terms, and what may be of products in TF32, whose factors are rounded alike where they are equal: no sum averages
that out. Scans go on from the oracle's sums; what aten adds within a chunk is of fewer terms than the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial as bind

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import last_uses
from cudal1_compile.judge.oracle.chunk_places import Places, count_of
from cudal1_compile.judge.oracle.chunk_program import Chunk, Place
from cudal1_compile.judge.oracle.partial_sums import (
    COUNTED,
    SCANS,
    PartialSums,
    as_reduction,
    concluded,
    joined,
)
from cudal1_compile.judge.oracle.trace import operands_of
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE, run_op
from cudal1_fx_passes.program.ir import Op, Program
from cudal1_fx_passes.program.ops import OPS, Kind

_HALF = ("bf16", "f16")
_SELECTS = ("amax", "amin")


class ChunkNative:
    """The native reference; `whole` is the program."""

    def __init__(self, whole: Program, places: Places, device: torch.device) -> None:
        self._whole, self._places, self._device = whole, places, device
        self._has_tf32 = any(op.fn == "dot_tf32" for op in whole.ops)
        self._kept: dict[str, Tensor] = {}
        self._sums: dict[str, PartialSums] = {}

    def run(self, chunk: Chunk, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        p = chunk.program
        values: dict[str, Tensor] = {}
        for spec, x in zip(p.inputs, inputs, strict=True):
            values[spec.name] = x.permute([spec.axes.index(a) for a in p.value_axes[spec.name]])
        last_use = last_uses(p)
        for i, op in enumerate(p.ops):
            give_way()
            values[op.name] = self._step(chunk, op, values)
            for name in last_use.get(i, ()):
                del values[name]
        return values

    def _step(self, chunk: Chunk, op: Op, values: Mapping[str, Tensor]) -> Tensor:
        place, dtype = chunk.places[op.name], TORCH_DTYPE[op.dtype]
        if place.in_parts:
            self._join(chunk, op, place, values)
            return torch.empty(0)
        if place.kept:
            return self._kept[place.source][self._places.region(place)]
        if OPS[op.fn].kind is Kind.IOTA:
            lo, hi = place.ranges[self._whole.op[place.source].over[0]]
            return torch.arange(lo, hi, dtype=dtype, device=self._device)
        if op.fn in SCANS and not self._places.begins(place):
            before = self._places.carry(place, self._sums[place.source].states["value"])
            found = self._widely(chunk, op, values)
            return joined(as_reduction(op).fn, before, (found,))[0].to(dtype)
        return run_op(chunk.program, op, values, self._device)

    def _join(self, chunk: Chunk, op: Op, place: Place, values: Mapping[str, Tensor]) -> None:
        count = count_of(chunk, op, values, self._device) if op.fn in COUNTED else None
        found = self._places.partial(bind(self._widely, chunk, values=values), op, chunk, count)
        sums = self._sums.setdefault(place.source, PartialSums(self._places.shape(place.source)))
        sums.join("value", as_reduction(op).fn, *self._places.joins(place), found)

    def _widely(self, chunk: Chunk, op: Op, values: Mapping[str, Tensor]) -> Tensor:
        """One operation, in float32 where its dtype is a half type; floats are given in float64."""
        half = {
            n: values[n].float() for n in operands_of(op) if values[n].dtype in (torch.bfloat16, torch.float16)
        }
        op = replace(op, dtype="f32") if op.dtype in _HALF else op
        found = run_op(chunk.program, op, {**values, **half}, self._device)
        return found.double() if found.is_floating_point() else found

    def finish(self, name: str, oracle: Tensor | None) -> None:
        """oracle: what that has joined or concluded, of a float."""
        op, dtype = self._whole.op[name], TORCH_DTYPE[self._whole.op[name].dtype]
        found = concluded(op, self._sums[name].states["value"])
        if oracle is not None and dtype.is_floating_point and op.fn not in _SELECTS and not self._has_tf32:
            found = torch.where(found.to(dtype).isfinite(), oracle, found)
        if op.fn in SCANS:
            self._sums[name].states["value"] = (found,)
        else:
            self._kept[name] = found.to(dtype)
            del self._sums[name]
