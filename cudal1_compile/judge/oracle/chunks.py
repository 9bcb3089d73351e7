"""What a region's outputs must be, chunk by chunk: never more in memory than one chunk, and small reductions.

    program + inputs + ChunkPlan -> chunked() -> Part(output, where it lies in it, Expected), one after another

As compare.expect, of which the parts are slices: the same values and error scales up to float64's rounding. How
the native reference is taken, of which the tolerance is made too, is told in chunk_native.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import MAGNIFY, Bounded, Run, as_compared, is_double, joined
from cudal1_compile.judge.oracle.chunk_native import ChunkNative
from cudal1_compile.judge.oracle.chunk_oracle import ChunkOracle
from cudal1_compile.judge.oracle.chunk_passes import ChunkPlan, Pass
from cudal1_compile.judge.oracle.chunk_places import Places
from cudal1_compile.judge.oracle.chunk_program import TERMS, Chunk, Range, Ranges, chunk_of, sized
from cudal1_compile.judge.oracle.compare import Expected, expected_of, roughly
from cudal1_compile.judge.oracle.f32_accumulation import expected_of_f32, in_float32
from cudal1_compile.judge.oracle.reduction_rules import POSITIONS
from cudal1_compile.judge.oracle.trace import Trace
from cudal1_fx_passes.program.ir import Input, Output, Program


@dataclass(frozen=True, slots=True)
class Part:
    """What a part of an output must be. ranges: of the output's axes, in their order in memory."""

    output: int
    ranges: tuple[Range, ...]
    expected: Expected

    def of(self, whole: Tensor) -> Tensor:
        """The part of what is held against it."""
        return whole[tuple(slice(*found) for found in self.ranges)]


@torch.inference_mode()
def chunked(
    program: Program,
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int],
    plan: ChunkPlan,
    coherent: bool = False,
    integral: bool = False,
    wide: Program | None = None,
) -> Iterator[Part]:
    """Every element of every output once. The plan must be of these sizes.

    coherent, integral: as in bounds.bounded_outputs. wide: as in f32_accumulation.expect_f32_accumulation.
    """
    yield from _Chunks(program, inputs, sizes, plan, (coherent, integral), wide).parts()


@torch.inference_mode()
def chunked_roughly(
    program: Program, inputs: Sequence[Tensor], sizes: Mapping[str, int], plan: ChunkPlan
) -> Iterator[Part]:
    """As compare.expect_roughly, without the oracle."""
    yield from _Chunks(program, inputs, sizes, plan, None, None).parts()


class _Chunks:
    def __init__(
        self,
        program: Program,
        inputs: Sequence[Tensor],
        sizes: Mapping[str, int],
        plan: ChunkPlan,
        rules: tuple[bool, bool] | None,
        wide: Program | None,
    ) -> None:
        self._program, self._is_wide, self._plan = program, wide is not None, plan
        self._native_program = sized(wide or program, sizes)
        self._compared = as_compared(self._native_program)
        self._inputs = {i.name: x for i, x in zip(program.inputs, inputs, strict=True)}
        self._device = inputs[0].device if inputs else torch.device("cpu")
        places = Places(self._compared, plan.known.carried)
        magnified = () if rules is None else (1.0, MAGNIFY) if is_double(program) else (1.0,)
        coherent, integral = rules or (False, False)
        traces = [Trace(self._compared, {}, self._device, coherent, integral, magnify) for magnify in magnified]
        self._oracles = [ChunkOracle(trace, places) for trace in traces]  # none of a rough reference
        self._native = ChunkNative(self._native_program, places, self._device)

    def parts(self) -> Iterator[Part]:
        for made in self._plan.passes:
            if made.stage == "rivals" and not self._oracles:
                continue
            for tile in made.tiles(self._compared):
                yield from self._tile(made, tile)
            if made.stage != "outputs":
                self._conclude(made)

    def _conclude(self, made: Pass) -> None:
        """What is joined by now; positions not before their rivals are known."""
        for name in made.values:
            awaits_rivals = made.stage == "parts" and self._compared.op[name].fn in POSITIONS
            found = [] if awaits_rivals else [oracle.finish(name) for oracle in self._oracles]
            if made.stage == "parts":
                self._native.finish(name, found[0] if found else None)

    def _tile(self, made: Pass, tile: Mapping[str, Range]) -> Iterator[Part]:
        targets = made.targets(self._compared, tile)
        chunk = chunk_of(self._compared, targets, self._plan.known)
        inputs = [self._cut(chunk, i) for i in chunk.program.inputs]
        if made.stage == "rivals":
            for oracle in self._oracles:
                oracle.run(chunk, inputs, rivals=True)
            return
        native = self._native.run(chunk_of(self._native_program, targets, self._plan.known), inputs)
        runs = [oracle.run(chunk, inputs) for oracle in self._oracles]
        if made.stage == "outputs":
            for name, label, target in zip(made.values, chunk.targets, targets, strict=True):
                yield self._part(chunk, name, label, target.ranges, native[label], runs)

    def _cut(self, chunk: Chunk, spec: Input) -> Tensor:
        if spec.name == TERMS:
            return torch.zeros(1, device=self._device)
        place = chunk.places[spec.name]
        axes = next(i.axes for i in self._program.inputs if i.name == place.source)
        found = self._inputs[place.source][tuple(slice(*place.ranges[a]) for a in axes)]
        return in_float32([found])[0] if self._is_wide else found

    def _part(
        self, chunk: Chunk, name: str, label: str, wanted: Ranges, native: Tensor, runs: Sequence[Run]
    ) -> Part:
        at, out = next((n, o) for n, o in enumerate(self._program.outputs) if o.name == name)
        held, order = chunk.places[label].ranges, self._compared.value_axes[out.value]
        turn = [order.index(a) for a in out.axes]
        # a scan may begin before what is wanted of it
        within = tuple(slice(wanted[a][0] - held[a][0], wanted[a][1] - held[a][0]) for a in out.axes)
        stored, ranges = native.permute(turn)[within], tuple(wanted[a] for a in out.axes)
        if not runs:
            return Part(at, ranges, roughly(name, self._program.output_dtype(out), stored))
        local = chunk.program.value_axes[label]
        found = [run.output(Output(name, label, tuple(local[n] for n in turn))) for run in runs]
        bounded = found[0] if len(found) == 1 else joined(*found)
        bounded = Bounded(
            bounded.value[within],
            *(None if x is None else x[within] for x in (bounded.error, bounded.decided, bounded.free)),
        )
        if self._is_wide:
            expected = expected_of_f32(self._program, out, stored[None], bounded.of_one)
        else:
            expected = expected_of(name, self._program.output_dtype(out), stored[None], bounded.of_one)
        return Part(at, ranges, expected[0])
