"""Finalists on a device: each program's built, checked and measured together.

    Heat(program, candidates, builds, looks) -> twins -> host's memory check beside the worker's measurement
    -> above SECOND_LOOK once more in a process that never saw the program

A lane measures a program's, in its thread, while the others judge candidates or have finalists of their own:
Inductor compiles and exams are made side by side, but whoever takes times waits until all others have come to a
stop, and they wait for it (device_lock.py). Only where the device's memory is short, or compute-sanitizer runs, do
the others rest for as long. No lane waits for another's work: a second look is sent on to it. Finalists that do
not end in time are put off: it may be Inductor's compile that is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from cudal1_compile.judge.bench.jobs import MAX_HOMES, Built, Work
from cudal1_compile.judge.bench.prefetch import PATIENCE_S, Prefetch
from cudal1_compile.judge.bench.slots import Lanes
from cudal1_compile.judge.bench.worker_pool import Answer, Crew, Lane
from cudal1_compile.judge.checks.memcheck import Look
from cudal1_compile.judge.checks.ruling import is_right, of_twin, ruled
from cudal1_compile.judge.checks.sanitizer import find_fault_on_device
from cudal1_compile.judge.inputs.make import derive_seed
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.timing.speedup import SECOND_LOOK, agree
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import Binary
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

Entrants = dict[int, tuple[Candidate, Binary]]  # by their place in the heat
Verdicts = dict[int, Verdict]


@dataclass(slots=True)
class Heat:
    """The finalists of one program, and what came of them."""

    program: Program
    candidates: Sequence[Candidate]
    builds: Sequence[Future[Built]]
    twins: Mapping[int, tuple[Candidate, Future[Built]]]  # of those that have one, by place
    looks: Sequence[Future[Look]]  # the host's
    twin_seed: int  # as candidates are judged with
    seed: int
    answers: Sequence[Future[Verdict]]
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


class Finals:
    """Gates 5 to 8. Each heat is in the hands of one lane at a time, in that lane's thread."""

    def __init__(
        self,
        crew: Crew,
        lanes: Lanes,
        work: Work,
        send: Callable[[Lane, Callable[[Lane], None]], None],
        baselines: Prefetch,
        limits: Limits,
    ) -> None:
        """send: an errand to a lane. baselines: compiled ahead."""
        self.homes: dict[str, Lane] = {}  # who measured a program last, and so has its exam and its baselines
        self._crew, self._lanes, self._work, self._send = crew, lanes, work, send
        self._baselines, self._limits = baselines, limits

    def run(self, heat: Heat, lane: Lane) -> None:
        """Answers for each candidate that was not cancelled. A hang or a fault ends only the one that did it."""
        heat.wanted = [i for i, a in enumerate(heat.answers) if a.set_running_or_notify_cancel()]
        if not heat.wanted:
            for look in heat.looks:
                look.cancel()
            return
        if len(self.homes) > MAX_HOMES:
            self.homes.clear()
        self.homes[print_program(heat.program)] = lane
        _settle(heat, partial(self._first_look, heat, lane))

    def ask(self, lane: Lane, request: wire.Message, limit_s: float) -> Answer:
        """Its worker, once more where the others hold the memory that it needs."""
        answer = lane.ask(request, limit_s)
        if answer.again and not answer.lost:
            with self._work.alone(lane):
                if self._lanes.clear_others(lane):
                    answer = lane.ask(request, limit_s)
        if not answer.again:
            return answer
        put_off: list[Verdict] = [Deferred(v.reason) if isinstance(v, Rejected) else v for v in answer.verdicts]
        return replace(answer, verdicts=put_off)

    def _first_look(self, heat: Heat, lane: Lane) -> bool:
        """Whether the verdicts stand; otherwise another lane comes to them."""
        self._ask_twins(heat, lane)
        self._measure(heat, lane)
        if not heat.doubted():
            return True
        stranger = self._stranger(heat.program, lane)
        if stranger is None:
            return self._second_look(heat, lane)
        self._send(stranger, lambda other: _settle(heat, partial(self._second_look, heat, other)))
        return False

    def _ask_twins(self, heat: Heat, lane: Lane) -> None:
        """Refuses candidates that are not right without their roundings."""
        for i, (candidate, build) in heat.twins.items():
            verdict: Verdict | Binary = build.result()
            if isinstance(verdict, Binary):
                request = wire.judge_request(heat.program, candidate, verdict, heat.twin_seed, timed=True)
                (verdict,) = self.ask(lane, request, self._limits.request_s).verdicts
            if not is_right(verdict):
                heat.verdicts[i] = of_twin(verdict)

    def _measure(self, heat: Heat, lane: Lane) -> None:
        ready = heat.ready()
        seen = {i: self._sanitize(heat, lane, i, entrant) for i, entrant in ready.items()}
        sound = {i: entrant for i, entrant in ready.items() if seen[i].fault is None}
        begin = time.monotonic()
        self._baselines.wait(heat.program, PATIENCE_S)
        self._crew.add("waited for Inductor", time.monotonic() - begin)
        found = self._together_or_alone(heat, lane, sound)
        begin = time.monotonic()
        checked = {i: heat.looks[i].result() for i in ready}
        self._crew.add("waited for memory checks", time.monotonic() - begin)
        if any(checked[i].fault for i in sound):
            lane.retire()  # nothing that it measured beside a kernel that breaks rules is believed
            sound = {i: entrant for i, entrant in sound.items() if checked[i].fault is None}
            found = self._together_or_alone(heat, lane, sound)
        heat.verdicts |= {i: _together(found.get(i), checked[i], seen[i]) for i in ready}

    def _sanitize(self, heat: Heat, lane: Lane, place: int, entrant: tuple[Candidate, Binary]) -> Look:
        """Where it is asked for and the host saw no fault; before anything is timed: it runs on the same GPU."""
        if not self._limits.sanitize:
            return Look(None, ())
        if (look := heat.looks[place].result()).fault:
            return look
        begin = time.monotonic()
        seconds = self._limits.sanitizer_s
        with self._work.alone(lane):
            found = find_fault_on_device(heat.program, *entrant, heat.seed, self._crew.index, seconds)
        self._crew.add("compute-sanitizer", time.monotonic() - begin)
        return found

    def _together_or_alone(self, heat: Heat, lane: Lane, entrants: Entrants) -> Verdicts:
        """All together; where one of several spoils the context, each is tried alone first."""
        found, lost = self._ask_together(heat, lane, entrants)
        if not lost or len(entrants) == 1:
            return found
        sound: Entrants = {}
        for i, (candidate, binary) in entrants.items():
            request = wire.judge_request(heat.program, candidate, binary, heat.seed, timed=False)
            found[i] = lane.ask(request, self._limits.request_s).verdicts[0]
            if isinstance(found[i], Accepted):
                sound[i] = (candidate, binary)
        return found | self._ask_together(heat, lane, sound)[0]

    def _ask_together(self, heat: Heat, lane: Lane, entrants: Entrants) -> tuple[Verdicts, bool]:
        """Verdicts, and whether the worker was lost over them."""
        if not entrants:
            return {}, False
        request = wire.finalists_request(heat.program, list(entrants.values()), heat.seed)
        answer = self.ask(lane, request, self._limits.finalists_s)
        return dict(zip(entrants, answer.verdicts, strict=True)), answer.lost

    # a speedup that is hard to believe

    def _stranger(self, program: Program, lane: Lane) -> Lane | None:
        """Another lane whose worker is up and never saw the program; none where another GPU will look."""
        if _twin(self._crew.index) != self._crew.index:
            return None
        others = (other for other in self._lanes.all if other is not lane)
        return next((other for other in others if other.up and not other.knows(program)), None)

    def _second_look(self, heat: Heat, lane: Lane) -> bool:
        """It must come out again in a process that knows nothing of the first."""
        first, ready = heat.doubted(), heat.ready()
        entrants = {i: ready[i] for i in first}
        again = replace(heat, seed=derive_seed(heat.seed, "second look"))
        second = self._by_its_worker(again, lane, entrants) or self._by_a_new_process(again, lane, entrants)
        heat.verdicts |= {i: _confirmed(v, second[i]) for i, v in first.items()}
        return True

    def _by_its_worker(self, heat: Heat, lane: Lane, entrants: Entrants) -> Verdicts | None:
        """None where it has seen the program, as by now it may have, or was lost or short."""
        if lane.knows(heat.program):
            return None
        request = wire.finalists_request(heat.program, list(entrants.values()), heat.seed)
        found = lane.ask(request, self._limits.finalists_s)
        if found.again or found.lost:
            return None
        return dict(zip(entrants, found.verdicts, strict=True))

    def _by_a_new_process(self, heat: Heat, lane: Lane, entrants: Entrants) -> Verdicts:
        """On another GPU of the same model where there is one."""
        home = self._crew.index
        lane.index = _twin(home)
        lane.retire()
        found = self._together_or_alone(heat, lane, entrants)
        if lane.index != home:
            lane.retire()
            lane.index = home
        return found


def _settle(heat: Heat, look: Callable[[], bool]) -> None:
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


def _together(verdict: Verdict | None, *looks: Look) -> Verdict:
    """A fault rules out what was measured; otherwise the proof tells what was looked for."""
    if fault := next((look.fault for look in looks if look.fault), None):
        return Rejected("verify", fault)
    assert verdict is not None, "a candidate without a fault is measured"
    if not isinstance(verdict, Accepted):
        return verdict
    said = tuple(words for look in looks for words in look.said)
    return Accepted(replace(verdict.proof, checks=said))


def _twin(index: int) -> int:
    """Another GPU of the same model, or the same one."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return next((i for i, name in enumerate(names) if i != index and name == names[index]), index)
