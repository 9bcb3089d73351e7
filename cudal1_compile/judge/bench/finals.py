"""Finalists on a device: each program's built, checked and measured together.

    Heat(program, candidates, builds, reports) -> of an examination a closer timing, where it may show a loss
    -> unrounded forms -> of an examination the judge's trial, at smaller sizes first
    -> host's memory check, worker's measurement
    -> above SECOND_LOOK once more in a process that never saw the program

A slot measures a program's, in its thread, while the others judge candidates or have finalists of their own:
Inductor compiles and case suites are made side by side, but whoever takes times waits until all others have
stopped, and they wait for it (device_lock.py). Only where the device's memory is short, or compute-sanitizer runs,
do the others rest for as long. No slot waits for another's work: a second look is sent on to it. Finalists that do
not end in time are put off: it may be Inductor's compile that is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from cudal1_compile.judge.bench.jobs import Built, Work
from cudal1_compile.judge.bench.prefetch import PATIENCE_S, Prefetch
from cudal1_compile.judge.bench.slots import Slots
from cudal1_compile.judge.bench.worker_pool import Slot, SlotAnswer, WorkerPool
from cudal1_compile.judge.checks.memcheck import CheckReport
from cudal1_compile.judge.checks.ruling import is_right, of_unrounded, ruled
from cudal1_compile.judge.checks.sanitizer import find_fault_on_device
from cudal1_compile.judge.inputs.make import derive_seed
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.timing.speedup import SECOND_LOOK, agree
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Timed, Verdict
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import Binary
from cudal1_fx_passes.program.ir import Program

Entrants = dict[int, tuple[Candidate, Binary]]  # by their place in the heat
Verdicts = dict[int, Verdict]


@dataclass(frozen=True, slots=True)
class Form:
    """A candidate and its build for a program: the region's own, or the same at smaller sizes."""

    program: Program
    candidate: Candidate
    build: Future[Built]


@dataclass(slots=True)
class Heat:
    """The finalists of one program, and what came of them."""

    program: Program
    candidates: Sequence[Candidate]
    builds: Sequence[Future[Built]]
    unrounded: Mapping[int, Form]  # of those that have one, by place
    reports: Sequence[Future[CheckReport]]  # the host's
    unrounded_seed: int  # as candidates are judged with
    seed: int
    answers: Sequence[Future[Verdict]]
    is_exam: bool = False  # nothing is proven of them yet
    is_sure: bool = False  # but that they are faster
    smaller: Mapping[int, Form] = field(default_factory=dict)  # by place, of candidates of a large region
    right_smaller: set[int] = field(default_factory=set)  # places of those that passed there
    verdicts: Verdicts = field(default_factory=dict)
    wanted: Sequence[int] = ()  # places of those that nobody cancelled

    def doubted(self) -> dict[int, Accepted]:
        """Those whose speedup is hard to believe."""
        accepted = {i: v for i, v in self.verdicts.items() if isinstance(v, Accepted)}
        return {i: v for i, v in accepted.items() if (v.proof.speedup or 0.0) > SECOND_LOOK}

    def ready(self) -> Entrants:
        """Those that are built, and not refused yet; waits for it."""
        refused = {i for i, v in self.verdicts.items() if not isinstance(v, Accepted)}
        built = {i: b.result() for i, b in enumerate(self.builds) if i not in refused}
        self.verdicts |= {i: b for i, b in built.items() if not isinstance(b, Binary)}
        return {i: (self.candidates[i], b) for i, b in built.items() if isinstance(b, Binary)}


