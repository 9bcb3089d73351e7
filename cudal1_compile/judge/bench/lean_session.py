"""The judge's work on regions that are too large for copies (lean.py), within a device's worker.

The gates and their order are session.py's. What differs: one case at a time, contenders that are launched and not
captured, so that each gives its results' memory back to the next one, and timed calls of which one more is
looked at in the end. Room for the region's tensors and LEAN_BYTES is all that it asks for.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cudal1_compile.errors import LaunchError
from cudal1_compile.judge.bench.timings import Times, of_baselines, of_final, of_quick, too_fast
from cudal1_compile.judge.checks.adequacy import Inadequacy, passing
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.checks.lean import (
    LeanCall,
    LeanTrial,
    lean_bytes,
    lean_cases,
    rough_case,
    why_no_parts,
)
from cudal1_compile.judge.checks.trial import Wrong, wants_memory
from cudal1_compile.judge.inputs.make import derive_seed
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.oracle.numerics import numerics_of
from cudal1_compile.judge.timing.baseline import Baseline, aten_baseline, inductor_baselines
from cudal1_compile.judge.timing.clock import Clock, Contender
from cudal1_compile.judge.timing.contenders import WARM_UP_S, KernelRunner, faster
from cudal1_compile.judge.timing.floor import Floor
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected, Timed, Timing, Verdict
from cudal1_compile.kernel.candidate import Candidate, CandidateError
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.launcher import LoadedKernel, load
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

UNSTEADY = "the times vary too much between buckets; the device may be busy"
NO_BASELINE = "neither aten nor Inductor can run the region here"
QUICK_ROUNDS = 7  # at least: a bound needs as many
BASELINE_MS = 10.0  # device time of the baselines alone
SPIN_CYCLES = 200_000  # of the device, before a call that the host launches meanwhile
ROUGHLY = "normal"  # the distribution of what is timed
LAUNCH_S = 5.0  # that one may take: a split product of infinities takes a hundred times as long


@dataclass(frozen=True, slots=True)
class Entrant:
    """A candidate with its binary."""

    candidate: Candidate
    binary: Binary


@dataclass(frozen=True, slots=True)
class _Launched:
    """Work that is launched anew each time, in the place of a captured graph."""

    run: Callable[[], object]

    def replay(self) -> None:
        self.run()


@dataclass(slots=True)
class _Baselines:
    """Of one region: compiled once, whatever inputs they are timed with."""

    aten: Baseline | None = None
    inductor: Baseline | None = None
    tried_aten: bool = False
    tried_inductor: bool = False
    known: Timing | None = None


class LeanSession:
    """One region's case at a time; its baselines stay for the next one."""

    def __init__(
        self,
        target: Target,
        clock: Clock,
        limits: Limits,
        floor: Floor,
        make_room: Callable[[int], bool],
        counted: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """make_room: whether so many bytes of the device are free, once others have given theirs up.

        counted: counts the time within as that step's.
        """
        self._counted = counted
        self._target, self._clock, self._limits, self._floor = target, clock, limits, floor
        self._make_room = make_room
        self._rng = random.Random()
        self._held: tuple[str, int, Case] | None = None
        self._baselines: dict[str, _Baselines] = {}
        self._versions = (("torch", str(torch.__version__)), ("cuda", str(torch.version.cuda)))

    def clear(self) -> None:
        self._held = None

    def baselines(self, program: Program, seed: int, with_inductor: bool) -> Verdict:
        if (refused := self._why_not(program, 0)) is not None:
            return refused
        case = self._case(program, seed)
        found = self._known(program)
        contenders = self._contenders(program, found, case.inputs, with_inductor)
        if not contenders:
            return Rejected("time", NO_BASELINE)
        times = self._measure(list(contenders.values()), BASELINE_MS * len(contenders))
        by_name = dict(zip(contenders, times, strict=True))
        timing = of_baselines(by_name.get("aten"), by_name.get("inductor"), self._floor.us(program))
        found.known = timing
        return Accepted(Proof(self._target.key, "exact", (), seed, timing, None, self._versions))

    def quick(self, program: Program, entrant: Entrant, seed: int, long: bool) -> Verdict:
        budget_ms = self._limits.final_ms if long else self._limits.quick_ms

        def look(kernel: LoadedKernel) -> Verdict:
            case = self._case(program, seed)
            runner = self._runner(program, kernel)
            with self._counted("rough trial"):
                found = LeanTrial(program, entrant.candidate, runner).verify([case], 0)
            if isinstance(found, Wrong):
                return Rejected("verify", found.reason)
            return self._quick_time(program, LeanCall(program, entrant.candidate, runner, case), case, budget_ms)

        return self._with_kernel(program, entrant, look)

    def judge(self, program: Program, entrant: Entrant, seed: int, timed: bool, repeats: int) -> Verdict:
        def look(kernel: LoadedKernel) -> Verdict:
            found = self._verify(program, entrant, kernel, seed, repeats)
            if not timed or not isinstance(found, Accepted):
                return found
            case = self._case(program, seed)
            call = LeanCall(program, entrant.candidate, self._runner(program, kernel), case)
            quick = self._quick_time(program, call, case, self._limits.quick_ms)
            return _with_timing(found, quick.timing) if isinstance(quick, Timed) else quick

        return self._with_kernel(program, entrant, look)

    def finalists(
        self, program: Program, entrants: Sequence[Entrant], seed: int, is_right_smaller: bool
    ) -> list[Verdict]:
        """is_right_smaller: all are, which tells what no size changes."""
        return [self._final(program, entrant, seed, is_right_smaller) for entrant in entrants]

    # steps

    def _final(self, program: Program, entrant: Entrant, seed: int, is_right_smaller: bool) -> Verdict:
        def look(kernel: LoadedKernel) -> Verdict:
            found = self._verify(program, entrant, kernel, seed, self._limits.finalist_repeats, is_right_smaller)
            if not isinstance(found, Accepted):
                return found
            case = self._case(program, seed)
            call = LeanCall(program, entrant.candidate, self._runner(program, kernel), case)
            baselines = self._contenders(program, self._known(program), case.inputs, self._limits.inductor)
            if not baselines:
                return Rejected("time", NO_BASELINE)
            contenders = [*baselines.values(), _candidate(call)]
            *others, candidate_us = self._measure(contenders, self._limits.final_ms * len(contenders))
            by_name = dict(zip(baselines, others, strict=True))
            floor_us = self._floor.us(program)
            timing = of_final(by_name.get("aten"), by_name.get("inductor"), candidate_us, floor_us)
            refused = self._refusal(program, call, candidate_us)
            if refused is None and timing is None:
                return Deferred(UNSTEADY)
            return refused or _with_timing(found, timing)

        return self._with_kernel(program, entrant, look)

    def _verify(
        self,
        program: Program,
        entrant: Entrant,
        kernel: LoadedKernel,
        seed: int,
        repeats: int,
        is_right_smaller: bool = False,
    ) -> Verdict:
        """Every case, one after the other, and whether they tell the task from a stand-in."""
        self.clear()
        doubts: list[set[Inadequacy]] = []
        trial = LeanTrial(program, entrant.candidate, self._runner(program, kernel))
        cases = lean_cases(program, entrant.candidate, seed, self._clock.device, is_right_smaller)
        with self._counted("trial"):
            found = trial.verify(cases if is_right_smaller else _doubted(program, cases, doubts), repeats)
        if isinstance(found, Wrong):
            return Rejected("verify", found.reason)
        if _left_open(doubts):  # of few elements perhaps by bad luck
            again = lean_cases(program, entrant.candidate, derive_seed(seed, "again"), self._clock.device)
            for _ in _doubted(program, again, doubts):
                """Without a launch."""
        if open_ := _left_open(doubts):
            return Rejected("task", min(open_, key=lambda i: i.stand_in).reason)
        label = numerics_of(program, entrant.candidate.code)
        return Accepted(Proof(self._target.key, label, found.errors, seed, None, None, self._versions))

    def _quick_time(self, program: Program, call: LeanCall, case: Case, budget_ms: float) -> Verdict:
        found = self._known(program)
        contenders = self._contenders(program, found, case.inputs, with_inductor=False)
        known = found.known
        if known is not None and known.is_inductors and found.inductor is not None:
            contenders = {"inductor": _baseline("inductor", found.inductor, case.inputs)}
        if not contenders:
            return Deferred("aten cannot run the region here, and Inductor is not timed yet")
        baseline_us, candidate_us = self._measure([*contenders.values(), _candidate(call)], budget_ms)
        if (refused := self._refusal(program, call, candidate_us)) is not None:
            return refused
        return Timed(of_quick(baseline_us, candidate_us, known))

    def _refusal(self, program: Program, call: LeanCall, times_us: Times) -> Rejected | None:
        """A wrong result after the timed calls, or a time that cannot be."""
        with self._counted("timed results"):
            call.prepare()
            call.launch()
            self._clock.wait(LAUNCH_S)
            reason = call.refusal()
        if reason is not None:
            return Rejected("time", f"a call after the timed ones gave a wrong result: {reason}")
        return too_fast(times_us, self._clock.floor_us(least_bytes(program)))

    def _measure(self, contenders: Sequence[Contender], budget_ms: float) -> list[Times]:
        with self._counted("quick"), self._clock.device_lock.alone():
            rounds = self._clock.rounds_for(contenders, budget_ms, self._rng, QUICK_ROUNDS)
            return list(self._clock.measure(contenders, rounds, self._rng))

    def _contenders(
        self, program: Program, found: _Baselines, inputs: Sequence[Tensor], with_inductor: bool
    ) -> dict[str, Contender]:
        """By name, aten first; what cannot run is left out."""
        if not found.tried_aten:
            found.tried_aten = True
            found.aten = self._tried("aten", inputs, lambda: aten_baseline(program, self._clock.device))
        if with_inductor and not found.tried_inductor:
            found.tried_inductor = True
            found.inductor = self._tried("Inductor", inputs, lambda: self._compiled(program, inputs))
        several = {"aten": found.aten, "inductor": found.inductor if with_inductor else None}
        return {name: _baseline(name, call, inputs) for name, call in several.items() if call is not None}

    def _compiled(self, program: Program, inputs: Sequence[Tensor]) -> Baseline:
        several = inductor_baselines(program, self._clock.device, inputs, self._clock.device_lock.outside)
        return faster(several, lambda call: _baseline("inductor", call, inputs), self._clock)

    def _tried(self, name: str, inputs: Sequence[Tensor], make: Callable[[], Baseline]) -> Baseline | None:
        try:
            with self._counted(name.lower()):
                call = make()
                call(inputs)
                self._clock.wait(WARM_UP_S)
        except Exception as error:  # noqa: BLE001  a compiler's failure of any kind leaves the other baseline
            log.warning("no %s baseline: %s", name, str(error).splitlines()[:1])
            torch.cuda.empty_cache()
            return None
        return call

    def _case(self, program: Program, seed: int) -> Case:
        """Roughly held against the native reference."""
        text = print_program(program)
        if self._held is None or self._held[:2] != (text, seed):
            self._held = None
            with self._counted("case suite"):
                self._held = text, seed, rough_case(program, ROUGHLY, seed, self._clock.device)
        return self._held[2]

    def _known(self, program: Program) -> _Baselines:
        return self._baselines.setdefault(print_program(program), _Baselines())

    def _runner(self, program: Program, kernel: LoadedKernel) -> KernelRunner:
        return KernelRunner(program, kernel, self._clock, LAUNCH_S)

    def _why_not(self, program: Program, scratch_bytes: int) -> Deferred | None:
        if (reason := why_no_parts(program)) is not None:
            return Deferred(f"no room: {reason}")
        need = lean_bytes(program, scratch_bytes)
        if self._held is not None and self._held[0] == print_program(program):
            need -= self._held[2].image.size_bytes
        if self._make_room(need):
            return None
        free = self._clock.free_bytes()
        return Deferred(f"no room: a trial of this region needs {need >> 20} MiB, {free >> 20} MiB are free")

    def _with_kernel(self, program: Program, entrant: Entrant, look: Callable[[LoadedKernel], Verdict]) -> Verdict:
        dims = {a.name: a.size for a in program.axes}
        scratch = sum(s.size_bytes(dims) for s in entrant.candidate.scratch)
        if (refused := self._why_not(program, scratch)) is not None:
            return refused
        try:
            kernel = load(program, entrant.candidate, entrant.binary, self._clock.device.index or 0)
        except LaunchError as error:
            if wants_memory(error):
                raise
            return Rejected("build", f"the kernel cannot be loaded: {error}")
        try:
            return look(kernel)
        except (LaunchError, CandidateError) as error:
            if wants_memory(error):
                raise
            return Rejected("verify", f"the launch failed: {error}")
        finally:
            kernel.close()


def _doubted(program: Program, cases: Iterable[Case], doubts: list[set[Inadequacy]]) -> Iterator[Case]:
    """The cases, each after what it leaves open of the task."""
    for case in cases:
        doubts.append(passing(program, [case]))
        yield case
        del case


def _left_open(doubts: Sequence[set[Inadequacy]]) -> set[Inadequacy]:
    """By each case that was asked."""
    return set.intersection(*doubts) if doubts else set()


def _with_timing(found: Accepted, timing: Timing | None) -> Accepted:
    return Accepted(replace(found.proof, timing=timing))


def _baseline(name: str, call: Baseline, inputs: Sequence[Tensor]) -> Contender:
    return Contender(name, _Launched(lambda: call(inputs)), 1, _spin)


def _candidate(call: LeanCall) -> Contender:
    def launch() -> None:
        call.launch()
        call.release()  # memory of the stream's own: it is used again behind the launch

    def prepare() -> None:
        call.prepare()
        _spin()

    return Contender("candidate", _Launched(launch), 1, prepare)


def _spin() -> None:
    """Keeps the device busy while the host launches what is timed."""
    if torch.cuda.is_available():
        torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
