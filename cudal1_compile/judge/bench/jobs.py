"""What the slots of one device have to do: candidates, program by program, and jobs, of one slot or of any.

    rank(programs) -> what is of an earlier one comes before what is of a later one, and the others behind
    add(tasks) -> builds begin in this order, AHEAD of them before they are judged
    take(slot) -> of the first program a job of this slot, else a candidate of the program that it is at, else
                  anyone's job, else a candidate that is built; waits for one; None where nothing is left
    alone(slot) -> the others have ended what they had in hand, and begin nothing meanwhile

What may run beside what: builds beside everything; what one slot has in hand, a candidate or a job, beside
what the others have, except where one of them has asked to be alone. A program is with one slot at a time, so
that its case suite is made once; it goes to the slot that had it last, where there are several to choose from. A
candidate that is not built holds up nothing: its slot takes another program meanwhile. A program of which FAULTS
candidates cost a worker goes behind some of the next ones, since its others may too: each takes as long as
another program's do together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from cudal1_compile.judge.bench.worker_pool import Slot
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.verdict import Deferred, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import Binary
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program

MAX_HOMES = 4096
AHEAD = 128  # candidates that are built, or about to be, before a slot takes them
FAULTS = 2
BEHIND = 4  # programs, for each of its faults
Built = Binary | Rejected | Deferred
Build = Callable[[Program, Candidate], Future[Built]]


@dataclass(slots=True, eq=False)
class CandidateTask:
    """One candidate behind its unrounded form, what they are built to, and what comes of it."""

    program: Program
    candidates: Sequence[Candidate]  # the last one is the candidate, others must be right first
    seed: int
    is_quick: bool = False  # timed before anything is proven
    answer: Future[Verdict] = field(default_factory=Future)
    builds: Sequence[Future[Built]] = ()  # of all candidates, once they have begun
    suite: str | None = None  # a file that may hold the program's; empty: there is none
    text: str = ""
    _requests: dict[int, wire.Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = print_program(self.program)

    @property
    def is_built(self) -> bool:
        return bool(self.builds) and all(b.done() for b in self.builds)

    def request(self, i: int) -> wire.Message | Rejected | Deferred:
        """What a worker is asked about one of the candidates, always the same object. Waits for the build."""
        try:
            binary = self.builds[i].result()
        except CancelledError:
            return Deferred("the build was given up")
        if not isinstance(binary, Binary):
            return binary
        if i not in self._requests:
            what = self.program, self.candidates[i], binary, self.seed
            if self.is_quick:
                self._requests[i] = wire.quick_request(*what)
            else:
                self._requests[i] = wire.judge_request(*what, timed=True, suite=self.suite or "")
        return self._requests[i]


@dataclass(slots=True, eq=False)
class Job:
    """What is no candidate. `run` says what came of it by itself."""

    run: Callable[[Slot], None]
    text: str = ""  # of the program that it is about, if it is about one


@dataclass(slots=True, eq=False)
class _Group:
    """A program's candidates that no slot has taken."""

    program: Program
    text: str
    place: int  # in the order in which they came
    tasks: list[CandidateTask] = field(default_factory=list)
    faults: int = 0


