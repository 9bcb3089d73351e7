"""What a stage knows of its programs: verdicts, scores, the exemplar database, the hacks.

    note(task, island, code, outcome)    after the judge
    known(task, digest)                  a code is judged once: what it scored, it scores again
    choose(task, island, config, seed)   exemplars of a prompt, by the compiler's own choice (exemplars.py)
    migrate()                            every island's best to its worst

A digest that was refused as a hack on one program is refused on every other without the judge; code that is one
but for its names (form.py), here, in an earlier run's cases or in the red team's attacks (known_hacks.txt), is
looked at twice (`is_suspect`). With one island the database is one population a program, as in CUDA-L1's bucket
variant. Everything here is plain data, so that a checkpoint holds it (`state`, `load`).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Any

from cudal1_compile.generate.exemplars import ExemplarConfig, choose_exemplars
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_trainer.rl.form import form_digest
from cudal1_trainer.scores.outcome import HACKS, Code, Outcome

Variants = dict[str, Exemplar]  # by digest
NEARLY = 0.9  # of a template's score, which is a measurement too


class Book:
    """Of one process: with several, each has its own tasks and its own book."""

    def __init__(self, islands: int, window: int) -> None:
        self.window = window
        self._outcomes: dict[int, dict[str, Outcome]] = defaultdict(dict)
        self._islands: dict[int, list[Variants]] = defaultdict(lambda: [{} for _ in range(islands)])
        self._history: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=window))
        self._references: dict[int, float] = {}
        self._hacks: dict[str, Outcome] = {}
        self._forms: set[str] = set()

    def known(self, task: int, digest: str) -> Outcome | None:
        return self._hacks.get(digest) or self._outcomes[task].get(digest)

    def note(self, task: int, island: int, read: Code, outcome: Outcome) -> None:
        """Undecided codes may be asked about again."""
        if outcome.kind == "undecided":
            return
        self._outcomes[task][read.digest] = outcome
        if outcome.kind in HACKS:
            self._hacks[read.digest] = outcome
            self._forms.add(form_digest(read.code))
        if outcome.kind == "right":
            self._islands[task][island].setdefault(read.digest, Exemplar(read.code, outcome.score, read.design))

    def suspect(self, digests: Iterable[str]) -> None:
        """Known hacks, by `form_digest`."""
        self._forms.update(digests)

    def is_suspect(self, code: str) -> bool:
        return form_digest(code) in self._forms

    def set_reference(self, task: int, score: float) -> None:
        """A template's score: no exemplar, but what a gain is held against before anything better is known."""
        self._references[task] = score

    def bar(self, task: int) -> float:
        """That right replies are kept above: the baseline, or about a template's score where that is slower."""
        return min(1.0, NEARLY * self._references.get(task, math.inf))

    def best(self, task: int) -> float | None:
        found = [e.speedup for variants in self._islands[task] for e in variants.values()]
        found += [self._references[task]] if task in self._references else []
        return max(found, default=None)

    def fastest(self) -> dict[int, Exemplar]:
        """Each program's right reply of the highest score, where it has one."""
        found = {
            task: [e for variants in islands for e in variants.values()] for task, islands in self._islands.items()
        }
        return {task: max(some, key=lambda e: e.speedup) for task, some in found.items() if some}

    def remember(self, task: int, scores: Iterable[float | None]) -> list[float]:
        """Adds a group's scores of right replies to the program's window, and returns the window."""
        self._history[task].extend(s for s in scores if s)
        return list(self._history[task])

    def choose(self, task: int, island: int, config: ExemplarConfig, seed: int) -> list[Exemplar]:
        """Exemplars of distinct buckets, slowest first; fewer where there are fewer."""
        return choose_exemplars(list(self._islands[task][island].values()), config, seed)

    def migrate(self) -> None:
        """The island whose best variant is slowest starts afresh with the best variant of all."""
        for islands in self._islands.values():
            ranked = sorted(range(len(islands)), key=lambda i: _best(islands[i]))
            worst, best = islands[ranked[0]], islands[ranked[-1]]
            if _best(worst) < _best(best):
                digest, variant = max(best.items(), key=lambda item: item[1].speedup)
                worst.clear()
                worst[digest] = variant

    def state(self) -> dict[str, Any]:
        return {
            "outcomes": {
                t: {d: list(astuple(o)) for d, o in found.items()} for t, found in self._outcomes.items()
            },
            "islands": {
                t: [{d: [e.code, e.speedup, e.design] for d, e in v.items()} for v in islands]
                for t, islands in self._islands.items()
            },
            "history": {t: list(h) for t, h in self._history.items()},
            "references": dict(self._references),
            "forms": sorted(self._forms),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        for task, found in state["outcomes"].items():
            self._outcomes[task] = {d: Outcome(*o) for d, o in found.items()}
            self._hacks |= {d: o for d, o in self._outcomes[task].items() if o.kind in HACKS}
        for task, islands in state["islands"].items():
            self._islands[task] = [{d: Exemplar(*e) for d, e in v.items()} for v in islands]
        for task, history in state["history"].items():
            self._history[task].extend(history)
        self._references = dict(state["references"])
        self._forms.update(state["forms"])


def _best(variants: Variants) -> float:
    return max((e.speedup for e in variants.values()), default=0.0)
