"""The judge's work on one GPU, within the worker process: verify, time, measure finalists together.

    baselines: aten, and Inductor where it is asked for, timed together and held against the physical floor
    quick:     a rough suite (rough.py) -> one launch a case -> timed against the faster baseline that is known
    judge:     case suite (cached) -> trial -> quick timing against aten, where that is asked for
    finalists: fresh case suite -> trial with repeats -> replays of a CUDA graph with new inputs
               -> aten, Inductor and all candidates timed together

A hang or a fault raises TrialStopped; the process is then useless and its parent replaces it. Everything runs
on one stream that is not the default one. Builds happen in the parent; this module gets binaries. Other processes
may judge on the same GPU (device_lock.py): their contexts are others, and nothing of theirs runs while times are
taken.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from cudal1_compile.errors import LaunchError
from cudal1_compile.judge.bench.lean_session import BASELINE_MS, QUICK_ROUNDS, UNSTEADY, Entrant, LeanSession
from cudal1_compile.judge.bench.timings import Times, of_baselines, of_final, of_quick, too_fast
from cudal1_compile.judge.checks.case_suite import CaseSuite, NoRoom, Unverifiable, prepare_suite
from cudal1_compile.judge.checks.case_suite_file import read_suite
from cudal1_compile.judge.checks.checksum import Checksum
from cudal1_compile.judge.checks.guarded_memory import POISONS
from cudal1_compile.judge.checks.lean import is_lean
from cudal1_compile.judge.checks.redzones import Redzones
from cudal1_compile.judge.checks.rough import rough_suite
from cudal1_compile.judge.checks.trial import Trial, Wrong, observe, wants_memory
from cudal1_compile.judge.inputs.make import derive_seed
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.oracle.numerics import numerics_of
from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.timing.baseline import Baseline
from cudal1_compile.judge.timing.clock import Clock
from cudal1_compile.judge.timing.contenders import (
    HELD_ELEMENTS,
    BaselineContender,
    CandidateContender,
    KernelRunner,
    aten_contender,
    candidate_contender,
    inductor_contender,
)
from cudal1_compile.judge.timing.floor import Floor
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected, Timed, Timing, Verdict
from cudal1_compile.kernel.candidate import CandidateError
from cudal1_compile.runtime.launcher import LoadedKernel, load
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_fx_passes.program.ir import ITEM_BYTES, Program
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

MAX_REGIONS = 128
REACHED = "the kernel writes far outside its buffers, perhaps into what it is held against"
MEMORY_SHARE = 0.9  # of the device's memory, whatever is free of it


@dataclass(slots=True)
class _Region:
    """What is made once for a region: its case suite, and its baselines on first use."""

    suite: CaseSuite
    checksum: Checksum  # of the case suite
    least_bytes: int  # that any correct kernel must move
    suite_bytes: int  # asked for whenever a region comes, so counted once
    output_bytes: int
    aten: BaselineContender | None = None
    tried_aten: bool = False
    inductor: BaselineContender | None = None
    tried_inductor: bool = False
    known: Timing | None = None  # of the baselines, once they were timed

    @property
    def size_bytes(self) -> int:
        """Of the case suite, and of the outputs that the baselines' graphs write."""
        calls = sum(b.contender.calls for b in (self.aten, self.inductor) if b is not None)
        return self.suite_bytes + calls * self.output_bytes

    def timing_inputs(self) -> list[list[Tensor]]:
        return [c.inputs for c in self.suite.cases if not c.sizes][:2]


def _of_suite(suite: CaseSuite) -> _Region:
    program = suite.program
    output_bytes = sum(program.size(o.axes) * ITEM_BYTES[program.output_dtype(o)] for o in program.outputs)
    return _Region(suite, Checksum(suite.tensors()), least_bytes(program), suite.size_bytes, output_bytes)


@dataclass(frozen=True, slots=True)
class _Final:
    """A finalist that is right, ready to be timed."""

    kernel: LoadedKernel
    runner: KernelRunner
    trial: Trial
    errors: tuple[tuple[str, float], ...]


def _only(measure: Callable[[], object]) -> list[Verdict]:
    """No verdict on anything."""
    measure()
    return []


