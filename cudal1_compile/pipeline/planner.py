"""From the regions of a graph to decisions: lookup in the kernel cache, synthesis of what is missing.

    seen regions -> lookup -> hit | unprofitable | at_floor | aten
                           -> untuned: synthesis within the budget -> new | unprofitable | at_floor | aten
                                       proven under other versions: the judge again -> hit

Unprofitable holds for the generator that did not win: another one, a retrained model too, is asked again. On a
GPU it also holds for the versions under which aten and Inductor were compared; the faster one takes the region.
What fails (a damaged row, no generator, no compiler, an ended budget) leaves the region untuned, with the reason:
Inductor then compiles it, and a later process tries again. Which kernels of a graph run in the end is choice.py's.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, get_args

from cudal1_cache.errors import CacheError
from cudal1_cache.rows import Entry, RegionText
from cudal1_cache.store import Store
from cudal1_compile.config import debug_level
from cudal1_compile.dispatch import registry
from cudal1_compile.dispatch.fallback import is_atens, measured, saved, timed
from cudal1_compile.errors import BuildError
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.factory import stored_name
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.inductor.graph_plan import (
    ATEN,
    ChosenKernel,
    GraphPlanned,
    PlannedRegion,
    RegionOutcome,
    SeenRegion,
    load_kernel,
)
from cudal1_compile.judge.oracle.numerics import numerics_of
from cudal1_compile.judge.verdict import Timing
from cudal1_compile.options import InvalidOption, NumericsLabel, Options, allows
from cudal1_compile.pipeline.beside import beside
from cudal1_compile.pipeline.heard import Heard
from cudal1_compile.pipeline.place import TargetDevice
from cudal1_compile.pipeline.preparation import Preparation
from cudal1_compile.pipeline.process_state import Session
from cudal1_compile.synthesis.budget import Budget, Timer
from cudal1_compile.synthesis.validity import why_outdated, why_stale
from cudal1_fx_passes.program.canonical import shape_agnostic_fingerprint

if TYPE_CHECKING:  # what judges and writes is imported where that begins: a warm start does neither
    from cudal1_compile.judge.judge import Judge
    from cudal1_compile.synthesis.outcome import Outcome

log = logging.getLogger(__name__)

NO_KERNEL = "no kernel yet"
INTERRUPTED = "synthesis was interrupted"
NO_TIME = "the time budget for synthesis ended"
FORWARD_SHARE = 0.6  # of a budget, before products of the backward are asked for
ALONE_SHARE = 0.7  # of the CPU time of Inductor's compile beside synthesis is what it takes alone (0.63 to 0.74)


@dataclass
class _Beside:
    """What goes on in the user's thread while kernels are written."""

    began_s: float = field(default_factory=time.monotonic)
    alone_s: float | None = None  # that it would take alone; None: it still goes on


