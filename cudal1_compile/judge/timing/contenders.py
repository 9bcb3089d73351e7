"""What is timed side by side: aten, Inductor and candidates, each captured as a CUDA graph of the same form."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from cudal1_compile.judge.checks.cases import check_together
from cudal1_compile.judge.checks.guarded_memory import (
    POISONS,
    GuardedMemory,
    guarded_bytes,
    output_specs,
    scratch_specs,
)
from cudal1_compile.judge.checks.trial import BufferSet, Runner, Trial, landed, on_its_way, wants_memory
from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.timing.baseline import Baseline, aten_baseline, inductor_baselines
from cudal1_compile.judge.timing.clock import Clock, Contender, calls_per_graph
from cudal1_compile.runtime.launcher import LoadedKernel
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

PADDING_ROUNDS = 7
WARM_UP_S = 30.0
HELD_ELEMENTS = 1 << 21  # of results that are compared together: about 150 MiB while it runs


class KernelRunner:
    """A loaded kernel on the clock's stream."""

    def __init__(self, program: Program, kernel: LoadedKernel, clock: Clock, limit_s: float) -> None:
        self._symbols = [a for a in program.axes if a.symbolic]
        self._kernel = kernel
        self._clock = clock
        self._limit_s = limit_s

    def launch(
        self,
        outputs: Sequence[Tensor],
        scratch: Sequence[Tensor],
        inputs: Sequence[Tensor],
        sizes: Mapping[str, int],
    ) -> None:
        symbols = [sizes.get(a.name, a.size) for a in self._symbols]
        self._kernel(*outputs, *scratch, *inputs, *symbols, self._clock.stream_handle)

    def wait(self) -> None:
        self._clock.wait(self._limit_s)


class CallBuffers:
    """Outputs and scratch for each call of a timed graph: no call finds what another one left."""

    def __init__(self, program: Program, trial: Trial, calls: int) -> None:
        outputs = output_specs(program, {})
        specs = [*outputs, *scratch_specs(program, trial.candidate, {})]
        memory = trial.take("timed", guarded_bytes(specs * calls))
        self._memory = GuardedMemory(specs * calls, memory.device, within=memory)
        # guards too: a call cannot tell by them that it is timed
        self._poisoned = GuardedMemory(specs * calls, memory.device)
        self._poisoned.fill(POISONS[0])
        self._width = len(specs)
        self._outputs = len(outputs)

    def outputs(self, call: int) -> list[Tensor]:
        start = call * self._width
        return self._memory.views[start : start + self._outputs]

    def scratch(self, call: int) -> list[Tensor]:
        start = call * self._width
        return self._memory.views[start + self._outputs : start + self._width]

    def poison(self) -> None:
        self._memory.copy_image(self._poisoned)

    def damaged(self) -> Tensor:
        return self._memory.damaged()


@dataclass(frozen=True, slots=True)
class BaselineContender:
    """`held` keeps alive what the graph reads and writes."""

    contender: Contender
    held: object