def open_session(
    index: int, limits: Limits, device_lock: DeviceLock | None = None, shared: Path | None = None
) -> DeviceSession:
    """The session of one CUDA device; makes this process's CUDA context. Raises ValueError where there is none.

    device_lock: where other processes have sessions of the device too. shared: a folder of all of them.
    """
    if not torch.cuda.is_available():
        raise ValueError(f"no CUDA device {index} can be used by this process")
    device = torch.device("cuda", index)
    device_lock = device_lock or DeviceLock.private()
    with device_lock.shared():  # a context comes up, and nobody takes times meanwhile
        torch.cuda.set_device(device)
        torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE, device)
        target = detect_target(device)
        return DeviceSession(target, Clock(device, target.l2_bytes, device_lock), limits, shared)


class DeviceSession:
    """Owns a device: its stream, its clock, the regions that are ready."""

    def __init__(self, target: Target, clock: Clock, limits: Limits, shared: Path | None = None) -> None:
        self.target = target
        self.clock = clock
        self.device = clock.device
        self.limits = limits
        self.floor = Floor(clock, shared)
        self._lean = LeanSession(target, clock, limits, self.floor, self._make_room, self._counted)
        self.versions = (("torch", str(torch.__version__)), ("cuda", str(torch.version.cuda)))
        self._regions: OrderedDict[tuple[str, int], _Region | Unverifiable] = OrderedDict()
        self._compiled: dict[str, Baseline] = {}  # by Inductor
        self._rng = random.Random()
        self._redzones: Redzones | None = None
        self._intact_last: _Region | None = None  # found so when the last candidate was done
        self._checksums: list[Checksum] = []  # of the cases that only candidates of this request have
        self.spent_s: defaultdict[str, float] = defaultdict(float)  # seconds by step, since the session began
        self.short_of_room = False  # the last request was put off for what others hold of the device's memory

    def judge(
        self,
        program: Program,
        entrant: Entrant,
        seed: int,
        timed: bool = True,
        suite: str = "",
        repeats: int = 1,
    ) -> Verdict:
        """Gates 3 to 5 and, if asked, a quick timing. Raises TrialStopped.

        suite: a file that may hold the region's case suite. repeats: further runs of one case.
        """
        if is_lean(program):
            return self._guarded(1, lambda: [self._lean.judge(program, entrant, seed, timed, repeats)])[0]
        (verdict,) = self._guarded(1, lambda: [self._judge(program, entrant, seed, timed, suite, repeats)])
        return verdict

    def finalists(
        self, program: Program, entrants: Sequence[Entrant], seed: int, is_right_smaller: bool = False
    ) -> list[Verdict]:
        """Gates 5 to 8 on fresh data, all candidates timed together. Raises TrialStopped.

        is_right_smaller: of a large region, all passed at smaller sizes.
        """
        seed = derive_seed(seed, "finalists")
        if is_lean(program):
            return self._guarded(
                len(entrants), lambda: self._lean.finalists(program, entrants, seed, is_right_smaller)
            )
        return self._guarded(len(entrants), lambda: self._finalists(program, entrants, seed))

    def quick(self, program: Program, entrant: Entrant, seed: int, long: bool = False) -> Verdict:
        """Timed, or refused for what is grossly wrong. Raises TrialStopped.

        long: for a closer bound, as long as finalists are timed.
        """
        seed = derive_seed(seed, "quick")
        quick = self._lean.quick if is_lean(program) else self._quick
        (verdict,) = self._guarded(1, lambda: [quick(program, entrant, seed, long)])
        return verdict

    def baselines(self, program: Program, seed: int, inductor: bool) -> Verdict:
        """aten as the candidate, Inductor as the baseline where it is asked for. Raises TrialStopped."""
        seed = derive_seed(seed, "quick")
        baselines = self._lean.baselines if is_lean(program) else self._baselines
        (verdict,) = self._guarded(1, lambda: [baselines(program, seed, inductor)])
        return verdict

    def ahead(self) -> Iterator[None]:
        """Measures, part by part, what the first region would wait for."""
        for measure in self.floor.parts():
            if any(isinstance(v, Deferred) for v in self._guarded(1, partial(_only, measure))):
                return
            yield

    def clear(self) -> None:
        """Gives the device's memory back; what is made once for a region is made again when it is needed."""
        self._regions.clear()
        self._compiled.clear()
        self._lean.clear()
        self._redzones = self._intact_last = None
        self._checksums.clear()
        torch.cuda.empty_cache()

    @contextlib.contextmanager
    def _counted(self, step: str) -> Iterator[None]:
        device_lock = self.clock.device_lock
        begin, waited_s, beside_s = time.monotonic(), self.clock.waited_s, device_lock.waited_s
        try:
            yield
        finally:
            self.spent_s[step] += time.monotonic() - begin - (device_lock.waited_s - beside_s)
            self.spent_s[f"{step}, device"] += self.clock.waited_s - waited_s
            self.spent_s["waited for the device"] = device_lock.waited_s

    def _guarded(self, count: int, work: Callable[[], list[Verdict]]) -> list[Verdict]:
        self.short_of_room = False
        with self.clock.device_lock.shared(), self.clock.active(), torch.no_grad():
            try:
                return work()
            except RuntimeError as error:
                if not wants_memory(error):
                    raise
                self.clear()
                self.short_of_room = True
                said = str(error).splitlines()[0]  # how much was wanted, and who holds the rest
                return [Deferred(f"the device has no room for a trial of this region: {said}")] * count

    # regions

    def _region(
        self, program: Program, seed: int, ahead: str = "", rough: bool = False
    ) -> _Region | Deferred | Rejected:
        """rough: held against the native reference alone."""
        key = (print_program(program), seed)
        found = self._regions.get(key)
        if isinstance(found, _Region) and found is not self._intact_last and not self._intact(found):
            found = None  # a candidate of another region was here
        if found is None:
            room = self._room()
            with self._counted("case suite"):
                suite: CaseSuite | Unverifiable | NoRoom | None = self._suite_ahead(program, ahead)
                if rough:
                    suite = rough_suite(program, seed, self.device, room)
                elif suite is None:
                    suite = prepare_suite(program, seed, self.device, room, self.limits.distributions or None)
                if isinstance(suite, NoRoom):
                    self.short_of_room = room < self.limits.memory_bytes
                    return Deferred(suite.reason)
                found = suite if isinstance(suite, Unverifiable) else _of_suite(suite)
            self._regions[key] = found
            self._evict()
        self._regions.move_to_end(key)
        return Rejected("task", found.reason) if isinstance(found, Unverifiable) else found

    def _suite_ahead(self, program: Program, path: str) -> CaseSuite | Unverifiable | None:
        """None where none was made, or it is gone."""
        if not path:
            return None
        try:
            return read_suite(Path(path), program, self.device)
        except (OSError, SafetensorError) as error:
            log.debug("a case suite that was made ahead is not there: %s", error)
            return None

    def _intact(self, region: _Region) -> bool:
        with self._counted("case suite"):
            return region.checksum.intact

    @property
    def redzones(self) -> Redzones:
        """Made on the stream on which candidates run."""
        if self._redzones is None:
            self._redzones = Redzones(self.device)
        return self._redzones

    def _untouched(self, region: _Region) -> bool:
        """Whether a candidate that is done wrote nowhere but into its buffers, as far as the judge can see."""
        checksums, self._checksums = self._checksums, []
        found = self.redzones.leave() and all(checksum.intact for checksum in checksums) and self._intact(region)
        self._intact_last = region if found else None
        return found

    def _make_room(self, need_bytes: int) -> bool:
        """For a lean region: gives up what other regions hold. Whether so much is free then."""
        self._intact_last = None
        if self.clock.free_bytes() < need_bytes:
            self.clear()
        self.short_of_room = self.clock.free_bytes() < need_bytes
        return not self.short_of_room

    def _evict(self) -> None:
        def held_bytes() -> int:
            return sum(r.size_bytes for r in self._regions.values() if isinstance(r, _Region))

        while len(self._regions) > 1 and (
            len(self._regions) > MAX_REGIONS or held_bytes() > self.limits.cached_suites_bytes
        ):
            self._regions.popitem(last=False)

    def _room(self) -> int:
        return min(self.limits.memory_bytes, self.clock.free_bytes() // 2)

    def _aten(self, program: Program, region: _Region) -> BaselineContender | None:
        if not region.tried_aten:
            region.tried_aten = True
            with self._counted("aten"):
                least_us = self.clock.floor_us(region.least_bytes)
                region.aten = aten_contender(program, region.timing_inputs(), self.clock, least_us)
        return region.aten

    def _inductor(self, program: Program, region: _Region, calls: int) -> BaselineContender | None:
        """Compiled once, also where a region's later candidates come to be measured."""
        if self.limits.inductor and not region.tried_inductor:
            region.tried_inductor = True
            with self._counted("inductor"):
                if len(self._compiled) >= MAX_REGIONS:
                    self._compiled.clear()
                region.inductor = inductor_contender(
                    program, region.timing_inputs(), calls, self.clock, self._compiled
                )
        return region.inductor

    def _baselines(self, program: Program, seed: int, with_inductor: bool) -> Verdict:
        region = self._region(program, seed, rough=True)
        if not isinstance(region, _Region):
            return region
        aten = self._aten(program, region)
        if aten is None:
            return Rejected("time", "aten has no CUDA graph of this region")
        inductor = self._inductor(program, region, aten.contender.calls) if with_inductor else None
        contenders = [aten.contender] if inductor is None else [aten.contender, inductor.contender]
        with self._counted("baselines"), self.clock.device_lock.alone():
            floor_us = self.floor.us(program)
            rounds = self.clock.rounds_for(contenders, BASELINE_MS * len(contenders), self._rng)
            aten_us, *others = self.clock.measure(contenders, rounds, self._rng)
        timing = of_baselines(aten_us, others[0] if others else None, floor_us)
        region.known = timing
        return Accepted(Proof(self.target.key, "exact", (), seed, timing, None, self.versions))

    # one candidate

    def _judge(
        self, program: Program, entrant: Entrant, seed: int, timed: bool, suite: str, repeats: int
    ) -> Verdict:
        region = self._region(program, seed, suite)
        if not isinstance(region, _Region):
            return region
        verdict = self._try(program, region, entrant, seed, timed, repeats)
        return verdict if self._untouched(region) or isinstance(verdict, Rejected) else Rejected("verify", REACHED)

    def _try(
        self, program: Program, region: _Region, entrant: Entrant, seed: int, timed: bool, repeats: int
    ) -> Verdict:
        found = self._trial(program, region, entrant, repeats)
        if isinstance(found, Rejected):
            return found
        try:
            timing = self._time(program, region, found, self.limits.quick_ms) if timed else None
        finally:
            with self._counted("load"):
                found.kernel.close()
        return timing if isinstance(timing, Rejected) else self._accept(found, seed, timing)

    def _quick(self, program: Program, entrant: Entrant, seed: int, long: bool) -> Verdict:
        region = self._region(program, seed, rough=True)
        if not isinstance(region, _Region):
            return region
        timing = self._try_roughly(
            program, region, entrant, self.limits.final_ms if long else self.limits.quick_ms
        )
        untouched = self._untouched(region)
        if isinstance(timing, Rejected):
            return timing
        if not untouched:
            return Rejected("verify", REACHED)
        return Timed(timing) if timing else Deferred("the aten baseline cannot be captured in a CUDA graph")

    def _try_roughly(
        self, program: Program, region: _Region, entrant: Entrant, budget_ms: float
    ) -> Timing | Rejected | None:
        found = self._trial(program, region, entrant, repeats=0)
        if isinstance(found, Rejected):
            return found
        try:
            return self._time(program, region, found, budget_ms)
        finally:
            with self._counted("load"):
                found.kernel.close()

    def _trial(self, program: Program, region: _Region, entrant: Entrant, repeats: int) -> _Final | Rejected:
        """repeats: 0 for a rough suite, which is the same for all candidates."""
        try:
            with self._counted("load"):
                kernel = load(program, entrant.candidate, entrant.binary, self.device.index or 0)
        except LaunchError as error:
            if wants_memory(error):
                raise
            return Rejected("build", f"the kernel cannot be loaded: {error}")
        runner = KernelRunner(program, kernel, self.clock, self.limits.verify_s)
        self._intact_last = None
        try:
            with self._counted("trial"):
                suite = region.suite.of(entrant.candidate) if repeats else region.suite
                self._checksums.append(Checksum(suite.beside(region.suite)))
                trial = Trial(suite, entrant.candidate, runner, self.device, HELD_ELEMENTS, self.redzones.take)
                found = trial.verify(repeats)
        except (LaunchError, CandidateError) as error:  # also a plan that divides by zero at other sizes
            kernel.close()
            if wants_memory(error):
                raise
            return Rejected("verify", f"the launch failed: {error}")
        if isinstance(found, Wrong):
            kernel.close()
            return Rejected("verify", found.reason)
        return _Final(kernel, runner, trial, found.errors)

    def _accept(self, final: _Final, seed: int, timing: Timing | None) -> Accepted:
        label = numerics_of(final.trial.suite.program, final.trial.candidate.code)
        return Accepted(Proof(self.target.key, label, final.errors, seed, timing, None, self.versions))

    def _time(
        self, program: Program, region: _Region, final: _Final, budget_ms: float
    ) -> Timing | Rejected | None:
        """Against the faster baseline that is known; None where aten has no graph."""
        aten = self._aten(program, region)
        if aten is None:
            return None
        known = region.known
        baseline = region.inductor if known is not None and known.is_inductors else aten
        assert baseline is not None, "what was timed is there"
        with self._counted("capture"):
            contender = candidate_contender(
                "candidate", program, final.runner, final.trial, aten.contender.calls, self.clock
            )
        contenders = [baseline.contender, contender.contender]
        with self._counted("quick"), self.clock.device_lock.alone():
            rounds = self.clock.rounds_for(contenders, budget_ms, self._rng, QUICK_ROUNDS)
            baseline_us, candidate_us = self.clock.measure(contenders, rounds, self._rng)
        with self._counted("timed results"):
            refused = self._time_refusal(region, contender, candidate_us)
        if refused is not None:
            return refused
        return of_quick(baseline_us, candidate_us, known)

    def _time_refusal(
        self, region: _Region, contender: CandidateContender, times_us: Sequence[float]
    ) -> Rejected | None:
        """A wrong result of a timed call, or a time that cannot be."""
        if (reason := contender.wrong_result()) is not None:
            return Rejected("time", reason)
        return too_fast(times_us, self.clock.floor_us(region.least_bytes))

    # finalists

    def _finalists(self, program: Program, entrants: Sequence[Entrant], seed: int) -> list[Verdict]:
        region = self._region(program, seed)
        if not isinstance(region, _Region):
            return [region] * len(entrants)
        verdicts: dict[int, Verdict] = {}
        finals: dict[int, _Final] = {}
        try:
            for i, entrant in enumerate(entrants):
                found = self._trial(program, region, entrant, self.limits.finalist_repeats)
                if isinstance(found, Rejected):
                    verdicts[i] = found
                    continue
                finals[i] = found
                with self._counted("replays"):
                    reason = self._replays(found)
                if reason is not None:
                    verdicts[i] = Rejected("verify", reason)
            timed = {i: f for i, f in finals.items() if i not in verdicts}
            verdicts |= self._final_timing(program, region, timed, seed) if timed else {}
        finally:
            for final in finals.values():
                final.kernel.close()
        if self._untouched(region):
            return [verdicts[i] for i in range(len(entrants))]
        if len(entrants) == 1:
            return [Rejected("verify", REACHED)]
        return [verdict for entrant in entrants for verdict in self._finalists(program, [entrant], seed)]

    def _replays(self, final: _Final) -> str | None:
        """Captures the candidate once and replays it with the inputs of every case of the same shapes."""
        buffers = final.trial.timing_sets()[0]

        def call(_: int) -> None:
            final.runner.launch(buffers.outputs, buffers.scratch, buffers.inputs.views, {})

        graph = self.clock.capture(call, 1)
        for case in (c for c in final.trial.suite.cases if not c.sizes):
            buffers.inputs.copy_image(case.image)
            buffers.written.poison(POISONS[1])
            graph.replay()
            final.runner.wait()
            if reason := observe(case, buffers, 0).damage() or case.check(buffers.outputs).refusal:
                return f"replayed in a CUDA graph with new inputs: {reason}"
        return None

    def _final_timing(
        self, program: Program, region: _Region, finals: Mapping[int, _Final], seed: int
    ) -> dict[int, Verdict]:
        aten = self._aten(program, region)
        if aten is None:
            return dict.fromkeys(finals, Deferred("the aten baseline cannot be captured in a CUDA graph"))
        calls = aten.contender.calls
        inductor = self._inductor(program, region, calls)
        baselines = [aten.contender] if inductor is None else [aten.contender, inductor.contender]
        with self._counted("capture"):
            rivals = {
                i: candidate_contender(str(i), program, f.runner, f.trial, calls, self.clock)
                for i, f in finals.items()
            }
        contenders = [*baselines, *(r.contender for r in rivals.values())]
        with self._counted("final timing"), self.clock.device_lock.alone():
            rounds = self.clock.rounds_for(contenders, self.limits.final_ms * len(contenders), self._rng)
            times = self.clock.measure(contenders, rounds, self._rng)
        verdicts: dict[int, Verdict] = {}
        for (i, rival), candidate_us in zip(rivals.items(), times[len(baselines) :], strict=True):
            refused = self._time_refusal(region, rival, candidate_us)
            verdicts[i] = refused or self._decide(region, finals[i], times[: len(baselines)], candidate_us, seed)
        return verdicts

    def _decide(
        self, region: _Region, final: _Final, baselines: Sequence[Times], candidate_us: Times, seed: int
    ) -> Verdict:
        inductor_us = baselines[1] if len(baselines) > 1 else None
        timing = of_final(baselines[0], inductor_us, candidate_us, self.floor.us(region.suite.program))
        return Deferred(UNSTEADY) if timing is None else self._accept(final, seed, timing)