class Planner:
    def __init__(self, session: Session, options: Options, place: TargetDevice) -> None:
        self.session, self.options, self.place = session, options, place
        self.store: Store = session.store(options.cache_dir)
        self.preparation = Preparation(place, session, options.generator)
        self.spent_s = 0.0  # that kernels were written
        self.labels = tuple(label for label in get_args(NumericsLabel) if allows(options.numerics, label))

    def look_up(self, seen: SeenRegion) -> PlannedRegion:
        """The cache's answer for one region."""
        try:
            entry = self._find(seen)
        except CacheError as error:
            log.warning("a region's kernel is not used: %s", error)
            return self._untuned(seen, str(error))
        if entry is None:
            return self._unheard_of(seen)
        if entry.status != "kernel":
            return self._without_kernel(seen, entry)
        if (why := why_outdated(entry, self.place.target)) is not None:
            return self._untuned(
                seen, f"kernel {entry.entry_id[:12]} was proven under {why}; it waits for the judge"
            )
        if not registry.is_loadable(entry, seen.text, self.place.device):
            return self._untuned(seen, f"kernel {entry.entry_id[:12]} cannot be loaded")
        return self._by(seen, "hit", entry)

    def _by(self, seen: SeenRegion, outcome: RegionOutcome, entry: Entry) -> PlannedRegion:
        found = PlannedRegion(seen, outcome, "", entry.entry_id, entry.speedup, saved(entry))
        return _with_times(found, timed(entry))

    def _unheard_of(self, seen: SeenRegion) -> PlannedRegion:
        """No kernel is written where none could be run."""
        label = numerics_of(seen.program)
        if allows(self.options.numerics, label):
            return self._untuned(seen, NO_KERNEL)
        return PlannedRegion(
            seen, "untried", f"its kernels would be {label}, wider than numerics={self.options.numerics}"
        )

    def _without_kernel(self, seen: SeenRegion, entry: Entry) -> PlannedRegion:
        """Inductor's region, or aten's, for as long as that holds."""
        tried = json.loads(entry.versions_json).get("generator")
        if entry.status != "at_floor" and self.generator_name not in (None, tried):
            return self._untuned(seen, f"unprofitable by {tried}; {self.generator_name} was not asked yet")
        status: RegionOutcome = "unprofitable" if entry.status == "kernel" else entry.status
        if (why := why_stale(entry, self.place.target)) is not None:
            return self._untuned(seen, f"{status}, but it is asked again: {why}")
        timing = measured(entry)
        if timing is not None and is_atens(timing) and seen.has_library:
            saved_us = (timing.inductor_us or 0.0) - timing.aten_us
            return _with_times(PlannedRegion(seen, "aten", entry.reason, ATEN, timing.speedup, saved_us), timing)
        return _with_times(PlannedRegion(seen, status, entry.reason, speedup=entry.speedup), timing)

    @cached_property
    def generator_name(self) -> str | None:
        return stored_name(self.options.generator)

    def _find(self, seen: SeenRegion) -> Entry | None:
        """Kernels whose proof holds here come first."""
        target = self.place.target
        return self.store.find_entry(
            seen.fingerprint, target.key, self.labels, lambda e: why_outdated(e, target) is None
        )

    def look_up_all(self, seen: Iterable[SeenRegion]) -> tuple[PlannedRegion, ...]:
        return tuple(self.look_up(region) for region in seen)

    def kernels(self, chosen: Mapping[str, str], plan: GraphPlanned) -> dict[str, ChosenKernel]:
        """What the pass needs for fingerprint -> entry id; what cannot be read is left out, with a warning."""
        seen = {r.fingerprint: r.seen for r in plan.regions}
        found: dict[str, ChosenKernel] = {}
        for fingerprint, entry_id in chosen.items():
            try:
                entry = self.store.get_entry(entry_id)
                if entry is None or entry.quarantined:
                    raise CacheError("it is no longer in the cache, or quarantined since it was looked up")
                found[fingerprint] = load_kernel(entry, seen[fingerprint])
            except (CacheError, ValueError) as error:
                log.warning("kernel %s is not used: %s", entry_id[:12], error)
        return found

    def record_misses(self, regions: Iterable[PlannedRegion]) -> None:
        for region in regions:
            if region.outcome == "untuned":
                try:
                    # with its text, so that `cudal1 train export-misses` can make a task of it
                    seen = region.seen
                    name = shape_agnostic_fingerprint(seen.program)
                    self.store.add_regions(RegionText(seen.fingerprint, name, seen.text))
                    self.store.record_miss(seen.fingerprint, self.place.target.key, seen.value_us)
                except CacheError as error:
                    log.warning("a miss could not be recorded: %s", error)
                    return

    def synthesize(
        self,
        regions: Sequence[PlannedRegion],
        limit_s: float = math.inf,
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[PlannedRegion, ...]:
        """Answers for the untuned ones, most valuable first, as long as the budgets allow.

        Kernels that were proven under other versions go to the judge again; for the rest the generator is asked.
        An interrupt ends this, for the process; what was found is kept. The next one is raised. meanwhile: called
        in this thread, where anything is written.
        """
        untuned = sorted((r for r in regions if r.outcome == "untuned"), key=lambda r: -r.seen.value_us)
        if not untuned:
            return tuple(regions)
        if self.session.is_interrupted:
            return self._all_untuned(regions, INTERRUPTED)
        wanted_s = min(self.options.budget_s, limit_s)
        if min(wanted_s, self.session.budget(self.options.process_budget_s).left_s) <= 0:
            return self._all_untuned(regions, NO_TIME)

        def write(beside: _Beside) -> dict[str, PlannedRegion]:
            with self._granted(wanted_s) as granted_s:
                end_s = time.monotonic() + granted_s
                # without anything beside it somebody waits from the first moment, wherever the caller's thread is
                ends_s = None if meanwhile is None else lambda: None if beside.alone_s is None else end_s
                return self._synthesize(untuned, Budget(granted_s, ends_s=ends_s))

        answers = self._beside(write, meanwhile or (lambda: None), lambda: untuned)
        return tuple(answers.get(r.fingerprint, r) for r in regions)

    def write_as_heard(self, heard: Heard, meanwhile: Callable[[], object]) -> dict[str, PlannedRegion]:
        """Answers for the regions that `meanwhile`, called in this thread, tells of; else as `synthesize`."""
        return self._beside(
            partial(self._write_heard, heard),
            meanwhile,
            lambda: heard.plan.regions if heard.plan is not None else (),
        )

    def _beside(
        self,
        write: Callable[[_Beside], dict[str, PlannedRegion]],
        meanwhile: Callable[[], object],
        regions: Callable[[], Sequence[PlannedRegion]],
    ) -> dict[str, PlannedRegion]:
        """What `write` answers; after an interrupt what is found of all."""
        done = _Beside()

        def do() -> None:
            begun_s = time.thread_time()
            try:
                meanwhile()
            finally:
                done.alone_s = ALONE_SHARE * (time.thread_time() - begun_s)

        answers = beside(partial(write, done), do)
        if answers is not None:
            return answers
        self.session.interrupt()
        return self._found_all([r for r in regions() if r.outcome == "untuned"])

    def _write_heard(self, heard: Heard, beside: _Beside) -> dict[str, PlannedRegion]:
        """The forward's until the backward's are known as well, with which its undecided ones go on."""
        answers: dict[str, PlannedRegion] = {}
        spent_s = self.spent_s
        while (plan := heard.next()) is not None:
            # in this thread: loading a kernel takes up to a second, of which the compile would wait for all
            now = [answers.get(r.fingerprint) or self.look_up(r.seen) for r in plan.regions]
            answers |= {r.fingerprint: r for r in now}
            untuned = sorted((r for r in now if r.outcome == "untuned"), key=lambda r: -r.seen.value_us)
            if self.session.is_interrupted:
                answers |= {r.fingerprint: r for r in self._all_untuned(untuned, INTERRUPTED)}
            elif untuned and not heard.has_next:
                left_s = self.options.budget_s - (self.spent_s - spent_s)
                answers |= self._write_one(untuned, left_s, heard, beside)
        return answers

    def _write_one(
        self, untuned: Sequence[PlannedRegion], left_s: float, heard: Heard, beside: _Beside
    ) -> dict[str, PlannedRegion]:
        budget_s = self.options.budget_s
        wanted_s = max(left_s, (1 - FORWARD_SHARE) * budget_s)  # what was spent beside the compile cost nobody

        def ends_s() -> float | None:
            if heard.has_next:
                return 0.0
            if beside.alone_s is None:
                return None
            return beside.began_s + beside.alone_s + budget_s - (wanted_s - granted_s)

        with self._granted(wanted_s) as granted_s:
            if granted_s <= 0:
                return {r.fingerprint: r for r in self._all_untuned(untuned, NO_TIME)}
            return self._synthesize(untuned, Budget(granted_s, ends_s=ends_s))

    @contextmanager
    def _granted(self, wanted_s: float) -> Iterator[float]:
        """Seconds of the process's budget; more of them before anybody waits cost nobody anything."""
        budget, start = self.session.budget(self.options.process_budget_s), time.monotonic()
        granted_s = budget.take(wanted_s)
        try:
            yield granted_s
        finally:
            took_s = min(time.monotonic() - start, granted_s)
            self.spent_s += took_s
            budget.give_back(granted_s - took_s)

    def _synthesize(self, untuned: Sequence[PlannedRegion], budget: Budget) -> dict[str, PlannedRegion]:
        timer = Timer(budget)
        answers: dict[str, PlannedRegion] = {}
        try:
            with self.preparation:
                answers |= self._verify_again(untuned, timer)
                rest = [r for r in untuned if r.fingerprint not in answers]
                answers |= self._write(rest, timer) if rest else {}
        except (GeneratorError, BuildError, OSError) as error:
            log.warning("no kernels can be written: %s", error)
            answers = {r.fingerprint: replace(r, reason=str(error)) for r in untuned} | answers
        except KeyboardInterrupt:
            self.session.interrupt()
            self.preparation.close()
            log.warning(
                "interrupted: no more kernels are written in this process (until torch.compiler.reset()), the "
                "model is compiled with those that were found; a second interrupt ends the compile too"
            )
            answers = self._found_all(untuned)
        return answers

    def _verify_again(self, untuned: Sequence[PlannedRegion], timer: Timer) -> dict[str, PlannedRegion]:
        """Answers for the regions that have a kernel, but none that is proven under these versions."""
        kernels = [(r, e) for r in untuned if (e := self._outdated(r.seen)) is not None]
        if not kernels:
            return {}
        answers = {r.fingerprint: self._untuned(r.seen, "no time to verify its kernel again") for r, _ in kernels}
        judge = self.preparation.judge()
        for region, entry in kernels:
            if timer.left_s > 0:
                answers[region.fingerprint] = self._verified(region.seen, entry, judge)
        return answers

    def _outdated(self, seen: SeenRegion) -> Entry | None:
        try:
            entry = self._find(seen)
        except CacheError:  # look_up has said so
            return None
        if entry is None or entry.status != "kernel":
            return None
        return entry if why_outdated(entry, self.place.target) is not None else None

    def _verified(self, seen: SeenRegion, entry: Entry, judge: Judge) -> PlannedRegion:
        from cudal1_cache.bundle import Verified
        from cudal1_compile.synthesis.reverify import verify_again

        try:
            found = verify_again(self.store, seen.program, entry, self.place.target, judge)
        except (RuntimeError, OSError, ValueError, KeyError, CacheError) as error:
            log.warning("kernel %s is not verified again: %s", entry.entry_id[:12], error)
            return self._untuned(seen, f"its kernel is not verified again: {error}")
        return self.look_up(seen) if isinstance(found, Verified) else self._untuned(seen, found.reason)

    def _write(self, untuned: Sequence[PlannedRegion], timer: Timer) -> dict[str, PlannedRegion]:
        """Answers for regions that need a kernel."""
        if timer.left_s <= 0:
            return {}
        outcomes = self._run(untuned, timer)
        self.session.count_replies(sum(o.proposed for o in outcomes))
        return {r.fingerprint: self._answer(r.seen, o) for r, o in zip(untuned, outcomes, strict=True)}

    def _run(self, untuned: Sequence[PlannedRegion], timer: Timer) -> list[Outcome]:
        from cudal1_compile.pipeline.progress import LineProgress
        from cudal1_compile.synthesis.progress import Preparing
        from cudal1_compile.synthesis.rounds import synthesize_all

        programs = [r.seen.program for r in untuned]
        values = [r.seen.value_us for r in untuned]
        counts = [r.seen.count for r in untuned]
        seen = {r.fingerprint: r.seen for r in untuned}
        with closing(LineProgress(self.place.target.kind, level=debug_level())) as progress:
            progress(Preparing(len(untuned), timer.left_s))
            generator, judge = self._generator(), self.preparation.judge()
            return synthesize_all(
                programs,
                generator,
                judge,
                self.store,
                timer.rest,
                progress,
                values=values,
                counts=counts,
                found=lambda fingerprint: self._decided(seen[fingerprint]),
            )

    def _decided(self, seen: SeenRegion) -> Entry | None:
        """The entry that makes work on an untuned region needless, once another process has stored it."""
        with suppress(CacheError):  # look_up has said so
            entry = self._find(seen)
            return entry if entry is not None and self.look_up(seen).outcome != "untuned" else None
        return None

    def _generator(self) -> Generator:
        try:
            return self.preparation.generator()
        except ValueError as error:
            raise InvalidOption(f"option {error}") from None

    def _answer(self, seen: SeenRegion, outcome: Outcome) -> PlannedRegion:
        from cudal1_compile.synthesis.outcome import Unfinished, Unprofitable, Won

        match outcome.result:
            case Won(entry) if not allows(self.options.numerics, entry.numerics):
                return self._untuned(seen, f"its kernel is {entry.numerics}, wider than {self.options.numerics}")
            case Won(entry) if not registry.is_loadable(entry, seen.text, self.place.device):
                return self._untuned(seen, f"kernel {entry.entry_id[:12]} cannot be loaded")
            case Won(entry):
                return self._by(seen, "new", entry)
            case Unprofitable(entry):
                return self._without_kernel(seen, entry)
            case Unfinished(reason):
                return _with_times(self._untuned(seen, reason), outcome.baselines)
        raise AssertionError(f"{outcome.result!r} is no result of a synthesis")

    def _found_all(self, untuned: Sequence[PlannedRegion]) -> dict[str, PlannedRegion]:
        return {r.fingerprint: self._found(r.seen) for r in untuned}

    def _found(self, seen: SeenRegion) -> PlannedRegion:
        """What is stored for it, after an interrupt."""
        found = self.look_up(seen)
        if found.outcome == "untuned":
            return replace(found, reason=INTERRUPTED)
        return replace(found, outcome="new") if found.outcome == "hit" else found

    def _all_untuned(self, regions: Sequence[PlannedRegion], why: str) -> tuple[PlannedRegion, ...]:
        return tuple(replace(r, reason=why) if r.outcome == "untuned" else r for r in regions)

    def _untuned(self, seen: SeenRegion, why: str) -> PlannedRegion:
        return PlannedRegion(seen, "untuned", why)


def _with_times(region: PlannedRegion, timing: Timing | None) -> PlannedRegion:
    """And what it takes without a kernel."""
    return region if timing is None else replace(region, baseline_us=timing.baseline_us, floor_us=timing.floor_us)
