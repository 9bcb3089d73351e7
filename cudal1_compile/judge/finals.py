"""Finalists of several programs on a device: built and checked side by side, measured by one worker in turn.

    Heat(program, candidates, builds) -> host's memory check beside the worker's measurement
    -> above SECOND_LOOK once more in a process that never saw the program

Several workers at it were no faster: whoever takes times waits until the others have come to a stop. Finalists
that do not end in time are put off: it may be Inductor's compile that is slow.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.judge import wire
from cudal1_compile.judge.crew import Answer, Crew
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
        for heat in heats:
            self._measure(heat)
            self._second_look(heat)

    def ask(self, request: wire.Message) -> Answer:
        """The first worker, once more where the others hold the memory that it needs."""
        answer = self._lanes.first.ask(request, self._limits.finalists_s)
        if answer.again and not answer.lost and self._lanes.clear_others():
            answer = self._lanes.first.ask(request, self._limits.finalists_s)
        if not answer.again:
            return answer
        put_off: list[Verdict] = [Deferred(v.reason) if isinstance(v, Rejected) else v for v in answer.verdicts]
        return replace(answer, verdicts=put_off)

    def _measure(self, heat: Heat) -> None:
        ready = heat.ready()
        seen = {i: self._sanitize(heat, entrant) for i, entrant in ready.items()}
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

    def _sanitize(self, heat: Heat, entrant: tuple[Candidate, Binary]) -> Look:
        """Where it is asked for; before anything is timed, since it runs on the same GPU."""
        if not self._limits.sanitize:
            return Look(None, ())
        begin = time.monotonic()
        seconds = self._limits.sanitizer_s
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
        answer = self.ask(wire.finalists_request(heat.program, list(entrants.values()), heat.seed))
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
        ask = partial(strangers[0].ask, request, self._limits.finalists_s)
        answer = self._lanes.beside(strangers[0], ask).result()
        return None if answer.again or answer.lost else dict(zip(entrants, answer.verdicts, strict=True))

    def _by_a_new_process(self, heat: Heat, entrants: Entrants) -> Verdicts:
        """On another GPU of the same model where there is one."""
        home, self._crew.index = self._crew.index, _twin(self._crew.index)
        self._lanes.first.retire()
        found = self._together_or_alone(heat, entrants)
        if self._crew.index != home:
            self._lanes.first.retire()
            self._crew.index = home
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
