"""Speedups: rounding toward 1, buckets, bounds, contradictions; over simulated clocks no bias to either side."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow_cases import slow_but

from cudal1_compile.judge.timing.speedup import (
    BUCKETS,
    Speedup,
    Unstable,
    agree,
    compare_times,
    round_toward_one,
)


@pytest.mark.parametrize(
    ("ratio", "rounded"),
    [(1.118, 1.11), (0.992, 1.0), (0.913, 0.92), (1.0, 1.0), (2.0, 2.0), (1.999, 1.99), (0.5, 0.5), (1.15, 1.15)],
)
def test_rounds_toward_one(ratio: float, rounded: float) -> None:
    assert round_toward_one(ratio) == rounded


def test_a_steady_ratio_comes_out_with_its_bound() -> None:
    rng = random.Random(3)
    baseline = [20.0 * rng.uniform(0.99, 1.01) for _ in range(70)]
    candidate = [10.0 * rng.uniform(0.99, 1.01) for _ in range(70)]
    found = compare_times(baseline, candidate)
    assert isinstance(found, Speedup)
    assert found.value == pytest.approx(2.0, abs=0.03)
    assert 1.95 < found.lower_bound <= 2.02
    assert found.rounds == 70


def test_outliers_within_buckets_do_not_move_the_median() -> None:
    candidate = [10.0] * 70
    for i in range(0, 70, 10):
        candidate[i] = 500.0
    found = compare_times([20.0] * 70, candidate)
    assert isinstance(found, Speedup)
    assert found.value == 2.0


def test_buckets_that_disagree_make_the_measurement_void() -> None:
    candidate = [10.0] * 35 + [16.0] * 35
    assert isinstance(compare_times([20.0] * 70, candidate), Unstable)


def test_noise_alone_has_a_lower_bound_below_one() -> None:
    rng = random.Random(5)
    baseline = [rng.gauss(10.0, 0.3) for _ in range(70)]
    candidate = [rng.gauss(10.0, 0.3) for _ in range(70)]
    found = compare_times(baseline, candidate)
    assert isinstance(found, Speedup)
    assert found.lower_bound <= 1.0 + 0.03
    assert found.value == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="not positive"):
        compare_times([10.0] * 9, [10.0] * 8 + [bad])


def test_unequal_counts_are_an_error() -> None:
    with pytest.raises(ValueError, match="as many"):
        compare_times([1.0], [1.0, 2.0])


def test_few_rounds_still_count() -> None:
    found = compare_times([4.0, 4.0], [2.0, 2.0])
    assert isinstance(found, Speedup)
    assert found.value == 2.0


def test_a_second_look_must_agree_within_a_tenth() -> None:
    assert agree(4.0, 3.7)
    assert not agree(4.0, 3.5)


# simulated clocks. Properties that hold for every sample need no luck; rates are counted over fixed seeds.

TIMES = st.floats(1.0, 1e4)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=BUCKETS, max_size=60)
ROUNDS = 70


@given(PAIRS)
def test_swapping_the_contenders_turns_every_figure_round(pairs: list[tuple[float, float]]) -> None:
    first, second = [b for b, _ in pairs], [c for _, c in pairs]
    one, other = compare_times(first, second), compare_times(second, first)
    assert type(one) is type(other)
    if isinstance(one, Speedup) and isinstance(other, Speedup):
        assert one.lower_bound <= 1 / other.lower_bound * (1 + 1e-9)
        assert not (one.value > 1 and other.value > 1)
        assert (one.value > 1) == (other.value < 1) or 1.0 in (one.value, other.value)


@given(PAIRS, st.data())
def test_what_slows_a_whole_round_changes_nothing(pairs: list[tuple[float, float]], data: st.DataObject) -> None:
    """Drift, a clock with two rates, a neighbour: any factor of each round."""
    slowed = data.draw(st.lists(st.floats(0.2, 5.0), min_size=len(pairs), max_size=len(pairs)))
    plain = compare_times([b for b, _ in pairs], [c for _, c in pairs])
    under = compare_times(
        [b * f for (b, _), f in zip(pairs, slowed, strict=True)],
        [c * f for (_, c), f in zip(pairs, slowed, strict=True)],
    )
    if isinstance(plain, Speedup) and isinstance(under, Speedup):
        assert under.value == pytest.approx(plain.value, abs=0.0101)
        assert under.lower_bound == pytest.approx(plain.lower_bound)


@given(st.sets(st.integers(0, 9), max_size=4), st.lists(TIMES, min_size=4, max_size=4), st.booleans())
def test_fewer_than_half_of_a_bucket_cannot_move_the_result(
    places: set[int], values: list[float], in_candidate: bool
) -> None:
    """Buckets of ten rounds, up to four outliers of any size in each, all on one side."""
    clean, spoilt = [10.0] * ROUNDS, [10.0] * ROUNDS
    for i in range(ROUNDS):
        if i % 10 in places:
            spoilt[i] = values[sorted(places).index(i % 10)]
    found = compare_times(clean, spoilt) if in_candidate else compare_times(spoilt, clean)
    assert isinstance(found, Speedup)
    assert (found.value, found.lower_bound) == (1.0, 1.0)


def _noise(rng: random.Random) -> float:
    return rng.lognormvariate(0.0, 0.02)


def _steady(rng: random.Random, _: int) -> float:
    return _noise(rng)


def _drift(rng: random.Random, i: int) -> float:
    return (1 + i / ROUNDS) * _noise(rng)


def _two_rates(rng: random.Random, i: int) -> float:
    return (1.0 if i // 5 % 2 else 1.3) * _noise(rng)


def _two_rates_a_call(rng: random.Random, _: int) -> float:
    return rng.choice((1.0, 1.02)) * rng.lognormvariate(0.0, 1e-4)


def _outliers(rng: random.Random, _: int) -> float:
    return _noise(rng) * (rng.uniform(2, 50) if rng.random() < 0.1 else 1.0)


def _coarse(rng: random.Random, _: int) -> float:
    """A clock that counts in steps as large as the noise."""
    return max(1.0, round(_noise(rng) * 20)) / 20


Simulated = Callable[[random.Random, int], float]
CLOCKS: list[Simulated] = [_steady, _drift, _two_rates, _two_rates_a_call, _outliers, _coarse]


def _wins(found: Speedup | Unstable) -> bool:
    return isinstance(found, Speedup) and found.lower_bound >= 1.0 and found.value > 1.0


def _measure(clock: Simulated, seed: int, ratio: float) -> Speedup | Unstable:
    rng = random.Random(seed)
    baseline = [20.0 * ratio * clock(rng, i) for i in range(ROUNDS)]
    return compare_times(baseline, [20.0 * clock(rng, i) for i in range(ROUNDS)])


@pytest.mark.parametrize("clock", slow_but(CLOCKS[::3], CLOCKS))
def test_of_equal_contenders_hardly_one_in_a_hundred_wins(clock: Simulated) -> None:
    wins = sum(_wins(_measure(clock, seed, 1.0)) for seed in range(1000))
    assert wins <= 16  # 1/128 of them; three standard deviations more


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_real_gain_is_seen(clock: Simulated) -> None:
    found = [_measure(clock, seed, 1.25) for seed in range(100)]
    assert sum(_wins(f) for f in found) >= 90
    values = [f.value for f in found if isinstance(f, Speedup)]
    assert 1.15 <= sorted(values)[len(values) // 2] <= 1.25