class FinalsRunner:
    """Gates 5 to 8. Each heat is in the hands of one slot at a time, in that slot's thread."""

    def __init__(
        self,
        pool: WorkerPool,
        slots: Slots,
        work: Work,
        send: Callable[[Slot, Callable[[Slot], None]], None],
        baselines: Prefetch,
        limits: Limits,
    ) -> None:
        """send: a job to a slot. baselines: compiled ahead."""
        self._worker_pool, self._slots, self._work, self._send = pool, slots, work, send
        self._baselines, self._limits = baselines, limits

    def run(self, heat: Heat, slot: Slot) -> None:
        """Answers for each candidate that was not cancelled. A hang or a fault ends only the one that did it."""
        heat.wanted = [i for i, a in enumerate(heat.answers) if a.set_running_or_notify_cancel()]
        if not heat.wanted:
            for report in heat.reports:
                report.cancel()
            return
        _conclude(heat, partial(self._first_look, heat, slot))

    def ask(self, slot: Slot, request: wire.Message, limit_s: float) -> SlotAnswer:
        """Its worker, once more where the others hold the memory that it needs."""
        answer = slot.ask(request, limit_s)
        if answer.again and not answer.lost:
            with self._work.alone(slot):
                if self._slots.clear_others(slot):
                    answer = slot.ask(request, limit_s)
        if not answer.again:
            return answer
        put_off: list[Verdict] = [Deferred(v.reason) if isinstance(v, Rejected) else v for v in answer.verdicts]
        return replace(answer, verdicts=put_off)

    def _first_look(self, heat: Heat, slot: Slot) -> bool:
        """Whether the verdicts stand; otherwise another slot comes to them."""
        if heat.is_exam and not heat.is_sure:
            self._time_closer(heat, slot)
        self._ask_unrounded(heat, slot)
        if heat.is_exam:
            self._try(heat, slot)
        for i in heat.verdicts:
            heat.reports[i].cancel()
        self._measure(heat, slot)
        if not heat.doubted():
            return True
        stranger = self._stranger(heat.program, slot)
        if stranger is None:
            return self._second_look(heat, slot)
        self._send(stranger, lambda other: _conclude(heat, partial(self._second_look, heat, other)))
        return False

    def _time_closer(self, heat: Heat, slot: Slot) -> None:
        """Those that cannot win after all are not worth a proof."""
        for i, (candidate, binary) in heat.ready().items():
            request = wire.quick_request(heat.program, candidate, binary, heat.unrounded_seed, long=True)
            (verdict,) = self.ask(slot, request, self._limits.request_s).verdicts
            if not (isinstance(verdict, Timed) and verdict.timing is not None and verdict.timing.speedup > 1.0):
                heat.verdicts[i] = verdict

    def _try(self, heat: Heat, slot: Slot) -> None:
        """Gates 3 to 5, before those of finalists; at smaller sizes first, where a large region has such."""
        for i, smaller in heat.smaller.items():
            if i not in heat.verdicts:
                self._try_smaller(heat, slot, i, smaller)
        for i, (candidate, binary) in heat.ready().items():
            if i in heat.right_smaller:
                continue
            request = wire.judge_request(heat.program, candidate, binary, heat.unrounded_seed, timed=False)
            verdict = ruled(heat.program, candidate, self.ask(slot, request, self._limits.request_s).verdicts[0])
            if not is_right(verdict):
                heat.verdicts[i] = verdict

    def _try_smaller(self, heat: Heat, slot: Slot, place: int, smaller: Form) -> None:
        """Twice, as a finalist is. Where it cannot be built or told there, the full size decides."""
        binary = smaller.build.result()
        if not isinstance(binary, Binary):
            return
        for seed, repeats in ((heat.unrounded_seed, 1), (heat.seed, self._limits.finalist_repeats)):
            what = smaller.program, smaller.candidate, binary, seed
            request = wire.judge_request(*what, timed=False, repeats=repeats)
            found = self.ask(slot, request, self._limits.request_s).verdicts[0]
            verdict = ruled(smaller.program, smaller.candidate, found)
            if not is_right(verdict):
                if isinstance(verdict, Rejected) and verdict.stage == "verify":
                    sizes = " ".join(f"{a.name}={a.size}" for a in smaller.program.axes)
                    heat.verdicts[place] = Rejected("verify", f"at {sizes}: {verdict.reason}")
                return
        heat.right_smaller.add(place)

    def _ask_unrounded(self, heat: Heat, slot: Slot) -> None:
        """Refuses candidates that are not right without their roundings."""
        for i, form in heat.unrounded.items():
            if i in heat.verdicts:
                continue
            verdict: Verdict | Binary = form.build.result()
            if isinstance(verdict, Binary):
                what = form.program, form.candidate, verdict, heat.unrounded_seed
                request = wire.judge_request(*what, timed=form.program is heat.program)
                (verdict,) = self.ask(slot, request, self._limits.request_s).verdicts
            if not is_right(verdict):
                heat.verdicts[i] = of_unrounded(verdict)

    def _measure(self, heat: Heat, slot: Slot) -> None:
        ready = heat.ready()
        seen = {i: self._sanitize(heat, slot, i, entrant) for i, entrant in ready.items()}
        sound = {i: entrant for i, entrant in ready.items() if seen[i].fault is None}
        begin = time.monotonic()
        self._baselines.wait(heat.program, PATIENCE_S)
        self._worker_pool.add("waited for Inductor", time.monotonic() - begin)
        found = self._together_or_alone(heat, slot, sound)
        begin = time.monotonic()
        checked = {i: heat.reports[i].result() for i in ready}
        self._worker_pool.add("waited for memory checks", time.monotonic() - begin)
        if any(checked[i].fault for i in sound):
            slot.retire()  # nothing that it measured beside a kernel that breaks rules is believed
            sound = {i: entrant for i, entrant in sound.items() if checked[i].fault is None}
            found = self._together_or_alone(heat, slot, sound)
        heat.verdicts |= {i: _together(found.get(i), checked[i], seen[i]) for i in ready}

    def _sanitize(self, heat: Heat, slot: Slot, place: int, entrant: tuple[Candidate, Binary]) -> CheckReport:
        """Where it is asked for and the host saw no fault; before anything is timed: it runs on the same GPU."""
        if not self._limits.sanitize:
            return CheckReport(None, ())
        if (report := heat.reports[place].result()).fault:
            return report
        begin = time.monotonic()
        seconds = self._limits.sanitizer_s
        with self._work.alone(slot), self._worker_pool.device():
            found = find_fault_on_device(heat.program, *entrant, heat.seed, self._worker_pool.index, seconds)
        self._worker_pool.add("compute-sanitizer", time.monotonic() - begin)
        return found

    def _together_or_alone(self, heat: Heat, slot: Slot, entrants: Entrants) -> Verdicts:
        """All together; where one of several spoils the context, each is tried alone first."""
        found, lost = self._ask_together(heat, slot, entrants)
        if not lost or len(entrants) == 1:
            return found
        sound: Entrants = {}
        for i, (candidate, binary) in entrants.items():
            request = wire.judge_request(heat.program, candidate, binary, heat.seed, timed=False)
            found[i] = slot.ask(request, self._limits.request_s).verdicts[0]
            if isinstance(found[i], Accepted):
                sound[i] = (candidate, binary)
        return found | self._ask_together(heat, slot, sound)[0]

    def _ask_together(self, heat: Heat, slot: Slot, entrants: Entrants) -> tuple[Verdicts, bool]:
        """Verdicts, and whether the worker was lost over them."""
        if not entrants:
            return {}, False
        answer = self.ask(slot, _request(heat, entrants), self._limits.finalists_s)
        return dict(zip(entrants, answer.verdicts, strict=True)), answer.lost

    # a speedup that is hard to believe

    def _stranger(self, program: Program, slot: Slot) -> Slot | None:
        """Another slot whose worker is up and never saw the program; none where another GPU will look."""
        if _same_model(self._worker_pool.index) != self._worker_pool.index:
            return None
        others = (other for other in self._slots.all if other is not slot)
        return next((other for other in others if other.up and not other.knows(program)), None)

    def _second_look(self, heat: Heat, slot: Slot) -> bool:
        """It must come out again in a process that knows nothing of the first."""
        first, ready = heat.doubted(), heat.ready()
        entrants = {i: ready[i] for i in first}
        again = replace(heat, seed=derive_seed(heat.seed, "second look"))
        second = self._by_its_worker(again, slot, entrants) or self._by_a_new_process(again, slot, entrants)
        heat.verdicts |= {i: _confirmed(v, second[i]) for i, v in first.items()}
        return True

    def _by_its_worker(self, heat: Heat, slot: Slot, entrants: Entrants) -> Verdicts | None:
        """None where it has seen the program, as by now it may have, or was lost or short."""
        if slot.knows(heat.program):
            return None
        found = slot.ask(_request(heat, entrants), self._limits.finalists_s)
        if found.again or found.lost:
            return None
        return dict(zip(entrants, found.verdicts, strict=True))

    def _by_a_new_process(self, heat: Heat, slot: Slot, entrants: Entrants) -> Verdicts:
        """On another GPU of the same model where there is one."""
        home = self._worker_pool.index
        slot.index = _same_model(home)
        slot.retire()
        found = self._together_or_alone(heat, slot, entrants)
        if slot.index != home:
            slot.retire()
            slot.index = home
        return found