@dataclass(frozen=True, slots=True)
class CandidateContender:
    contender: Contender
    buffers: CallBuffers
    sets: list[BufferSet]  # of the timing cases
    trial: Trial

    def wrong_result(self) -> str | None:
        """Results of timed calls are results too: compares all of the last round, and what lies around them."""
        cases = self.trial.timing_cases()
        changed = [s.inputs.differs_from_image(c.image) for s, c in zip(self.sets, cases, strict=True)]
        flags = on_its_way(torch.stack([self.buffers.damaged(), *changed]))
        calls = [(cases[i % len(cases)], self.buffers.outputs(i)) for i in range(self.contender.calls)]
        step = max(1, HELD_ELEMENTS // max(1, sum(x.numel() for x in calls[0][1])))
        groups = (calls[i : i + step] for i in range(0, len(calls), step))
        reason = next((r.refusal for group in groups for r in check_together(group) if r.refusal), None)
        if any(landed(flags, self.trial.device)):
            return "a timed call writes outside its outputs"
        return f"a timed call gave a wrong result: {reason}" if reason else None


def aten_contender(
    program: Program, inputs: Sequence[Sequence[Tensor]], clock: Clock, least_us: float
) -> BaselineContender | None:
    """The aten baseline, with as many calls in its graph as its length asks for; None where it has no graph.

    least_us: what a call takes at least; where that says enough, nobody waits until this is measured.
    """
    try:
        call = aten_baseline(program, clock.device)
        one = _baseline_contender("aten", call, inputs, 1, clock)
        if calls_per_graph(least_us) == 1:
            return one
        (times,) = clock.measure([one.contender], 5, random.Random(0))
        calls = calls_per_graph(median(times))
        return one if calls == 1 else _baseline_contender("aten", call, inputs, calls, clock)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        if wants_memory(error):
            raise  # no room is no property of the region
        log.warning("no aten baseline: %s", str(error).splitlines()[0])
        return None


def inductor_contender(
    program: Program,
    inputs: Sequence[Sequence[Tensor]],
    calls: int,
    clock: Clock,
    compiled: MutableMapping[str, Baseline],
) -> BaselineContender | None:
    """The region compiled alone by Inductor; None where Inductor or a capture of its code fails.

    compiled: by program, what was compiled before, whatever inputs it was timed with.
    """
    text = print_program(program)
    try:
        if text not in compiled:
            with _measuring_under_lock(clock.device_lock):
                several = inductor_baselines(program, clock.device, inputs[0], clock.device_lock.outside)
                contend = partial(_baseline_contender, "inductor", inputs=inputs, calls=1, clock=clock)
                compiled[text] = faster(several, lambda call: contend(call).contender, clock)
        return _baseline_contender("inductor", compiled[text], inputs, calls, clock)
    except Exception as error:  # noqa: BLE001  a compiler's failure of any kind leaves the other baseline
        if wants_memory(error):
            raise  # a win over the other one alone would be none
        log.warning("no Inductor baseline: %s", str(error).splitlines()[:1])
        return None


def faster(several: Sequence[Baseline], contend: Callable[[Baseline], Contender], clock: Clock) -> Baseline:
    """That of the same region which takes less time."""
    if len(several) == 1:
        return several[0]
    times = clock.measure([contend(call) for call in several], PADDING_ROUNDS, random.Random(0))
    return several[min(range(len(several)), key=lambda i: median(times[i]))]


@contextmanager
def _measuring_under_lock(device_lock: DeviceLock) -> Iterator[None]:
    """What Inductor measures itself: configurations at a kernel's first call.

    Between two of them others may have the device to themselves.
    """
    from torch._inductor.runtime import benchmarking  # as Inductor itself: not before it is needed

    benchmarker: Any = benchmarking.benchmarker
    measure = benchmarker.benchmark_gpu

    def under_lock(*args: Any, **options: Any) -> Any:
        with device_lock.inside():
            device_lock.give_way()
            return measure(*args, **options)

    benchmarker.benchmark_gpu = under_lock
    try:
        yield
    finally:
        benchmarker.benchmark_gpu = measure


def candidate_contender(
    name: str, program: Program, runner: Runner, trial: Trial, calls: int, clock: Clock
) -> CandidateContender:
    """One candidate, every call into memory of its own, inputs in turns."""
    buffers = CallBuffers(program, trial, calls)
    sets = trial.timing_sets()

    def call(i: int) -> None:
        runner.launch(buffers.outputs(i), buffers.scratch(i), sets[i % len(sets)].inputs.views, {})

    return CandidateContender(
        Contender(name, clock.capture(call, calls), calls, buffers.poison), buffers, sets, trial
    )


def _baseline_contender(
    name: str, call: Baseline, inputs: Sequence[Sequence[Tensor]], calls: int, clock: Clock
) -> BaselineContender:
    held: list[object] = [call, inputs]
    for given in inputs:
        call(given)
    clock.wait(WARM_UP_S)
    graph = clock.capture(lambda i: held.append(call(inputs[i % len(inputs)])), calls)
    return BaselineContender(Contender(name, graph, calls, _nothing), held)


def _nothing() -> None:
    """A contender without state to reset."""
