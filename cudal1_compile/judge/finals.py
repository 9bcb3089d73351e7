"""Finalists on a device: each program's built, checked and measured together, one program after the other.

    Heat(program, candidates, builds, looks) -> twins -> host's memory check beside the worker's measurement
    -> above SECOND_LOOK once more in a process that never saw the program

The first worker measures them, in its lane's thread, while the other workers judge candidates: whoever takes times
waits until all others have come to a stop, and they wait for it (turns.py). Only where the device's memory is
short, or compute-sanitizer runs, do the others rest for as long. Several workers at finalists were no faster.
Finalists that do not end in time are put off: it may be Inductor's compile that is slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.judge import wire
from cudal1_compile.judge.crew import Answer, Crew, Lane
from cudal1_compile.judge.inputs import derive_seed
from cudal1_compile.judge.lanes import Lanes
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.memcheck import Look
from cudal1_compile.judge.prefetch import Prefetch
from cudal1_compile.judge.ruling import is_right, of_twin, ruled
from cudal1_compile.judge.sanitizer import find_fault_on_device
from cudal1_compile.judge.speedup import SECOND_LOOK, agree
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.judge.work import Built, Work
from cudal1_compile.runtime.build import Binary
from cudal1_fx_passes.program import Program

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

    def ready(self) -> Entrants:
        """Those that are built, and not refused yet; waits for it."""
        refused = {i for i, v in self.verdicts.items() if not isinstance(v, Accepted)}
        built = {i: b.result() for i, b in enumerate(self.builds) if i not in refused}
        self.verdicts |= {i: b for i, b in built.items() if not isinstance(b, Binary)}
        return {i: (self.candidates[i], b) for i, b in built.items() if isinstance(b, Binary)}


class Finals:
    """Gates 5 to 8. For the first lane's thread."""

    def __init__(
        self,
        crew: Crew,
        lanes: Lanes,
        work: Work,
        send: Callable[[Lane, Callable[[], None]], None],
        baselines: Prefetch,
        limits: Limits,
    ) -> None:
        """send: an errand to a lane. baselines: compiled ahead."""
        self._crew, self._lanes, self._work, self._send = crew, lanes, work, send
        self._baselines, self._limits = baselines, limits

    def run(self, heat: Heat) -> None:
        """Answers for each candidate that was not cancelled. A hang or a fault ends only the one that did it."""
        wanted = [i for i, a in enumerate(heat.answers) if a.set_running_or_notify_cancel()]
        if not wanted:
            for look in heat.looks:
                look.cancel()
            return
        try:
            self._ask_twins(heat)
            self._measure(heat)
            self._second_look(heat)
        except BaseException as error:  # noqa: BLE001  whoever waits for the answers raises it
            for i in wanted:
                heat.answers[i].set_exception(error)
            return
        for i in wanted:
            heat.answers[i].set_result(ruled(heat.program, heat.candidates[i], heat.verdicts[i]))

    def ask(self, request: wire.Message, limit_s: float) -> Answer:
        """The first worker, once more where the others hold the memory that it needs."""
        answer = self._lanes.first.ask(request, limit_s)
        if answer.again and not answer.lost:
            with self._work.alone(self._lanes.first):
                if self._lanes.clear_others():
                    answer = self._lanes.first.ask(request, limit_s)
        if not answer.again:
            return answer
        put_off: list[Verdict] = [Deferred(v.reason) if isinstance(v, Rejected) else v for v in answer.verdicts]
        return replace(answer, verdicts=put_off)

    def _ask_twins(self, heat: Heat) -> None:
        """Refuses candidates that are not right without their roundings."""
        for i, (candidate, build) in heat.twins.items():
            verdict: Verdict | Binary = build.result()
            if isinstance(verdict, Binary):
                request = wire.judge_request(heat.program, candidate, verdict, heat.twin_seed, timed=True)
                (verdict,) = self.ask(request, self._limits.request_s).verdicts
            if not is_right(verdict):
                heat.verdicts[i] = of_twin(verdict)

    def _measure(self, heat: Heat) -> None:
        ready = heat.ready()
        seen = {i: self._sanitize(heat, i, entrant) for i, entrant in ready.items()}
        sound = {i: entrant for i, entrant in ready.items() if seen[i].fault is None}
        begin = time.monotonic()
        self._baselines.wait(heat.program)
        self._crew.add("waited for Inductor", time.monotonic() - begin)
        found = self._together_or_alone(heat, sound)
        begin = time.monotonic()
        checked = {i: heat.looks[i].result() for i in ready}
        self._crew.add("waited for memory checks", time.monotonic() - begin)
        if any(checked[i].fault for i in sound):
            self._lanes.first.retire()  # nothing that it measured beside a kernel that breaks rules is believed
            sound = {i: entrant for i, entrant in sound.items() if checked[i].fault is None}
            found = self._together_or_alone(heat, sound)
        heat.verdicts |= {i: _together(found.get(i), checked[i], seen[i]) for i in ready}

    def _sanitize(self, heat: Heat, place: int, entrant: tuple[Candidate, Binary]) -> Look:
        """Where it is asked for and the host saw no fault; before anything is timed: it runs on the same GPU."""
        if not self._limits.sanitize:
            return Look(None, ())
        if (look := heat.looks[place].result()).fault:
            return look
        begin = time.monotonic()
        seconds = self._limits.sanitizer_s
        with self._work.alone(self._lanes.first):
            found = find_fault_on_device(heat.program, *entrant, heat.seed, self._crew.index, seconds)
        self._crew.add("compute-sanitizer", time.monotonic() - begin)
        return found

    def _together_or_alone(self, heat: Heat, entrants: Entrants) -> Verdicts:
        """All together; where one of several spoils the context, each is tried alone first."""
        found, lost = self._ask_together(heat, entrants)
        if not lost or len(entrants) == 1:
            return found
        sound: Entrants = {}
        for i, (candidate, binary) in entrants.items():
            request = wire.judge_request(heat.program, candidate, binary, heat.seed, timed=False)
            found[i] = self._lanes.first.ask(request, self._limits.request_s).verdicts[0]
            if isinstance(found[i], Accepted):
                sound[i] = (candidate, binary)
        return found | self._ask_together(heat, sound)[0]

    def _ask_together(self, heat: Heat, entrants: Entrants) -> tuple[Verdicts, bool]:
        """Verdicts, and whether the worker was lost over them."""
        if not entrants:
            return {}, False
        request = wire.finalists_request(heat.program, list(entrants.values()), heat.seed)
        answer = self.ask(request, self._limits.finalists_s)
        return dict(zip(entrants, answer.verdicts, strict=True)), answer.lost

    # a speedup that is hard to believe

    def _second_look(self, heat: Heat) -> None:
        """It must come out again in a process that knows nothing of the first."""
        first = {
            i: v
            for i, v in heat.verdicts.items()
            if isinstance(v, Accepted) and (v.proof.speedup or 0.0) > SECOND_LOOK
        }
        if not first:
            return
        ready = heat.ready()
        entrants = {i: ready[i] for i in first}
        again = replace(heat, seed=derive_seed(heat.seed, "second look"))
        second = self._by_a_stranger(again, entrants) or self._by_a_new_process(again, entrants)
        heat.verdicts |= {i: _confirmed(v, second[i]) for i, v in first.items()}

    def _by_a_stranger(self, heat: Heat, entrants: Entrants) -> Verdicts | None:
        """By a worker that is up and never saw the program; None where there is none, or it was lost or short."""
        strangers = [lane for lane in self._lanes.others if lane.up and not lane.knows(heat.program)]
        if not strangers or _twin(self._crew.index) != self._crew.index:
            return None
        request = wire.finalists_request(heat.program, list(entrants.values()), heat.seed)
        answer: Future[Answer | None] = Future()

        def ask() -> None:
            try:
                known = strangers[0].knows(heat.program)  # what it had in hand may have been a candidate of it
                answer.set_result(None if known else strangers[0].ask(request, self._limits.finalists_s))
            except BaseException as error:  # noqa: BLE001  whoever waits for the answer raises it
                answer.set_exception(error)

        self._send(strangers[0], ask)
        found = answer.result()
        if found is None or found.again or found.lost:
            return None
        return dict(zip(entrants, found.verdicts, strict=True))

    def _by_a_new_process(self, heat: Heat, entrants: Entrants) -> Verdicts:
        """On another GPU of the same model where there is one."""
        first, home = self._lanes.first, self._crew.index
        first.index = _twin(home)
        first.retire()
        found = self._together_or_alone(heat, entrants)
        if first.index != home:
            first.retire()
            first.index = home
        return found


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