class Work:
    """For several threads at once."""

    def __init__(self, build: Build) -> None:
        self.homes: dict[str, Slot] = {}  # who had a program last, and so has its case suite
        self._build = build
        self._ranks: dict[str, int] = {}
        self._changed = threading.Condition()
        self._groups: dict[str, _Group] = {}
        self._places = count()
        self._held: dict[Slot, _Group] = {}  # what a slot took last
        self._jobs: dict[Slot, deque[Job]] = {}
        self._anyones: deque[Job] = deque()
        self._unbuilt: deque[CandidateTask] = deque()
        self._serving: set[Slot] = set()
        self._busy: set[Slot] = set()
        self._alone: deque[Slot] = deque()  # the first one is, or will be once the others rest

    def add(self, tasks: Sequence[CandidateTask]) -> None:
        with self._changed:
            if len(self.homes) > MAX_HOMES:
                self.homes.clear()
            for task in tasks:
                if task.text not in self._groups:
                    self._groups[task.text] = _Group(task.program, task.text, next(self._places))
                self._groups[task.text].tasks.append(task)
                task.answer.add_done_callback(partial(self._done, task))
            self._unbuilt.extend(tasks)
            self._build_ahead()
            self._changed.notify_all()

    def rank(self, programs: Sequence[Program]) -> None:
        """The most valuable first."""
        with self._changed:
            self._ranks = {print_program(p): i for i, p in enumerate(programs)}

    def send(self, slot: Slot | None, run: Callable[[Slot], None], text: str = "") -> None:
        """A job, of any slot where none is named, about a program or what comes before all programs."""
        with self._changed:
            jobs = self._anyones if slot is None else self._jobs.setdefault(slot, deque())
            jobs.append(Job(run, text))
            self._changed.notify_all()

    @property
    def free_jobs(self) -> int:
        """Of any slot."""
        return len(self._anyones)

    def enlist(self, slot: Slot) -> bool:
        """Whether this slot serves from now on, and did not before. It counts as busy until it takes something."""
        with self._changed:
            if slot in self._serving:
                return False
            self._serving.add(slot)
            self._busy.add(slot)
            return True

    def dismiss(self, slot: Slot) -> Sequence[Job]:
        """It takes nothing any more, until it is enlisted again. What it leaves undone."""
        with self._changed:
            self._serving.discard(slot)
            self._rest(slot)
            return self._jobs.pop(slot, ())

    def free_programs(self, slot: Slot) -> list[Program]:
        """Of which no other slot has candidates in hand, in order."""
        with self._changed:
            held = [g for other, g in self._held.items() if other is not slot]
            return [g.program for g in self._left() if g not in held]

    def take(self, slot: Slot) -> CandidateTask | Job | None:
        """What it had in hand is done. None dismisses it."""
        with self._changed:
            self._rest(slot)
            while True:
                if (found := self._next(slot)) is not None:
                    self._busy.add(slot)
                    return found
                if not (self._jobs.get(slot) or self._anyones or self._left()):
                    self.dismiss(slot)
                    return None
                self._changed.wait()

    def take_ahead(self, slot: Slot) -> CandidateTask | None:
        """A candidate that the slot may have beside the one in hand; none where a job waits."""
        with self._changed:
            found = None if isinstance(self._first(slot), Job) else self._next(slot)
            return found if isinstance(found, CandidateTask) else None

    def count_fault(self, task: CandidateTask) -> None:
        with self._changed:
            if group := self._groups.get(task.text):
                group.faults += 1

    def has(self, text: str) -> bool:
        """Whether candidates of this program are left to take."""
        with self._changed:
            return any(g.text == text for g in self._left())

    def take_others(self, task: CandidateTask) -> list[CandidateTask]:
        """The program's candidates that nobody has taken."""
        with self._changed:
            group = self._groups.pop(task.text, None)
            self._changed.notify_all()
            return group.tasks if group else []

    def close(self) -> None:
        """Candidates that nobody has taken are given up."""
        with self._changed:
            left = [t for g in self._groups.values() for t in g.tasks]
        for task in left:
            task.answer.cancel()

    @contextmanager
    def alone(self, slot: Slot) -> Iterator[None]:
        """For one slot, which has something in hand. Of several that ask for it, one after the other."""
        with self._changed:
            self._alone.append(slot)
            self._rest(slot)
            self._changed.wait_for(lambda: self._alone[0] is slot and not self._busy)
            self._busy.add(slot)
        try:
            yield
        finally:
            with self._changed:
                self._alone.popleft()
                self._changed.notify_all()

    # with the lock

    def _next(self, slot: Slot) -> CandidateTask | Job | None:
        if self._alone and self._alone[0] is not slot:
            return None
        while (found := self._first(slot)) is not None:
            if isinstance(found, Job):
                if (group := self._held.pop(slot, None)) is not None and group.tasks:
                    self.homes.pop(group.text, None)  # whoever is free first goes on with it
                self._jobs_for(slot).remove(found)
                return found
            task = next(t for t in found.tasks if t.is_built)
            found.tasks.remove(task)
            self._held[slot] = found
            self.homes[task.text] = slot
            self._build_ahead()
            if task.answer.set_running_or_notify_cancel():
                return task
        return None

    def _first(self, slot: Slot) -> Job | _Group | None:
        held = [g for other, g in self._held.items() if other is not slot]
        ready = [g for g in self._left() if g not in held and any(t.is_built for t in g.tasks)]
        group = min(ready, key=lambda g: self._order(g, slot), default=None)
        job = min(self._jobs_for(slot), key=lambda j: self._rank(j.text) if j.text else -1, default=None)
        if job is None or group is None:
            return job or group
        return job if not job.text or self._rank(job.text) <= self._rank(group.text) else group

    def _rank(self, text: str) -> int:
        return self._ranks.get(text, len(self._ranks))

    def _jobs_for(self, slot: Slot) -> deque[Job]:
        """Those that it takes before a candidate of the same rank."""
        mine, group = self._jobs.get(slot, deque()), self._held.get(slot)
        goes_on = group is not None and any(t.is_built for t in group.tasks)
        return mine if mine or goes_on else self._anyones

    def _order(self, group: _Group, slot: Slot) -> tuple[int, int, int, int]:
        """By rank; what the slot has in hand, what it had before, what is nobody's, what is another's."""
        home = self.homes.get(group.text)
        if group.faults >= FAULTS:
            return 1, self._rank(group.text), 2, group.place + BEHIND * group.faults
        if self._held.get(slot) is group:
            return 0, 0, 0, group.place
        return 1, self._rank(group.text), 1 if home is slot else 2 if home is None else 3, group.place

    def _left(self) -> list[_Group]:
        for text, group in list(self._groups.items()):
            group.tasks = [t for t in group.tasks if not t.answer.cancelled()]
            if not group.tasks:
                del self._groups[text]
        return list(self._groups.values())

    def _build_ahead(self) -> None:
        begun = sum(bool(t.builds) for g in self._groups.values() for t in g.tasks)
        while self._unbuilt and begun < AHEAD:
            task = self._unbuilt.popleft()
            if task.answer.cancelled():
                continue
            begun += 1
            task.builds = [self._build(task.program, c) for c in task.candidates]
            for build in task.builds:
                build.add_done_callback(self._notify)

    def _rest(self, slot: Slot) -> None:
        self._busy.discard(slot)
        self._changed.notify_all()

    def _done(self, task: CandidateTask, answer: Future[Verdict]) -> None:
        """A cancelled one is neither waited for nor built."""
        if answer.cancelled():
            for build in task.builds:
                build.cancel()
            self._notify(answer)

    def _notify(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()
