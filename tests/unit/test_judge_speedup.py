"""Speedups: rounding toward 1, buckets, bounds, measurements that contradict themselves."""

from __future__ import annotations

import random

import pytest

from cudal1_compile.judge.speedup import (
    BUCKETS,
    Speedup,
    Unstable,
    agree,
    compare_times,
    lower_bound,
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


def test_lower_bound_lies_among_the_ratios_and_is_repeatable() -> None:
    ratios = [1.1, 1.2, 1.15, 1.3, 1.05, 1.22, 1.18][:BUCKETS]
    assert min(ratios) <= lower_bound(ratios) <= sorted(ratios)[3]
    assert lower_bound(ratios) == lower_bound(ratios)


def test_a_second_look_must_agree_within_a_tenth() -> None:
    assert agree(4.0, 3.7)
    assert not agree(4.0, 3.5)
