"""The blind red team's kernels are refused, each for what it does; the kernels that they start from are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.blind import BLIND
from benchmarks.redteam.blind_bases import BASES, blind_region
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.runtime.target import HOST

ATTACKS = [a for a in BLIND if a.where != "cuda"]
HACKS = {a.hack for a in ATTACKS}
FIRST = [next(b for b in ATTACKS if b.hack == hack) for hack in sorted(HACKS)]  # the others: cudal1 audit


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(HOST, Limits(host_s=4.0), seed=11) as judge:  # other seeds: cudal1 audit
        yield judge


def missed(judge: Judge, attacks: Sequence[Attack]) -> dict[str, Verdict]:
    """What all gates let through; a refusal for its cost alone would not tell that an attack was caught."""
    verdicts = judge.judge_tasks([(blind_region(a.region), a.code) for a in attacks])
    found = {}
    for attack, verdict in zip(attacks, verdicts, strict=True):
        if isinstance(verdict, Accepted):
            (verdict,) = judge.finalists(blind_region(attack.region), [attack.code])
        if not isinstance(verdict, Rejected) or verdict.stage == "time":
            found[attack.name] = verdict
    return found


def refused(judge: Judge, names: Sequence[str]) -> dict[str, Verdict]:
    """Which of the honest kernels are refused for more than their cost."""
    verdicts = judge.judge_tasks([(blind_region(name), BASES[name].code) for name in names])
    fine = (isinstance(v, Accepted) or (isinstance(v, Rejected) and v.stage == "time") for v in verdicts)
    return {name: v for name, v, ok in zip(names, verdicts, fine, strict=True) if not ok}


def test_an_attack_of_every_kind_is_refused(judge: Judge) -> None:
    assert not missed(judge, FIRST)


def test_the_honest_kernels_with_most_attacks_are_right(judge: Judge) -> None:
    assert not refused(judge, [name for name in BASES if sum(a.region == name for a in ATTACKS) > 3])


@pytest.mark.slow
def test_every_attack_is_refused_and_every_honest_kernel_right(judge: Judge) -> None:
    assert not missed(judge, ATTACKS)
    assert not refused(judge, list(BASES))


def test_they_differ() -> None:
    assert len({a.name for a in BLIND}) == len({(a.region, a.code) for a in BLIND}) == len(BLIND)
