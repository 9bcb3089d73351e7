"""Finalists of several programs on a device: each program's together by one worker, programs side by side.

    Heat(program, candidates, builds) -> host's memory check beside the worker's measurement
    -> once more by the first worker alone, where others may have been in the way
    -> above SECOND_LOOK once more in a process that never saw the program

Only the taking of times waits for the other workers (turns.py). Finalists that do not end in time are put off: it
may be Inductor's compile that is slow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.judge import wire
from cudal1_compile.judge.crew import Crew, Lane
from cudal1_compile.judge.inputs import derive_seed
from cudal1_compile.judge.lanes import Lanes
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.memcheck import Look, find_fault
from cudal1_compile.judge.prefetch import Prefetch
from cudal1_compile.judge.sanitizer import find_fault_on_device
from cudal1_compile.judge.speedup import SECOND_LOOK, agree
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.judge.work import Built
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
    seed: int
    looks: dict[int, Future[Look]] = field(default_factory=dict)  # the host's
    verdicts: Verdicts = field(default_factory=dict)
    again: bool = False  # others may hold the memory that it needs

    def ready(self) -> Entrants:
        """Those that are built; waits for it."""
        built = [b.result() for b in self.builds]
        self.verdicts |= {i: b for i, b in enumerate(built) if not isinstance(b, Binary)}
        return {i: (self.candidates[i], b) for i, b in enumerate(built) if isinstance(b, Binary)}


class Finals:
    """Gates 5 to 8."""

    def __init__(
        self, crew: Crew, lanes: Lanes, pool: ThreadPoolExecutor, baselines: Prefetch, limits: Limits
    ) -> None:
        """pool: for checks on the host. baselines: compiled ahead."""
        self._crew, self._lanes, self._pool = crew, lanes, pool
        self._baselines, self._limits = baselines, limits

    def run(self, heats: Sequence[Heat]) -> None:
        """Fills in their verdicts. A hang or a fault ends only the candidate that did it."""
        for heat in heats:
            heat.looks = {
                i: self._pool.submit(find_fault, heat.program, c, heat.seed, self._limits.host_s)
                for i, c in enumerate(heat.candidates)
            }
        waiting = deque(heats)
        jobs = [self._lanes.help(lane, lambda own: self._serve(own, waiting)) for lane in self._helpers(heats)]
        try:
            self._serve(self._lanes.first, waiting)
            for job in jobs:
                job.result()
        finally:
            waiting.clear()
        for heat in heats:
            if heat.again and self._lanes.clear_others():
                self._measure(self._lanes.first, heat)
            self._second_look(heat)

    def ask_alone(self, request: wire.Message) -> list[Verdict]:
        """By the first worker, once more where the others hold the memory that it needs."""
        answer = self._lanes.first.ask(request, self._limits.finalists_s)
        if answer.again and isinstance(answer.verdicts[0], Deferred) and self._lanes.clear_others():
            answer = self._lanes.first.ask(request, self._limits.finalists_s)
        return _put_off(answer.verdicts) if answer.again else answer.verdicts

    def _helpers(self, heats: Sequence[Heat]) -> list[Lane]:
        """None where another tool runs on the device beside the measurements."""
        return [] if self._limits.sanitize else self._lanes.helpers(len(heats))

    def _serve(self, lane: Lane, waiting: deque[Heat]) -> None:
        while True:
            try:
                heat = waiting.popleft()
            except IndexError:
                return
            self._measure(lane, heat)

    def _measure(self, lane: Lane, heat: Heat) -> None:
        ready = heat.ready()
        seen = {i: self._sanitize(heat, entrant) for i, entrant in ready.items()}
        sound = {i: entrant for i, entrant in ready.items() if seen[i].fault is None}
        begin = time.monotonic()
        self._baselines.wait(heat.program)
        self._crew.add("waited for Inductor", time.monotonic() - begin)
        found = self._together_or_alone(lane, heat, sound)
        begin = time.monotonic()
        checked = {i: heat.looks[i].result() for i in ready}
        self._crew.add("waited for memory checks", time.monotonic() - begin)
        if any(checked[i].fault for i in sound):
            lane.retire()  # nothing is believed that a process measured beside a kernel that breaks rules
            sound = {i: entrant for i, entrant in sound.items() if checked[i].fault is None}
            found = self._together_or_alone(lane, heat, sound)
        heat.verdicts |= {i: _together(found.get(i), checked[i], seen[i]) for i in ready}

    def _sanitize(self, heat: Heat, entrant: tuple[Candidate, Binary]) -> Look:
        """Where it is asked for; before anything is timed, since it runs on the same GPU."""
        if not self._limits.sanitize:
            return Look(None, ())
        begin = time.monotonic()
        seconds = self._limits.sanitizer_s
        found = find_fault_on_device(heat.program, *entrant, heat.seed, self._crew.index, seconds)
        self._crew.add("compute-sanitizer", time.monotonic() - begin)
        return found

    def _together_or_alone(self, lane: Lane, heat: Heat, entrants: Entrants) -> Verdicts:
        """All together; where one of several spoils the context, each is tried alone first."""
        found, lost = self._ask(lane, heat, entrants)
        if not lost or len(entrants) == 1:
            return found
        sound: Entrants = {}
        for i, (candidate, binary) in entrants.items():
            request = wire.judge_request(heat.program, candidate, binary, heat.seed, timed=False)
            found[i] = lane.ask(request, self._limits.request_s).verdicts[0]
            if isinstance(found[i], Accepted):
                sound[i] = (candidate, binary)
        return found | self._ask(lane, heat, sound)[0]

    def _ask(self, lane: Lane, heat: Heat, entrants: Entrants) -> tuple[Verdicts, bool]:
        """Verdicts, and whether the worker was lost over them."""
        if not entrants:
            return {}, False
        request = wire.finalists_request(heat.program, list(entrants.values()), heat.seed)
        answer = lane.ask(request, self._limits.finalists_s)
        heat.again = answer.again and not answer.lost
        verdicts = _put_off(answer.verdicts) if answer.again else answer.verdicts
        return dict(zip(entrants, verdicts, strict=True)), answer.lost

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
        lanes = (self._lanes.first, *self._lanes.others)
        strangers = [lane for lane in lanes if lane.up and not lane.knows(heat.program)]
        if not strangers or _twin(self._crew.index) != self._crew.index:
            return None
        lane = strangers[0]
        if lane is self._lanes.first:
            found, lost = self._ask(lane, heat, entrants)
        else:
            found, lost = self._lanes.beside(lane, lambda: self._ask(lane, heat, entrants)).result()
        return None if lost or heat.again else found

    def _by_a_new_process(self, heat: Heat, entrants: Entrants) -> Verdicts:
        """On another GPU of the same model where there is one."""
        home, self._crew.index = self._crew.index, _twin(self._crew.index)
        first = self._lanes.first
        first.retire()
        found = self._together_or_alone(first, heat, entrants)
        if heat.again and self._lanes.clear_others():
            found = self._together_or_alone(first, heat, entrants)
        if self._crew.index != home:
            first.retire()
            self._crew.index = home
        return found


def _put_off(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [Deferred(v.reason) if isinstance(v, Rejected) else v for v in verdicts]


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
