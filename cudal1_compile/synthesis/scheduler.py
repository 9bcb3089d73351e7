"""From candidates that wait to verdicts and entries: all regions of a round before the judge at once.

    aten's time of each region, before any proposal -> at the floor, and decided
    every candidate is submitted, those of the most valuable region first: they are built, and timed, in this order
    -> a verdict is stored when it comes; Inductor's baseline is asked for where a candidate may win over aten, and
       of any region where a worker is idle
    -> a region whose candidates are timed and whose baselines are known: the fastest is examined, and the next
       one, as long as one may win; what would win under 2% once all regions are timed

All that the judge can do side by side goes on side by side: builds, candidates of several regions, examinations of
others. This thread alone touches the tasks and the store. A candidate that the judge does not come to holds up its
region for HELD_UP_S: the fastest of the others is examined then, and those that come late afterwards. Where
nothing but slow builds is left, the round ends without them; they wait for the next one, and are building.
When the time is over, what has not begun is cancelled and waits for another call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from cudal1_cache.rows import Attempt
from cudal1_compile.judge.checks.lean import is_lean
from cudal1_compile.judge.verdict import Verdict
from cudal1_compile.synthesis.budget import Timer
from cudal1_compile.synthesis.ports import JudgePort
from cudal1_compile.synthesis.progress import Examining, Judging, Progress
from cudal1_compile.synthesis.records import is_sure
from cudal1_compile.synthesis.task import IMPROVES, RegionTask

log = logging.getLogger(__name__)

HELD_UP_S = 2.0  # without an answer; usual builds take 0.1 to 2 s, an examination in vain 1 to 2 of a worker
LOOK_S = 0.5  # between two looks at what is held up
SOON_S = 0.05  # between two looks at what may have come
STALLED_S = 6.0  # the fastest of what is held up comes first
EXAM_S, LATE_SHARE = 2.0, 0.1  # that must be left for an examination, of a short time a share; usual ones take 1 s
LEAN_EXAM_S = 6.0  # of a region too large for copies
END_S = 0.8  # that what the judge has in hand may take beyond the time
FIRST_SHARE = 0.2  # of the time, for aten's baselines before anything is proposed

Asked = list[tuple[Future[Verdict], Attempt]]
More = tuple[Sequence[RegionTask], bool]


@dataclass
class _Region:
    """A task, and what the judge was asked about it."""

    task: RegionTask
    candidates: Asked = field(default_factory=list)
    exam: tuple[Future[Verdict], Attempt] | None = None
    baselines: tuple[Future[Verdict], bool] | None = None  # with Inductor's?
    is_compared: bool = False  # it was asked for, in this round
    examined: set[str] = field(default_factory=set)  # digests, in this round
    answered_at: float | None = None  # when the judge last did

    def open(self) -> list[Future[Verdict]]:
        return self.asked() if self.baselines is None else [*self.asked(), self.baselines[0]]

    def asked(self) -> list[Future[Verdict]]:
        """About candidates."""
        several = [future for future, _ in self.candidates]
        return several if self.exam is None else [*several, self.exam[0]]

    def is_held_up(self, limit_s: float) -> bool:
        return self.answered_at is not None and time.monotonic() - self.answered_at > limit_s


class EvaluationScheduler:
    """The verdicts of one call, round by round."""

    def __init__(
        self,
        places: Mapping[RegionTask, int],
        judge: JudgePort,
        timer: Timer,
        progress: Progress,
        tell: Callable[[], None],
    ) -> None:
        """places: of all tasks of the call, from 1, as they are now; `progress` tells them.

        tell: says how much is decided, when more is.
        """
        self._tell = tell
        self._places = places
        self._judge, self._timer, self._progress = judge, timer, progress
        self._regions: list[_Region] = []
        self._known: dict[RegionTask, _Region] = {}  # of this run
        self._submitted = self._judged = 0
        self._is_last = False
        self._answered_at: float | None = None  # by the judge; its first answer may take a while

    def compare(self, tasks: Sequence[RegionTask], meanwhile: Callable[[], None] | None = None) -> None:
        """Times aten for each, in no more than FIRST_SHARE of the time.

        meanwhile: it takes as long as this does, and what is not timed then comes in the next run.
        """
        end = time.monotonic() + FIRST_SHARE * self._timer.left_s
        self._regions = [self._region(task) for task in tasks if task.baselines is None]
        try:
            for region in self._regions if self._timer.left_s > 0 else ():
                region.baselines = self._judge.submit_baselines(region.task.program, inductor=False), False
            if meanwhile is not None:
                meanwhile()
                self._take(is_answer=False)
                return
            while (futures := self._open()) and (left_s := end - time.monotonic()) > 0:
                self._wait(futures, min(LOOK_S, left_s))
                self._take(is_answer=False)
        except (RuntimeError, OSError, ValueError) as error:
            for region in self._regions:
                self._failed(region, error)
        self._end()
        self._known.clear()

    def _region(self, task: RegionTask) -> _Region:
        return self._known.setdefault(task, _Region(task))

    def open_before(self, place: float) -> int:
        """More valuable regions of which the judge has been asked something that it has not answered."""
        return sum(bool(r.open()) and self._places[r.task] < place for r in self._regions)

    def run(
        self,
        tasks: Sequence[RegionTask],
        is_last: bool = False,
        more: Callable[[], More] = lambda: ((), False),
    ) -> list[RegionTask]:
        """Returns those of which candidates are left that were not built in time.

        is_last: nothing more will be proposed, so that all are compared with what they are held against. more:
        asked again and again which of the tasks have got candidates, and whether others will.
        """
        self._is_last = is_last
        if self._timer.left_s <= 0:
            return []
        begun = [r.task for r in self._known.values() if r.open()]  # what was not compared in time
        self._regions = [self._region(task) for task in dict.fromkeys([*tasks, *begun])]
        self._submitted = self._judged = 0
        if self._answered_at is not None:
            self._answered_at = time.monotonic()
        try:
            self._submit(self._regions)
            is_coming = self._join(more)
            self._advance()
            while ((futures := self._open()) or is_coming) and self._timer.left_s > 0:
                if not is_coming and self._is_stalled(futures):
                    break
                self._wait(futures, min(SOON_S if is_coming else LOOK_S, self._timer.left_s))
                self._take()
                is_coming = self._join(more)
                self._advance()
        finally:
            self._end()
            self._known.clear()
        return [r.task for r in self._regions if r.candidates]

    def _join(self, more: Callable[[], More]) -> bool:
        """Whether others will get candidates without a verdict."""
        ready, is_coming = more()
        self._regions += [self._region(task) for task in ready if task not in self._known]
        self._submit([r for r in map(self._region, ready) if not r.candidates])
        return is_coming

    def _end(self) -> None:
        """Cancels what has not begun, and takes what the judge has in hand, as far as that comes soon."""
        for future in self._open():
            future.cancel()
        end = time.monotonic() + END_S
        while futures := [f for f in self._open() if not f.cancelled()]:
            if (left_s := end - time.monotonic()) <= 0:
                return
            self._wait(futures, min(LOOK_S, left_s))
            self._take()

    def _compare_both(self, region: _Region) -> None:
        region.is_compared = True
        if not (region.task.is_compared or region.task.is_at_floor):
            region.baselines = self._judge.submit_baselines(region.task.program, inductor=True), True

    def _submit(self, regions: Sequence[_Region]) -> None:
        """Region by region: the first one's are built while the others' texts are read."""
        for region in (r for r in regions if r.task.is_ours):
            waiting = region.task.to_judge()
            try:
                if waiting and region.task.baselines is None and region.baselines is None:
                    region.baselines = self._judge.submit_baselines(region.task.program, inductor=False), False
                futures = self._judge.submit_quick([(region.task.program, a.code) for a in waiting])
            except (RuntimeError, OSError, ValueError) as error:
                self._failed(region, error)
                continue
            region.candidates += zip(futures, waiting, strict=True)
            self._submitted += len(waiting)
        self._take(is_answer=False)  # refused texts

    def _open(self) -> list[Future[Verdict]]:
        return [future for region in self._regions for future in region.open()]

    def _is_stalled(self, futures: Sequence[Future[Verdict]]) -> bool:
        """Whether the judge works on nothing, though it is up: what is open waits for its build."""
        if self._answered_at is None or time.monotonic() - self._answered_at < STALLED_S:
            return False
        return not any(f.running() or f.done() for f in futures)

    # answers

    def _wait(self, futures: Sequence[Future[Verdict]], limit_s: float) -> None:
        """For what is not done: finalists of a region are taken together, so that some of them may be."""
        if pending := [f for f in futures if not f.done()]:
            self._judge.wait(pending, limit_s)
        elif not futures:
            time.sleep(limit_s)

    def _take(self, is_answer: bool = True) -> None:
        """Stores what has come."""
        for region in self._regions:
            before = len(region.asked())
            self._take_candidates(region)
            self._take_exam(region)
            self._take_baselines(region)
            if is_answer and len(region.asked()) < before:
                region.answered_at = self._answered_at = time.monotonic()

    def _take_candidates(self, region: _Region) -> None:
        done = [(f, a) for f, a in region.candidates if f.done() and not f.cancelled()]
        region.candidates = [(f, a) for f, a in region.candidates if not f.done() or f.cancelled()]
        for future, attempt in done:
            verdict = self._verdict(region, future)
            self._judged += 1
            if verdict is not None:
                region.task.take_verdicts([attempt], [verdict])
                best, left_s = region.task.best, self._timer.left_s
                at, of = self._places[region.task], len(self._places)
                self._progress(Judging(at, of, self._judged, self._submitted, best, left_s))

    def _take_exam(self, region: _Region) -> None:
        if region.exam is not None and region.exam[0].done():
            (future, attempt), region.exam = region.exam, None
            verdict = None if future.cancelled() else self._verdict(region, future)
            if verdict is not None:
                region.task.take_exam(attempt, verdict)
            if region.task.is_decided:
                self._tell()

    def _take_baselines(self, region: _Region) -> None:
        if region.baselines is not None and region.baselines[0].done():
            (future, with_inductor), region.baselines = region.baselines, None
            verdict = None if future.cancelled() else self._verdict(region, future)
            if verdict is not None:
                region.task.take_baselines(verdict, with_inductor)
            if region.task.is_at_floor:
                self._tell()
                region.candidates = [(f, a) for f, a in region.candidates if not f.cancel()]

    def _verdict(self, region: _Region, future: Future[Verdict]) -> Verdict | None:
        """None where the judge itself failed; the candidate then waits for a later call."""
        try:
            return future.result()
        except (RuntimeError, OSError, ValueError) as error:
            self._failed(region, error)
            return None

    def _failed(self, region: _Region, error: Exception) -> None:
        # a background synthesis whose process ends: nothing failed, a later process goes on
        level = logging.WARNING if threading.main_thread().is_alive() else logging.DEBUG
        log.log(level, "the judge failed, its candidates are kept for a later call: %s", error)
        region.task.fail(f"the judge failed: {error}")

    # what comes next

    def _advance(self) -> None:
        self._compare_some()
        for region in self._regions:
            if self._timer.left_s > 0 and region.exam is None and region.baselines is None:
                try:
                    self._go_on(region)
                except (RuntimeError, OSError, ValueError) as error:
                    self._failed(region, error)
        if self._timer.left_s > 0:
            self._fill()

    def _compare_some(self) -> None:
        """What may win over aten: what loses to it loses to the faster one too."""
        for region in self._regions:
            if not region.is_compared and region.baselines is None and region.task.to_examine() is not None:
                self._compare_both(region)

    def _fill(self) -> None:
        """Inductor's baselines for idle workers, of regions that need none: at their floor perhaps, or aten's."""
        idle = max(0, self._judge.workers - len(self._open()))
        if self._is_last or any(r.asked() for r in self._regions):
            for region in islice((r for r in self._regions if not r.is_compared and r.baselines is None), idle):
                self._compare_both(region)

    def _go_on(self, region: _Region) -> None:
        """The fastest candidate that may win; what is learnt of it may leave another one, or none."""
        left_s = self._timer.left_s
        task = region.task
        if region.baselines is not None or not task.is_compared:
            return
        if region.candidates and not region.is_held_up(min(HELD_UP_S, left_s / 4)):
            return
        exam_s = LEAN_EXAM_S if is_lean(task.program) else EXAM_S
        is_late = left_s < min(exam_s, LATE_SHARE * self._timer.budget.seconds * exam_s / EXAM_S)
        attempt = task.to_examine() if task.is_ours and not is_late else None
        if attempt is None or ((attempt.speedup or 0.0) < IMPROVES and any(r.candidates for r in self._regions)):
            return  # what wins next to nothing comes after the others' times
        if attempt.code_digest not in region.examined:
            region.examined.add(attempt.code_digest)
            self._progress(Examining(self._places[task], len(self._places), task.best, left_s))
            region.exam = self._judge.submit_exam(task.program, attempt.code, is_sure(attempt)), attempt
