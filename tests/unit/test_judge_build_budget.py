"""One region's slow builds share a budget; usual builds never run into it."""

from __future__ import annotations

import pytest

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.sandbox import build_budget
from cudal1_compile.judge.sandbox.build_budget import USED_UP, USUAL_S, BuildBudget


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(build_budget.time, "monotonic", lambda: self.now)


def spend(budget: BuildBudget, clock: Clock, region: str, wanted_s: float) -> float:
    """A build that would take so long: what it was allowed, at most 20 s."""
    with budget.grant(region, 20.0) as limit_s:
        clock.now += min(limit_s, wanted_s)
        if wanted_s > limit_s:
            raise BuildError("CPU time limit exceeded")
    return limit_s


def test_usual_builds_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, clock = BuildBudget(30.0), Clock(monkeypatch)
    assert {spend(budget, clock, "a", USUAL_S) for _ in range(1000)} == {20.0}


def test_a_regions_bombs_share_and_other_regions_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, clock = BuildBudget(30.0), Clock(monkeypatch)
    took = []
    for i in range(24):
        begin = clock.now
        with pytest.raises(BuildError, match=USED_UP if i else "exceeded$"):
            spend(budget, clock, "a", 1000.0)
        took.append(clock.now - begin)
    assert took == [20.0, 14.0] + [USUAL_S] * 22
    assert spend(budget, clock, "a", 0.3) == USUAL_S
    assert spend(budget, clock, "b", 0.3) == 20.0


def test_what_fails_early_keeps_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, clock = BuildBudget(0.0), Clock(monkeypatch)
    with pytest.raises(BuildError, match="^nosuch$"), budget.grant("a", 20.0) as limit_s:
        clock.now += 0.5
        raise BuildError("nosuch")
    assert limit_s == USUAL_S


def test_builds_side_by_side_are_granted_no_more_together(monkeypatch: pytest.MonkeyPatch) -> None:
    budget, clock = BuildBudget(30.0), Clock(monkeypatch)
    with budget.grant("a", 20.0) as first, budget.grant("a", 20.0) as second, budget.grant("a", 20.0) as third:
        assert (first, second, third) == (20.0, 14.0, USUAL_S)
        clock.now += 1.0
    assert spend(budget, clock, "a", 0.3) == 20.0  # they took less than usual


def test_a_limit_below_the_usual_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with BuildBudget(30.0).grant("a", 1.0) as limit_s:
        assert limit_s == 1.0
