"""From regions without a kernel to entries, within a budget: generator and judge, round after round.

    aten's time of each region (meanwhile the most valuable ones get their proposals, where that disturbs nobody)
    -> those at the floor are decided; the others in order of what they, or all of their structure, may gain
    -> a round of proposals for all regions at once -> their times, most valuable first (scheduler.py):
        candidates -> the fastest that may win is examined -> proven, it is stored as the region's entry
    a design that was measured at one size, by anybody, is lowered for the others before these are asked for
    first round without exemplars; where designs are written, a round of random edits of the fastest; contrastive
    rounds with measured variants, as long as there is time
    -> won | unprofitable (or at the floor) | unfinished

Every region gets its first round before any gets its second, and a region that wins has won whatever happens to
the time. Nothing is timed while a sampler is busy on the same GPU: one that gives way has baselines timed
between its steps, for others all wait. Each reply and verdict is stored when it comes. A generator or judge that
fails is a warning and leaves the regions unfinished, never an exception. Before a refusal counts, a known-good
kernel passes on the same machine.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import groupby, islice
from typing import TypeVar

from cudal1_cache.leases import Leases
from cudal1_cache.rows import RegionText
from cudal1_cache.store import Store
from cudal1_compile.generate.exemplars import ExemplarConfig
from cudal1_compile.generate.protocol import Generator, GivesWay, WritesDesigns, prompts_at_once
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_compile.synthesis.archive import histories
from cudal1_compile.synthesis.budget import Budget, Timer
from cudal1_compile.synthesis.neighbours import Found, Neighbours
from cudal1_compile.synthesis.outcome import Outcome
from cudal1_compile.synthesis.ports import JudgePort
from cudal1_compile.synthesis.progress import Decided, Done, Progress, silent
from cudal1_compile.synthesis.proposals import TIME_OVER, Proposals
from cudal1_compile.synthesis.scheduler import EvaluationScheduler
from cudal1_compile.synthesis.task import RegionTask, region_of
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint
from cudal1_fx_passes.program.ir import Program

T = TypeVar("T")

SHOWN = 3  # scores, of the best kernels
REGIONS_A_SECOND = 2.0  # that the judge decides on a GPU, baselines included
MIN_GROUP = 8
BINARIES_S = 0.5  # that those of the last winners are waited for in the end
AT_FIRST = 12  # regions that are asked for by what they move, before aten's times order all
BACKLOG = 8  # more valuable regions before the judge, which decides one or two a second: over it nobody is asked
SEARCHED_AT_ONCE = 2  # regions whose designs are edited while verdicts wait: a tenth of a second each
# regions over which a first round asks for half, and over twice as many for a quarter: a build takes 0.5 s of a
# core, a baseline 1.3, and the prior's first reply is 1.37x where its best of eight is 1.44x
MANY = 16


def synthesize(
    program: Program,
    generator: Generator,
    judge: JudgePort,
    store: Store,
    budget: Budget | None = None,
    progress: Progress = silent,
    seed: int = 0,
    exemplars: ExemplarConfig | None = None,
) -> Outcome:
    """One region. Never raises for what a generator, a candidate, the judge or the store does."""
    return synthesize_all([program], generator, judge, store, budget, progress, seed, exemplars)[0]


def synthesize_all(
    programs: Sequence[Program],
    generator: Generator,
    judge: JudgePort,
    store: Store,
    budget: Budget | None = None,
    progress: Progress = silent,
    seed: int = 0,
    exemplars: ExemplarConfig | None = None,
    values: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
    found: Found = lambda fingerprint: None,
) -> list[Outcome]:
    """Several regions under one budget, the most valuable first; outcomes in the order of `programs`.

    `values`: what kernels may win in each region, in any one unit, as far as nothing is timed; by default the
    bytes it moves. `counts`: the region's uses, by default one each. Processes with the same cache share regions,
    a round of one at a time; `found` (neighbours.py) tells which entry a region needs.
    """
    budget = budget or Budget()
    timer = Timer(budget)
    config = exemplars or ExemplarConfig()
    names = [fingerprint(canonicalise(p)) for p in programs]
    named = dict(zip(reversed(names), reversed(programs), strict=True))
    worth = list(values) if values is not None else [float(least_bytes(p)) for p in programs]
    uses = dict(zip(names, counts or [1] * len(names), strict=True))

    regions = {n: region_of(p) for n, p in named.items()}
    values_of = dict(zip(reversed(names), reversed(worth), strict=True))
    whole = _by_structure(generator, {n: (region, values_of[n]) for n, region in regions.items()})
    order = sorted(dict.fromkeys(names), key=lambda n: (-whole[n], -values_of[n]))
    known = histories(store, [regions[n] for n in order], judge.target)
    tasks = {
        n: RegionTask(named[n], generator, judge.target, store, budget, seed, config, known.get(n)) for n in order
    }
    leases = Leases(store.path.parent if store.path is not None else None)
    with Neighbours(leases, judge.target.key, found, timer, progress) as neighbours:
        now = list(tasks.values())
        while now:
            _Run(now, uses, generator, judge, timer.rest, progress, neighbours).work()
            now = [tasks[n] for n in neighbours.free([n for n in order if tasks[n].result is None])]
            for task in now:
                task.refresh()
    for name, ending in neighbours.endings.items():
        tasks[name].result = ending
        progress(Done(order.index(name) + 1, len(order), tasks[name].outcome(), timer.left_s))
    return [tasks[name].outcome() for name in names]


def _by_structure(generator: Generator, worth: Mapping[T, tuple[RegionText, float]]) -> dict[T, float]:
    """What all of a structure are worth, where one of them is asked for and the others inherit its designs."""
    whole: defaultdict[str, float] = defaultdict(float)
    for region, value in worth.values():
        whole[region.relative] += value
    is_shared = isinstance(generator, WritesDesigns)
    return {t: whole[region.relative] if is_shared else value for t, (region, value) in worth.items()}


class _Run:
    """All tasks of one call, in the order in which they are worked on."""

    def __init__(
        self,
        tasks: list[RegionTask],
        uses: Mapping[str, int],
        generator: Generator,
        judge: JudgePort,
        budget: Budget,
        progress: Progress,
        neighbours: Neighbours,
    ) -> None:
        self.neighbours, self.elsewhere = neighbours, set[RegionTask]()  # another works on these, or has answered
        self.tasks, self.generator, self.judge, self.budget = tasks, generator, judge, budget
        self.uses, self.progress = uses, progress
        self.timer = Timer(budget)
        self.places = {task: i + 1 for i, task in enumerate(tasks)}
        self._being_judged: set[str] = set()  # structures, when heirs were last looked for
        # left by an earlier call, and less valuable than what nobody was asked for
        self.late: list[RegionTask] = []
        self.proposals = Proposals(generator, self.timer, progress, self.places)

    def work(self) -> None:
        try:
            self._work()
        finally:
            self.proposals.close()

    def _work(self) -> None:
        self.judge.expect([t.program for t in self.tasks])
        scheduler = EvaluationScheduler(self.places, self.judge, self.timer, self.progress, self._tell)
        heirs = self._inherit()
        asked = self._first_group(heirs)
        if self._is_beside:
            scheduler.compare(self.tasks, partial(self._ask_beside, asked))
        else:
            self._ask(asked)
            scheduler.compare(self.tasks)
        self._order_by_gain()
        self.judge.expect([t.program for t in self.tasks if not t.is_at_floor])
        for task in (t for t in self.tasks if t.is_begun):
            self._take_over(task)
        # what an earlier call left open comes before the regions that are less valuable, not before all others
        line = [alike[0] for alike in self._in_line()]
        first = self.places[line[0]] if line and not line[0].to_judge() else len(self.tasks) + 1
        begun = [t for t in self.tasks if self.places[t] < first or t in asked or t in heirs]
        if self._is_beside:
            self.late = [t for t in self.tasks if t.is_begun and t not in begun]
            begun = [t for t in self.tasks if t not in self.late]
        found = {*scheduler.run(begun, more=partial(self._more, scheduler)), *self.proposals.take(math.inf)}
        left = {t for t in self.tasks if t in found or t not in begun or not t.rounds_done}
        self._let_go_all_but(left)
        while self.timer.proposals_left_s > 0:
            heirs = self._inherit()
            group = self._next_group(heirs)
            if not group and not heirs:
                break
            self._ask(group)
            left = set(scheduler.run([t for t in self.tasks if t in left or t in group or t in heirs]))
            self._let_go_all_but(left)
        # what was not built in its round, and what aten alone was held against
        scheduler.run([t for t in self.tasks if t in left or not t.is_compared], is_last=True)
        self.judge.expect([])
        if not self.timer.proposals_left_s:
            for task in (t for t in self.tasks if t.wants_round or t.is_begun):
                self._take_over(task)  # or find what others have made of it
        why = self.judge.trouble() if any(t.needs_canary for t in self.tasks) else None
        end_s = time.monotonic() + max(BINARIES_S, self.timer.left_s)
        for task in self.tasks:
            if task.result is not None or (task in self.elsewhere and not task.is_at_floor):
                continue
            if why is not None:
                task.distrust(why)
            task.close(TIME_OVER, end_s - time.monotonic())
            self.progress(Done(self.places[task], len(self.tasks), task.outcome(), self.timer.left_s))
        self._let_go_all_but(frozenset())
        self._tell()

    @property
    def _is_beside(self) -> bool:
        """Whether proposals may be made while the judge is at work."""
        return isinstance(self.generator, GivesWay) and self.judge.target.kind == "cuda"

    def _first_group(self, heirs: Sequence[RegionTask]) -> list[RegionTask]:
        """To be asked for before anything is timed."""
        is_early = self._is_beside or not self.judge.workers
        return self._next_group(heirs, AT_FIRST) if is_early and self.timer.proposals_left_s else []

    def _more(self, scheduler: EvaluationScheduler) -> tuple[list[RegionTask], bool]:
        """Who got candidates meanwhile, and whether others will without a verdict; the next ones are asked for."""
        ready = [*self.proposals.take(), *self._new_heirs()]
        is_due = self._is_beside and self.timer.proposals_left_s > 0 and not self.proposals.is_busy
        if is_due:
            self._order_by_gain()  # aten's times come meanwhile
        if is_due and scheduler.open_before(self._first_unasked()) < BACKLOG:
            group = self._next_group([t for t in self.tasks if t.is_begun], AT_FIRST)
            if self.late and not any(t.rounds_done == 0 for t in group):
                ready, self.late = [*ready, *self.late], []
            elif group and (found := [t for t in group[:SEARCHED_AT_ONCE] if t.search()]):
                ready = [*ready, *found]
            elif group:
                self.proposals.begin(group, self._share(group))
        return ready, self.proposals.is_busy

    def _first_unasked(self) -> float:
        """The place of the most valuable region that nobody was asked for; infinite where there is none."""
        return min((self.places[t] for t in self.tasks if not t.rounds_done and t.wants_round), default=math.inf)

    def _ask(self, group: Sequence[RegionTask]) -> None:
        share = self._share(group)
        self.proposals.ask([t for t in group if not t.search()], share)

    def _ask_beside(self, group: Sequence[RegionTask]) -> None:
        """The replies are read in the next run."""
        self.proposals.begin(group, self._share(group))
        self.proposals.wait()

    def _share(self, group: Sequence[RegionTask]) -> float:
        """Of a round's samples."""
        if any(t.rounds_done for t in group):
            return 1.0
        return 0.5 ** min(2, len(list(self._line(self.tasks))) // (MANY + 1))

    def _tell(self) -> None:
        """How much is decided, by the time that the regions take in all their uses."""
        us = {t: self.uses[t.region.fingerprint] * b.baseline_us for t in self.tasks if (b := t.baselines)}
        done = [t for t in self.tasks if t.is_decided]
        share = sum(us.get(t, 0.0) for t in done) / sum(us.values()) if us else None
        best = sorted((t.won for t in self.tasks if t.won), reverse=True)[:SHOWN]
        self.progress(Decided(len(done), len(self.tasks), share, tuple(best), self.timer.left_s))

    def _order_by_gain(self) -> None:
        """What is timed comes first; what is not stays in the order of its value."""
        gains = {t: (t.may_gain_us or 0.0) * self.uses[t.region.fingerprint] for t in self.tasks}
        whole = _by_structure(self.generator, {t: (t.region, gain) for t, gain in gains.items()})
        self.tasks.sort(key=lambda t: (-whole[t], -gains[t]))
        self.places.update({task: i + 1 for i, task in enumerate(self.tasks)})

    def _next_group(self, heirs: Sequence[RegionTask], limit: int = sys.maxsize) -> list[RegionTask]:
        """Regions that are fewest rounds along, as many as the generator takes, and `limit` at most.

        heirs: what they got is judged first.
        """
        size = self.budget.regions_at_once or min(prompts_at_once(self.generator), self._in_time)
        for alike in self._in_line():
            line = self._line(t for t in alike if t not in heirs)
            if group := list(islice(filter(self._take_over, line), min(size, limit))):
                return group
        return []

    def _new_heirs(self) -> list[RegionTask]:
        """Of structures of which one region's candidates have been timed since."""
        now = {t.region.relative for t in self.tasks if t.to_judge()}
        timed, self._being_judged = self._being_judged - now, now
        return self._inherit([t for t in self.tasks if t.region.relative in timed]) if timed else []

    def _inherit(self, tasks: Sequence[RegionTask] | None = None) -> list[RegionTask]:
        """Those that get the fastest designs of others of their structure, which is asked for once then."""
        heirs: list[RegionTask] = []
        being_judged = {t.region.relative for t in self.tasks if t.to_judge()}  # the best may be to come
        for task in (t for t in (self.tasks if tasks is None else tasks) if t.region.relative not in being_judged):
            if (heritage := task.heritage()) and self._take_over(task):
                task.inherit(heritage)
                heirs.append(task)
        return heirs

    def _line(self, tasks: Iterable[RegionTask]) -> Iterator[RegionTask]:
        """Of designs that will be lowered for all of a structure, one region of it, in a first round."""
        is_shared = isinstance(self.generator, WritesDesigns)
        taken = {t.region.relative for t in self.tasks if t.to_judge()} if is_shared else set[str]()
        for task in tasks:
            if task.rounds_done or task.region.relative not in taken:
                yield task
            if is_shared:
                taken.add(task.region.relative)

    @property
    def _in_time(self) -> int:
        """Regions whose candidates the judge comes to: what is asked for beyond them keeps it waiting."""
        return max(MIN_GROUP, int(REGIONS_A_SECOND * self.timer.left_s))

    def _in_line(self) -> list[list[RegionTask]]:
        """What wants a round, those that are as far along together.

        Where candidates of an earlier call wait for the judge, their verdicts come before more of them.
        """
        waiting = [((t.rounds_done, bool(t.to_judge())), t) for t in self.tasks if t.wants_round]
        waiting.sort(key=lambda pair: pair[0])
        return [[t for _, t in alike] for _, alike in groupby(waiting, lambda pair: pair[0])]

    # what other processes work on

    def _take_over(self, task: RegionTask) -> bool:
        """Whether it is this call's, from now on or already."""
        if task.is_ours:
            return True
        name = task.region.fingerprint
        if self.neighbours.lease(name):
            self.elsewhere.discard(task)
            task.is_ours = True
            task.refresh()
        else:
            self.elsewhere.add(task)
            task.result = self.neighbours.endings.get(name)
        return task.is_ours

    def _let_go_all_but(self, left: Set[RegionTask]) -> None:
        """Others go on with what is undecided after a round; a winner's further rounds are this call's."""
        for task in self.tasks:
            if task.is_ours and task.won is None and task not in left:
                task.is_ours = False
                self.neighbours.release(task.region.fingerprint)
