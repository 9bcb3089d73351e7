"""The trial on a fake clock: each call runs once, ABBA, within 28 calls; only what is proven faster runs on."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from cudal1_compile.choice import MAX_CALLS, WARMUP_CALLS, Trial, decide, lower_bound, schedule

COST_US = {"none": 100.0, "all": 80.0, "some": 90.0}


class FakeClock:
    """Time passes only where a variant says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.capturing = False
        self.blind = False

    def mark(self) -> float:
        return self.now

    def between_us(self, start: float, end: float) -> float | None:
        return None if self.blind else end - start

    def is_usable(self) -> bool:
        return not self.capturing


class Bench:
    """Variants that count their calls and take the time they are told."""

    def __init__(self, costs: dict[str, float], noise: float = 0.0) -> None:
        self.clock, self.ran, self.decided = FakeClock(), [], []
        rng = random.Random(0)

        def variant(name: str) -> Any:
            def run(x: int) -> int:
                self.ran.append(name)
                self.clock.now += costs[name] * (1 + noise * rng.random())
                return x

            return run

        self.trial = Trial({n: variant(n) for n in costs}, self.clock, lambda c, r: self.decided.append((c, r)))

    def call(self, times: int) -> None:
        for i in range(times):
            assert self.trial(i) == i


@pytest.mark.parametrize("names", [("none", "all"), ("none", "all", "some")])
def test_schedule(names: tuple[Any, ...]) -> None:
    order = schedule(names)
    assert len(order) <= MAX_CALLS
    timed = [name for name, is_timed in order if is_timed]
    assert timed[: 2 * len(names)] == [*names, *reversed(names)]
    assert all(timed.count(n) == timed.count("none") >= 6 for n in names)
    assert all(order.count((n, False)) == WARMUP_CALLS for n in names)


def test_the_fastest_wins_and_the_losers_are_dropped() -> None:
    bench = Bench(COST_US, noise=0.02)
    bench.call(MAX_CALLS + 1)
    assert [c for c, _ in bench.decided] == ["all"]
    assert bench.decided[0][1] == pytest.approx(1.25, rel=0.03)
    assert list(bench.trial.variants) == ["all"]
    assert len(bench.ran) == MAX_CALLS + 1
    bench.ran.clear()
    bench.call(5)
    assert bench.ran == ["all"] * 5


def test_a_slower_kernel_never_runs_on() -> None:
    bench = Bench({"none": 100.0, "all": 103.0, "some": 101.0})
    bench.call(MAX_CALLS + 2)
    assert bench.decided == [("none", 1.0)]
    assert bench.ran[-1] == "none"


def test_noise_alone_is_no_win() -> None:
    wins = 0
    for seed in range(200):
        rng = random.Random(seed)
        figures = {n: [100 + rng.gauss(0, 5) for _ in range(10)] for n in ("none", "all")}
        wins += decide(figures).choice != "none"
    assert wins <= 40  # one-sided 85%, so 30 of 200 are expected


def test_unread_events_are_no_evidence() -> None:
    bench = Bench(COST_US)
    bench.clock.blind = True
    bench.call(MAX_CALLS + 1)
    assert bench.decided == [("none", 1.0)]


def test_nothing_is_tried_during_a_capture() -> None:
    bench = Bench(COST_US)
    bench.clock.capturing = True
    bench.call(10)
    assert bench.ran == ["none"] * 10
    bench.clock.capturing = False
    bench.call(MAX_CALLS + 1)
    assert bench.decided[0][0] == "all"


def test_the_backward_counts() -> None:
    """Forwards alike, backwards not: the pair decides."""
    clock = FakeClock()
    cost = {"none": 50.0, "all": 80.0}

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
            ctx.name = name
            clock.now += 10
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
            clock.now += cost[ctx.name]
            return g * 2, None

    decided: list[Any] = []
    variants = {n: (lambda x, n=n: CompiledFunction.apply(x, n)) for n in cost}
    trial = Trial(variants, clock, lambda c, r: decided.append(c))  # type: ignore[arg-type]
    x = torch.ones(3, requires_grad=True)
    for _ in range(MAX_CALLS + 1):
        trial(x).sum().backward()
    assert decided == ["none"]
    cost.update(none=80.0, all=50.0)
    trial = Trial(variants, clock, lambda c, r: decided.append(c))  # type: ignore[arg-type]
    for _ in range(MAX_CALLS + 1):
        trial(x).sum().backward()
    assert decided == ["none", "all"]


@pytest.mark.parametrize("n", [4, 6, 10, 25])
def test_lower_bound_holds(n: int) -> None:
    """At most 15% of bounds lie over the true median."""
    rng = random.Random(n)
    over = sum(lower_bound(sorted(rng.lognormvariate(0, 0.1) for _ in range(n))) > 1 for _ in range(2000))
    assert over / 2000 <= 0.17