def _request(heat: Heat, entrants: Entrants) -> wire.Message:
    is_right_smaller = heat.right_smaller.issuperset(entrants)
    return wire.finalists_request(heat.program, list(entrants.values()), heat.seed, is_right_smaller)


def _conclude(heat: Heat, look: Callable[[], bool]) -> None:
    """Answers with the verdicts once a look says that they stand."""
    try:
        stand = look()
    except BaseException as error:  # noqa: BLE001  whoever waits for the answers raises it
        for i in heat.wanted:
            heat.answers[i].set_exception(error)
        return
    for i in heat.wanted if stand else ():
        heat.answers[i].set_result(ruled(heat.program, heat.candidates[i], heat.verdicts[i]))


def _confirmed(first: Accepted, second: Verdict) -> Verdict:
    """The slower of both where they agree."""
    if not isinstance(second, Accepted) or second.proof.timing is None or first.proof.timing is None:
        return second
    before, again = first.proof.timing.speedup, second.proof.timing.speedup
    if not agree(before, again):
        return Rejected("time", f"measured {before:.2f}x, and {again:.2f}x when measured again")
    slower = min((first, second), key=lambda v: v.proof.speedup or 0.0)
    return replace(first, proof=replace(slower.proof, seed=first.proof.seed, checks=first.proof.checks))


def _together(verdict: Verdict | None, *reports: CheckReport) -> Verdict:
    """A fault rules out what was measured; otherwise the proof tells what was looked for."""
    if fault := next((report.fault for report in reports if report.fault), None):
        return Rejected("verify", fault)
    assert verdict is not None, "a candidate without a fault is measured"
    if not isinstance(verdict, Accepted):
        return verdict
    said = tuple(words for report in reports for words in report.said)
    return Accepted(replace(verdict.proof, checks=said))


def _same_model(index: int) -> int:
    """Another GPU of the same model, or the same one."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return next((i for i, name in enumerate(names) if i != index and name == names[index]), index)
