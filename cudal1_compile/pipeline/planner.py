"""From the regions of a graph to decisions: lookup in the kernel cache, synthesis of what is missing.

    seen regions -> lookup -> hit | no win | aten | missed -> synthesis within the budget -> new | no win | aten
                                                           -> proven under other versions: the judge again -> hit

A no win holds for the generator that did not win: another one, a retrained model too, is asked again. On a GPU it
also holds for the versions under which aten and Inductor were compared; the faster one takes the region.
What fails (a damaged row, no generator, no compiler, an ended budget) leaves the region missed, with the reason:
Inductor then compiles it, and a later process tries again. Which kernels of a graph run in the end is choice.py's.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import get_args

from cudal1_cache.bundle import Verified
from cudal1_cache.errors import CacheError
from cudal1_cache.rows import Entry, Region
from cudal1_cache.store import Store
from cudal1_compile.config import debug_level
from cudal1_compile.dispatch import registry
from cudal1_compile.dispatch.fallback import is_atens, measured, saved
from cudal1_compile.errors import BuildError, CandidateError
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.factory import stored_name
from cudal1_compile.generate.protocol import Generator
from cudal1_compile.inductor.plan import ATEN, GraphPlanned, Kernel, PlannedRegion, SeenRegion, load_kernel
from cudal1_compile.inductor.plan import Outcome as RegionOutcome
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.oracle.numerics import numerics_of
from cudal1_compile.options import InvalidOption, Numerics, Options, allows
from cudal1_compile.pipeline.place import Place
from cudal1_compile.pipeline.session import Session
from cudal1_compile.synthesis import Budget, LineProgress, NoWin, Outcome, Unfinished, Won, synthesize_all
from cudal1_compile.synthesis.progress import Preparing
from cudal1_compile.synthesis.records import why_outdated, why_stale
from cudal1_compile.synthesis.reverify import verify_again
from cudal1_fx_passes.program.canonical import shape_agnostic_fingerprint
from cudal1_fx_passes.program.text import parse_program

log = logging.getLogger(__name__)

NO_KERNEL = "no kernel yet"
FORWARD_SHARE = 0.6  # of a budget, before products of the backward are asked for


class Planner:
    def __init__(self, session: Session, options: Options, place: Place) -> None:
        self.session, self.options, self.place = session, options, place
        self.store: Store = session.store(options.cache_dir)
        self.labels = tuple(label for label in get_args(Numerics) if allows(options.numerics, label))

    def look_up(self, seen: SeenRegion | PlannedRegion) -> PlannedRegion:
        """The cache's answer for one region."""
        try:
            entry = self._find(seen)
        except CacheError as error:
            log.warning("a region's kernel is not used: %s", error)
            return self._missed(seen, str(error))
        if entry is None:
            return self._unheard_of(seen)
        if entry.status != "kernel":
            return self._without_kernel(seen, entry)
        if (why := why_outdated(entry, self.place.target)) is not None:
            return self._missed(
                seen, f"kernel {entry.entry_id[:12]} was proven under {why}; it waits for the judge"
            )
        if not registry.is_loadable(entry, seen.text, self.place.device):
            return self._missed(seen, f"kernel {entry.entry_id[:12]} cannot be loaded")
        return _planned(seen, "hit", "", entry.entry_id, entry.speedup, saved(entry))

    def _unheard_of(self, seen: SeenRegion | PlannedRegion) -> PlannedRegion:
        """No kernel is written where none could be run."""
        label = numerics_of(parse_program(seen.text))
        if allows(self.options.numerics, label):
            return self._missed(seen, NO_KERNEL)
        return _planned(
            seen, "untried", f"its kernels would be {label}, wider than numerics={self.options.numerics}"
        )

    def _without_kernel(self, seen: SeenRegion | PlannedRegion, entry: Entry) -> PlannedRegion:
        """Inductor's region, or aten's, for as long as that holds."""
        tried = json.loads(entry.versions_json).get("generator")
        if self.generator_name not in (None, tried):
            return self._missed(seen, f"no win by {tried}; {self.generator_name} was not asked yet")
        status: RegionOutcome = "untried" if entry.status == "untried" else "no win"
        if (why := why_stale(entry, self.place.target)) is not None:
            return self._missed(seen, f"{status}, but it is asked again: {why}")
        timing = measured(entry)
        if timing is not None and is_atens(timing) and seen.has_library:
            saved_us = (timing.inductor_us or 0.0) - timing.aten_us
            return _planned(seen, "aten", entry.reason, ATEN, timing.speedup, saved_us)
        return _planned(seen, status, entry.reason, speedup=entry.speedup)

    @cached_property
    def generator_name(self) -> str | None:
        return stored_name(self.options.generator)

    def _find(self, seen: SeenRegion | PlannedRegion) -> Entry | None:
        """Kernels whose proof holds here come first."""
        target = self.place.target
        return self.store.find_entry(
            seen.fingerprint, target.key, self.labels, lambda e: why_outdated(e, target) is None
        )

    def look_up_all(self, seen: Iterable[SeenRegion | PlannedRegion]) -> tuple[PlannedRegion, ...]:
        return tuple(self.look_up(region) for region in seen)

    def kernels(self, chosen: Mapping[str, str], plan: GraphPlanned) -> dict[str, Kernel]:
        """What the pass needs for fingerprint -> entry id; what cannot be read is left out, with a warning."""
        texts = {r.fingerprint: r.text for r in plan.regions}
        found: dict[str, Kernel] = {}
        for fingerprint, entry_id in chosen.items():
            try:
                entry = self.store.get_entry(entry_id)
                if entry is None or entry.quarantined:
                    raise CacheError("it is no longer in the cache, or quarantined since it was looked up")
                found[fingerprint] = load_kernel(entry, texts[fingerprint])
            except (CacheError, CandidateError) as error:
                log.warning("kernel %s is not used: %s", entry_id[:12], error)
        return found

    def record_misses(self, regions: Iterable[PlannedRegion]) -> None:
        for region in regions:
            if region.outcome == "missed":
                try:
                    # with its text, so that `cudal1 train export-misses` can make a task of it
                    name = shape_agnostic_fingerprint(parse_program(region.text))
                    self.store.add_region(Region(region.fingerprint, name, region.text))
                    self.store.record_miss(region.fingerprint, self.place.target.key, region.value_us)
                except CacheError as error:
                    log.warning("a miss could not be recorded: %s", error)
                    return

    def synthesize(self, regions: Sequence[PlannedRegion], limit_s: float = math.inf) -> tuple[PlannedRegion, ...]:
        """Answers for the missed ones, most valuable first, as long as the budgets allow.

        Kernels that were proven under other versions go to the judge again; for the rest the generator is asked.
        """
        missed = sorted((r for r in regions if r.outcome == "missed"), key=lambda r: -r.value_us)
        if not missed:
            return tuple(regions)
        budget = self.session.budget(self.options.process_budget_s)
        granted_s = budget.take(min(self.options.budget_s, limit_s))
        if granted_s <= 0:
            return self._all_missed(regions, "the time budget for synthesis ended")
        start = time.monotonic()
        answers: dict[str, PlannedRegion] = {}
        try:
            answers |= self._verify_again(missed, start + granted_s)
            rest = [r for r in missed if r.fingerprint not in answers]
            answers |= self._write(rest, start + granted_s - time.monotonic()) if rest else {}
        except (GeneratorError, BuildError, OSError) as error:
            log.warning("no kernels can be written: %s", error)
            answers = {r.fingerprint: replace(r, reason=str(error)) for r in missed} | answers
        finally:
            budget.give_back(granted_s - (time.monotonic() - start))
        return tuple(answers.get(r.fingerprint, r) for r in regions)

    def _verify_again(self, missed: Sequence[PlannedRegion], deadline_s: float) -> dict[str, PlannedRegion]:
        """Answers for the regions that have a kernel, but none that is proven under these versions."""
        kernels = [(r, e) for r in missed if (e := self._outdated(r)) is not None]
        if not kernels:
            return {}
        answers = {r.fingerprint: self._missed(r, "no time to verify its kernel again") for r, _ in kernels}
        with Judge(self.place.target) as judge:
            for region, entry in kernels:
                if time.monotonic() < deadline_s:
                    answers[region.fingerprint] = self._verified(region, entry, judge)
        return answers

    def _outdated(self, region: PlannedRegion) -> Entry | None:
        try:
            entry = self._find(region)
        except CacheError:  # look_up has said so
            return None
        if entry is None or entry.status != "kernel":
            return None
        return entry if why_outdated(entry, self.place.target) is not None else None

    def _verified(self, region: PlannedRegion, entry: Entry, judge: Judge) -> PlannedRegion:
        try:
            found = verify_again(self.store, region.text, entry, self.place.target, judge)
        except (RuntimeError, OSError, ValueError, KeyError, CacheError) as error:
            log.warning("kernel %s is not verified again: %s", entry.entry_id[:12], error)
            return self._missed(region, f"its kernel is not verified again: {error}")
        return self.look_up(region) if isinstance(found, Verified) else self._missed(region, found.reason)

    def _write(self, missed: Sequence[PlannedRegion], seconds: float) -> dict[str, PlannedRegion]:
        """Answers for regions that need a kernel."""
        if seconds <= 0:
            return {}
        outcomes = self._run(missed, seconds)
        self.session.count_replies(sum(o.proposed for o in outcomes))
        return {r.fingerprint: self._answer(r, o) for r, o in zip(missed, outcomes, strict=True)}

    def _run(self, missed: Sequence[PlannedRegion], seconds: float) -> list[Outcome]:
        programs = [parse_program(r.text) for r in missed]
        values = [r.value_us for r in missed]
        with closing(LineProgress(self.place.target.kind, level=debug_level())) as progress:
            progress(Preparing(len(missed), seconds))
            generator = self._generator()
            with Judge(self.place.target) as judge:
                return synthesize_all(
                    programs, generator, judge, self.store, Budget(seconds=seconds), progress, values=values
                )

    def _generator(self) -> Generator:
        try:
            return self.session.generator(self.options.generator, self.place.device)
        except ValueError as error:
            raise InvalidOption(f"option {error}") from None

    def _answer(self, region: PlannedRegion, outcome: Outcome) -> PlannedRegion:
        match outcome.result:
            case Won(entry) if not allows(self.options.numerics, entry.numerics):
                return self._missed(region, f"its kernel is {entry.numerics}, wider than {self.options.numerics}")
            case Won(entry) if not registry.is_loadable(entry, region.text, self.place.device):
                return self._missed(region, f"kernel {entry.entry_id[:12]} cannot be loaded")
            case Won(entry):
                return _planned(region, "new", "", entry.entry_id, entry.speedup, saved(entry))
            case NoWin(entry):
                return self._without_kernel(region, entry)
            case Unfinished(reason):
                return self._missed(region, reason)
        raise AssertionError(f"{outcome.result!r} is no result of a synthesis")

    def _all_missed(self, regions: Sequence[PlannedRegion], why: str) -> tuple[PlannedRegion, ...]:
        return tuple(replace(r, reason=why) if r.outcome == "missed" else r for r in regions)

    def _missed(self, seen: SeenRegion | PlannedRegion, why: str) -> PlannedRegion:
        return _planned(seen, "missed", why)


def _planned(
    seen: SeenRegion | PlannedRegion,
    outcome: RegionOutcome,
    reason: str,
    entry_id: str = "",
    speedup: float | None = None,
    saves: float = 0.0,
) -> PlannedRegion:
    return PlannedRegion(
        fingerprint=seen.fingerprint,
        text=seen.text,
        ops=seen.ops,
        count=seen.count,
        phase=seen.phase,
        is_fusible=seen.is_fusible,
        has_library=seen.has_library,
        value_us=seen.value_us,
        outcome=outcome,
        reason=reason,
        entry_id=entry_id,
        speedup=speedup,
        saved=saves,
    )
