"""Kernels for all regions of all models at once, within one limit of time.

Every region gets its first round before any gets a contrastive one, the most valuable first. Everything is stored
as the backend stores it; which kernels a model uses is not decided here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cudal1_cache.rows import ACCEPTED, Attempt
from cudal1_cache.store import Store
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.protocol import Generator, leave_device
from cudal1_compile.judge.judge import Judge
from cudal1_compile.pipeline.generator_process import in_own_process
from cudal1_compile.runtime.target import Target, TargetKind, detect_target
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Outcome, Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.progress import Event, describe
from cudal1_compile.synthesis.rounds import synthesize_all
from cudal1_fx_passes.program.text import parse_program

ROUNDS = 3
SAYS_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A region, and what kernels may win in one call of every model (an estimate, in microseconds)."""

    fingerprint: str
    text: str
    value_us: float
    may_change: bool = False  # in every model that has it: `SeenRegion.may_change`


@dataclass
class Written:
    """What synthesis took and brought."""

    seconds: float = 0.0
    replies: int = 0
    judged: int = 0
    results: Counter[str] = field(default_factory=Counter)
    seconds_of: dict[str, float] = field(default_factory=dict)  # by fingerprint
    regions: dict[str, dict[str, Any]] = field(default_factory=dict)
    judge_s: Counter[str] = field(default_factory=Counter)  # by step, of all its workers

    def add(self, later: Written) -> None:
        self.seconds, self.replies = self.seconds + later.seconds, self.replies + later.replies
        self.judged += later.judged
        self.judge_s += later.judge_s
        self.regions |= later.regions
        self.results = Counter(row["result"] for row in self.regions.values())
        self.seconds_of = {f: self.seconds_of.get(f, 0.0) + later.seconds_of.get(f, 0.0) for f in self.regions}

    def describe(self) -> dict[str, Any]:
        counts = {"seconds": self.seconds, "replies": self.replies, "judged": self.judged}
        return counts | {"results": dict(self.results), "judge_s": dict(self.judge_s), "regions": self.regions}


@dataclass
class Watch:
    """Progress: a line now and then."""

    say: Callable[[str], None]
    kind: TargetKind
    _said: float = 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        if now - self._said > SAYS_EVERY_S:
            self._said = now
            self.say(f"  {describe(event, self.kind)}")


def load_generator(wanted: str, device: torch.device) -> Generator:
    """Raises GeneratorError (ModelMissing among them) or ValueError. `teacher` is for comparisons."""
    if wanted == "teacher":
        from cudal1_trainer.data.template_generator import TemplateGenerator

        return TemplateGenerator()
    return in_own_process(make_generator(wanted, str(device)))


def write_kernels(
    wanted: Sequence[Wanted],
    generator: Generator,
    store_folder: Path,
    dry: bool,
    seconds: float,
    say: Callable[[str], None],
) -> Written:
    """Synthesises every region into the kernel cache in `store_folder`."""
    found = Written()
    begin = time.monotonic()
    ranked = sorted(wanted, key=lambda w: (-w.value_us, w.fingerprint))
    if not ranked:
        return found
    programs = [parse_program(w.text) for w in ranked]
    values = [w.value_us for w in ranked]
    say(f"{len(ranked)} distinct regions, {seconds:.0f} s for their kernels")
    with open_store(store_folder) as store, Judge(_target(dry)) as judge:
        budget = Budget(max(0.0, seconds - (time.monotonic() - begin)), ROUNDS)
        watch = Watch(say, judge.target.kind)
        outcomes = synthesize_all(programs, generator, judge, store, budget, watch, values=values)
        _count(found, outcomes)
        say(f"{time.monotonic() - begin:.0f} s: {_words(outcomes)}, {found.replies} replies")
        found.results = _kinds(outcomes)
        found.judge_s = Counter(judge.spent_s)
        leave_device(generator)  # models are timed next
        found.regions = {
            w.fingerprint: _region(w, o, store, judge.target) for w, o in zip(ranked, outcomes, strict=True)
        }
    found.seconds = time.monotonic() - begin
    found.seconds_of = dict.fromkeys(found.regions, found.seconds / len(ranked))  # all are worked on together
    return found


def find_right(store_folder: Path, wanted: Iterable[Wanted], generator: str, dry: bool) -> set[str]:
    """Fingerprints for which this generator wrote at least one kernel that the judge found right."""
    target = _target(dry).key
    with open_store(store_folder) as store:
        return {
            w.fingerprint
            for w in wanted
            if any(is_right(a) and wrote(a, generator) for a in store.attempts(w.fingerprint, target))
        }


def is_right(attempt: Attempt) -> bool:
    """Passed every gate, or was refused for nothing but its cost."""
    return attempt.stage == ACCEPTED or (attempt.stage == "time" and attempt.reason.startswith("cost"))


def wrote(attempt: Attempt, generator: str) -> bool:
    kind, _, model = generator.partition(":")
    return attempt.generator == kind and attempt.model == model


def _target(dry: bool) -> Target:
    return detect_target(torch.device("cpu") if dry else torch.device("cuda", 0))


def _count(found: Written, outcomes: Sequence[Outcome]) -> None:
    distinct = {o.fingerprint: o for o in outcomes}.values()
    found.replies += sum(o.proposed for o in distinct)
    found.judged += sum(o.judged for o in distinct)


def _kinds(outcomes: Sequence[Outcome]) -> Counter[str]:
    return Counter(type(o.result).__name__ for o in {o.fingerprint: o for o in outcomes}.values())


def _words(outcomes: Collection[Outcome]) -> str:
    return ", ".join(f"{n} {kind.lower()}" for kind, n in sorted(_kinds(list(outcomes)).items()))


def _region(wanted: Wanted, outcome: Outcome, store: Store, target: Target) -> dict[str, Any]:
    """One region's row: how it ended, and the stages of all its attempts."""
    attempts = store.attempts(wanted.fingerprint, target.key)
    scores = [a.speedup for a in attempts if a.stage == ACCEPTED and a.speedup is not None]
    row: dict[str, Any] = {
        "value_us": wanted.value_us,
        "stages": dict(Counter(a.stage for a in attempts)),
        "best_score": max(scores, default=None),
        "result": type(outcome.result).__name__,
    }
    match outcome.result:
        case Won(entry):
            row["speedup"] = entry.speedup
        case Unprofitable(entry):
            row["reason"] = entry.reason
        case Unfinished(reason):
            row["reason"] = reason
    if not scores:
        refused = [f"{a.stage}: {a.reason[:300]}" for a in attempts if a.stage not in (ACCEPTED, "deferred")]
        row["refusals"] = list(dict.fromkeys(reversed(refused)))[:3]
    return row
