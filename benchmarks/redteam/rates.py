"""The judge before its three examinations: attacks, right kernels, mutants. Rows of plain data come out.

    attack_rows(judge)                     one row an attack
    honest_rows(judge, subjects, ...)      one row a kernel that witness.py found right
    mutant_rows(judge, subjects, ...)      one row a mutant that builds, with its class

`passed` means: accepted, or refused for its cost or speed only. What passes gates 1 to 5 though it must not is
judged again as a finalist (gates 5 to 8), since nothing is cached before that. A kernel is prepared (second
implementation, builds, isolated runs) in the pool's processes while the judge is busy with those before it.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TypeVar

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.classify import Different, Original, Same, Stillborn, Undecided, classify, examine
from benchmarks.redteam.mutate import Mutant, mutants
from benchmarks.redteam.second_oracle import Unsupported
from benchmarks.redteam.subjects import Subject
from benchmarks.redteam.suite import attack_suite
from benchmarks.redteam.witness import Reference, Unclear, Wrong
from cudal1_compile.errors import BuildError
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Verdict
from cudal1_compile.kernel.text import normalise
from cudal1_compile.synthesis.records import is_win
from cudal1_fx_passes.program.text import print_program

log = logging.getLogger(__name__)

HONEST = 64  # right kernels that the judge has at once
MUTANTS = 8  # of one kernel
BROODS = 8  # kernels with their mutants that the judge has at once

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict in words. stage: accepted, deferred, or the gate that refused."""

    passed: bool
    stage: str
    reason: str


@dataclass(frozen=True, slots=True)
class AttackRow:
    name: str
    hack: str
    blind: bool
    ruling: Ruling


@dataclass(frozen=True, slots=True)
class HonestRow:
    family: str
    dtype: str
    region: str
    code: str
    ruling: Ruling | None  # None: it could not be found right, and is no part of the corpus
    left_out: str = ""  # why


@dataclass(frozen=True, slots=True)
class MutantRow:
    family: str
    region: str
    category: str
    before: str
    after: str
    digest: str
    kind: str  # wrong, illegal, same, undecided
    evidence: str
    ruling: Ruling

    @property
    def different(self) -> bool:
        return self.kind in ("wrong", "illegal")


def rule(verdict: Verdict) -> Ruling:
    match verdict:
        case Accepted():
            return Ruling(True, "accepted", "")
        case Deferred(reason):
            return Ruling(True, "deferred", reason)
        case Rejected(stage, reason):
            return Ruling(stage == "time" and reason.startswith("cost"), stage, reason)
    raise AssertionError(f"{verdict} proves nothing")


def attack_rows(judge: Judge) -> list[AttackRow]:
    cases = attack_suite(judge.target.kind)
    found = judge.judge_tasks([(c.program, c.attack.code) for c in cases])
    rulings = [_of_attack(c.attack, v) for c, v in zip(cases, found, strict=True)]
    passed = [i for i, ruling in enumerate(rulings) if ruling.passed]
    finals = {i: judge.submit_finalists(cases[i].program, [cases[i].attack.code]) for i in passed}
    for i, (final,) in finals.items():
        rulings[i] = _of_finalist(cases[i].attack, final.result())
    return [AttackRow(c.attack.name, c.attack.hack, c.blind, r) for c, r in zip(cases, rulings, strict=True)]


def _of_attack(attack: Attack, verdict: Verdict) -> Ruling:
    ruling = rule(verdict)
    if ruling.passed and "time" in attack.stages and isinstance(verdict, Rejected):
        return replace(ruling, passed=False)  # slowness is what this attack is to be refused for
    return ruling


def _of_finalist(attack: Attack, verdict: Verdict) -> Ruling:
    """What is right, and only too slow, is accepted on a GPU, and never cached."""
    if attack.stages == ("time",) and isinstance(verdict, Accepted) and not is_win(verdict.proof):
        return Ruling(False, "time", f"unprofitable: {verdict.proof.speedup}x")
    return rule(verdict)


def honest_rows(
    judge: Judge, pool: Executor, subjects: Iterable[Subject], seed: int, count: int, deadline: float
) -> list[HonestRow]:
    """Until `count` right kernels are judged, or the deadline (time.monotonic) is over."""
    rows: list[HonestRow] = []
    judged: deque[tuple[Subject, str, Future[Verdict]]] = deque()
    right = 0

    def take(several: int) -> None:
        while len(judged) > several:
            subject, code, verdict = judged.popleft()
            rows.append(_honest_row(subject, code, rule(verdict.result()), ""))

    prepare = partial(_established, seed)
    for subject, found in _ahead(pool, prepare, subjects, 2 * judge.limits.build_count):
        rows += [_honest_row(subject, code, None, why) for code, why in found if why]
        codes = [code for code, why in found if not why][: count - right]
        futures = judge.submit([(subject.program, code) for code in codes])
        judged += [(subject, code, future) for code, future in zip(codes, futures, strict=True)]
        right += len(codes)
        take(HONEST)
        log.info("honest: %d of %d judged", right - len(judged), count)
        if right >= count or time.monotonic() > deadline:
            break
    take(0)
    return rows


def _established(seed: int, subject: Subject) -> tuple[Subject, list[tuple[str, str]]]:
    """Its kernels, each with the reason why it is not known to be right ("" where it is)."""
    reference = Reference(subject.program, seed)
    try:
        unverifiable = reference.is_unverifiable()
    except Unsupported as error:
        return subject, [(code, f"unsupported: {error}") for code in subject.codes]
    return subject, [(code, _why_left_out(reference, code, unverifiable)) for code in subject.codes]


