"""A look at a model on held-out programs: samples from the plain prompt, judged like a stage's replies.

    examine(desk, lm, samples, seed) -> Marks

It is the trainer's own measure, quick and against single aten operations (on the host target: declared costs);
results to be published come from benchmarks/generator.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.rollouts import Desk, Item
from cudal1_trainer.scores.outcome import HACKS, RIGHT, Outcome


@dataclass(frozen=True, slots=True)
class Marks:
    """Means over programs. A program or a reply without a verdict is left out."""

    programs: int
    right_1: float  # share of replies that are right
    right_n: float  # share of programs with at least one
    reward: float  # mean score, 0 for what is refused
    speedup_1: float  # geomean of the first reply's score, clamped at 1
    speedup_best: float  # geomean of the best score, clamped at 1
    hack_rate: float
    kinds: dict[str, int]


def examine(desk: Desk, samples: int, temperature: float, seed: int) -> Marks:
    """`samples` replies for every text of the desk, with a book of its own: what is known must not help.

    A program that is too long for the model has none that is right.
    """
    asked = [t for t in desk.texts if desk.fits(t)]
    too_long = [[Outcome("malformed")] for _ in range(len(desk.texts) - len(asked))]
    desk = replace(desk, book=Book(1, 1), texts=asked, timed_first=False)
    items = [Item(i, 0, []) for i in range(len(desk.texts))]
    batch = desk.sample(-1, items, samples, temperature, seed)
    desk.submit(batch)
    return marks_of([*desk.conclude(batch), *too_long])


def marks_of(outcomes: list[list[Outcome]]) -> Marks:
    decided = [known for row in outcomes if (known := [o for o in row if o.kind != "undecided"])]
    every = [o for row in decided for o in row]
    return Marks(
        len(decided),
        _mean([fmean([float(o.kind in RIGHT) for o in row]) for row in decided]),
        _mean([float(any(o.kind in RIGHT for o in row)) for row in decided]),
        _mean([fmean([o.score for o in row]) for row in decided]),
        _geomean([row[0].score for row in decided]),
        _geomean([max(o.score for o in row) for row in decided]),
        _mean([float(o.kind in HACKS) for o in every]),
        dict(Counter(o.kind for row in outcomes for o in row)),
    )


def summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Of one step's replies; what is undecided counts for nothing."""
    known = [o for o in outcomes if o.kind != "undecided"]
    scores = [o.score for o in known if o.score]
    share = {
        kind: sum(o.kind == kind for o in outcomes) / len(outcomes) for kind in ("copied", "contradicts", "lost")
    }
    return share | {
        "reward": _mean([o.score for o in known]),
        "right": _mean([float(o.kind in RIGHT) for o in known]),
        "speedup": math.exp(_mean([math.log(s) for s in scores])),
        "hacks": _mean([float(o.kind in HACKS) for o in known]),
        "undecided": 1 - len(known) / len(outcomes),
    }


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0


def _geomean(scores: list[float]) -> float:
    return math.exp(fmean([math.log(max(1.0, s)) for s in scores])) if scores else 1.0
