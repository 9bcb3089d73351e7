"""The generator's calls for groups of regions, and where their replies go.

    Proposals(...).ask(group, share)                        at once
                  .begin(group, share) .. wait() .. take()  in a thread, beside the judge's work: who got replies

What is asked and stored is said and done in the caller's thread alone; the other one only calls the generator.
Each task is told of its replies, or why there are none.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cudal1_compile.generate.daemons import Daemon, end_soon, start_daemon, wait_until
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.protocol import Generator, propose_within
from cudal1_compile.synthesis.budget import Timer
from cudal1_compile.synthesis.progress import Asking, Progress, Proposed
from cudal1_compile.synthesis.task import RegionTask, Request

log = logging.getLogger(__name__)

TIME_OVER = "the time budget ended"
READ_S = 0.1  # of replies at once: those that are read are built meanwhile


@dataclass
class _Call:
    """Of the generator, for prompts that want as many replies each."""

    asked: list[tuple[RegionTask, Request]]
    n: int
    seed: int
    replies: list[list[str]] = field(default_factory=list)
    error: GeneratorError | None = None
    is_late: bool = False

    def requests(self, task: RegionTask) -> list[tuple[Request, list[str]]]:
        """What was asked for it, and what has come: nothing where the call was ended."""
        pairs = zip(self.asked, self.replies, strict=False)
        return [(request, replies) for (other, request), replies in pairs if other is task]


class Proposals:
    def __init__(
        self,
        generator: Generator,
        timer: Timer,
        progress: Progress,
        places: Mapping[RegionTask, int],
    ) -> None:
        """places: of all tasks of the call, as they are counted in what `progress` says."""
        self._generator, self._timer = generator, timer
        self._progress, self._places = progress, places
        self._calls: list[_Call] = []  # that the thread makes
        self._unread: list[RegionTask] | None = None  # of these; None: not all are made yet
        self._thread: Daemon | None = None

    def ask(self, group: Sequence[RegionTask], share: float) -> None:
        """share: of a round's samples."""
        calls = self._plan(group, share)
        for call in calls:
            self._make(call)
        for task in _asked(calls):
            self._store(calls, task)

    def begin(self, group: Sequence[RegionTask], share: float) -> None:
        """`ask`, whose replies are to be taken. Not while it is busy."""
        calls = self._calls = self._plan(group, share)

        def make() -> None:
            for call in calls:
                self._make(call)

        self._thread = start_daemon(make, "cudal1-proposals")

    @property
    def is_busy(self) -> bool:
        return self._thread is not None

    def wait(self) -> None:
        """Until the generator has replied."""
        if self._thread is not None:
            wait_until(self._thread.ended, math.inf)

    def take(self, limit_s: float = READ_S) -> list[RegionTask]:
        """The next of those that have been asked for since; none as long as the generator is at it."""
        if self._thread is None or not self._thread.ended.is_set():
            return []
        if self._unread is None:
            self._unread = _asked(self._calls)
        found: list[RegionTask] = []
        end_s = time.monotonic() + limit_s
        while self._unread and (not found or time.monotonic() < end_s):
            found.append(self._unread.pop(0))
            self._store(self._calls, found[-1])
        if not self._unread:
            self._calls, self._unread, self._thread = [], None, None
        return found

    def close(self) -> None:
        """What nobody has taken is given up."""
        if self._thread is not None:
            end_soon(self._thread)
        self._calls, self._unread, self._thread = [], None, None

    def _plan(self, group: Sequence[RegionTask], share: float) -> list[_Call]:
        rounds = max((t.rounds_done for t in group), default=0)
        asked = [(t, r) for t in group if t.wants_round for r in t.requests(share)]
        if not asked:
            return []
        places, budget = [self._places[task] for task, _ in asked], self._timer.budget
        count = sum(request.n for _, request in asked)
        self._progress(
            Asking(
                min(places), max(places), len(self._places), rounds + 1, budget.rounds, count, self._timer.left_s
            )
        )
        sizes = sorted({r.n + r.spare for _, r in asked})
        alike = [[(t, r) for t, r in asked if r.n + r.spare == n] for n in sizes]
        return [_Call(some, n, some[0][0].call_seed()) for some, n in zip(alike, sizes, strict=True)]

    def _make(self, call: _Call) -> None:
        limit_s = self._timer.proposals_left_s
        deadline = time.monotonic() + limit_s
        try:
            prompts = [request.prompt for _, request in call.asked]
            call.replies = propose_within(self._generator, prompts, call.n, call.seed, limit_s)
        except GeneratorError as error:
            call.error = error
            log.warning("no proposals for %d regions: %s", len(_asked([call])), error)
        call.is_late = time.monotonic() >= deadline

    def _store(self, calls: Sequence[_Call], task: RegionTask) -> None:
        for call in calls:
            if call.error is not None and task in _asked([call]):
                task.fail(str(call.error))
            for request, replies in call.requests(task):
                task.take_replies(request, replies)
                left_s = self._timer.left_s
                self._progress(Proposed(task.region.fingerprint, request.prompt, tuple(replies), left_s))
                if len(replies) < request.n and call.is_late:
                    task.fail(TIME_OVER)  # a round that was cut off counts for nothing


def _asked(calls: Sequence[_Call]) -> list[RegionTask]:
    return list(dict.fromkeys(task for call in calls for task, _ in call.asked))