def _why_left_out(reference: Reference, code: str, unverifiable: bool) -> str:
    try:
        found = examine(reference, code)
    except BuildError as error:
        return f"does not build: {error}"
    match found:
        case Wrong(evidence) | Unclear(evidence):
            return f"not shown to be right: {evidence}"
        case Original():
            return "its output can be had without work, within the bound" if unverifiable else ""


def _honest_row(subject: Subject, code: str, ruling: Ruling | None, why: str) -> HonestRow:
    return HonestRow(subject.family, subject.dtype, print_program(subject.program), code, ruling, why)


@dataclass(frozen=True)
class _Brood:
    """A right kernel and its mutants that build."""

    subject: Subject
    code: str
    mutants: list[tuple[Mutant, Same | Different | Undecided]]


def mutant_rows(
    judge: Judge, pool: Executor, subjects: Iterable[Subject], seed: int, count: int, deadline: float
) -> tuple[list[MutantRow], int]:
    """Until `count` mutants that are not equivalent are judged, or the deadline; and how many kernels they are of.

    A kernel that the judge itself refuses has no mutants here: refusing them would prove nothing.
    """
    rows: list[MutantRow] = []
    kernels = 0
    judged: deque[tuple[_Brood, list[Future[Verdict]]]] = deque()

    def take(several: int) -> None:
        nonlocal kernels
        while len(judged) > several:
            found = _settle_brood(judge, *judged.popleft())
            rows.extend(found)
            kernels += bool(found)
            log.info("mutants: %d judged, of %d kernels", sum(r.different for r in rows), kernels)

    prepare = partial(_brood, seed, MUTANTS)
    for brood in _ahead(pool, prepare, _jobs(subjects), 2 * judge.limits.build_count):
        if brood.mutants:
            codes = [brood.code, *(m.code for m, _ in brood.mutants)]
            judged.append((brood, judge.submit([(brood.subject.program, code) for code in codes])))
        take(BROODS)
        if sum(r.different for r in rows) >= count or time.monotonic() > deadline:
            break
    take(0)
    return rows, kernels


def _jobs(subjects: Iterable[Subject]) -> Iterator[tuple[Subject, str, int]]:
    """Every hand-written kernel, and one of each other program."""
    number = 0
    for subject in subjects:
        for code in subject.codes if subject.family == "hand-written" else subject.codes[:1]:
            yield subject, code, number
            number += 1


def _brood(seed: int, several: int, job: tuple[Subject, str, int]) -> _Brood:
    subject, code, number = job
    reference = Reference(subject.program, seed)
    brood = _Brood(subject, code, [])
    try:
        if reference.is_unverifiable() or not isinstance(original := examine(reference, code), Original):
            return brood
    except (Unsupported, BuildError) as error:
        log.info("no mutants of a kernel: %s", error)
        return brood
    for mutant in mutants(subject.program, code, random.Random(f"{seed} {number}"), several):
        found = classify(original, mutant)
        if not isinstance(found, Stillborn):
            brood.mutants.append((mutant, found))
    return brood


def _settle_brood(judge: Judge, brood: _Brood, verdicts: Sequence[Future[Verdict]]) -> list[MutantRow]:
    first, *others = (rule(v.result()) for v in verdicts)
    if not first.passed:
        log.info("no mutants of a kernel that is refused: %s", first.reason)
        return []
    return [_mutant_row(judge, brood, m, c, r) for (m, c), r in zip(brood.mutants, others, strict=True)]


def _mutant_row(
    judge: Judge, brood: _Brood, mutant: Mutant, found: Same | Different | Undecided, ruling: Ruling
) -> MutantRow:
    match found:
        case Different(kind, evidence):
            pass
        case Same(evidence):
            kind = "same"
        case Undecided(evidence):
            kind = "undecided"
    text = print_program(brood.subject.program)
    if kind in ("wrong", "illegal") and ruling.passed:
        ruling = rule(judge.finalists(brood.subject.program, [mutant.code])[0])
    digest = sha256((text + normalise(mutant.code)).encode()).hexdigest()[:16]
    return MutantRow(
        brood.subject.family, text, mutant.category, mutant.before, mutant.after, digest, kind, evidence, ruling
    )


def _ahead(pool: Executor, work: Callable[[T], R], items: Iterable[T], depth: int) -> Iterator[R]:
    """Results in order; up to `depth` items are worked on ahead. What is not asked for any more is cancelled."""
    source = iter(items)
    waiting: deque[Future[R]] = deque(pool.submit(work, item) for item in islice(source, depth))
    try:
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, item) for item in islice(source, 1))
    finally:
        for future in waiting:
            future.cancel()


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95% interval of a share."""
    if n == 0:
        return 0.0, 1.0
    z, p = 1.959964, hits / n
    middle, half = p + z * z / (2 * n), z * ((p * (1 - p) + z * z / (4 * n)) / n) ** 0.5
    return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))


def by(rows: Sequence[T], key: Callable[[T], str], hit: Callable[[T], bool]) -> dict[str, tuple[int, int]]:
    """Category -> (rows, hits)."""
    found: dict[str, tuple[int, int]] = {}
    for row in rows:
        n, hits = found.get(key(row), (0, 0))
        found[key(row)] = n + 1, hits + hit(row)
    return dict(sorted(found.items()))
