"""CUDA-L1's choice of exemplars: its statistics, its determinism, its corners."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal1_compile.generate.exemplars import ExemplarConfig, bucket_weights, choose_exemplars, split_buckets
from cudal1_compile.kernel.candidate import Exemplar

VARIANTS = [Exemplar(f"k{i}", s) for i, s in enumerate((0.53, 0.54, 0.91, 1.12, 1.13, 1.17, 1.44))]


def test_bucket_borders_are_half_open_and_buckets_as_wide_for_slow_variants_as_for_fast_ones() -> None:
    found = split_buckets([Exemplar("a", 0.5), Exemplar("b", 0.99), Exemplar("c", 1.0), Exemplar("d", 2.7)], 1.0)
    assert {k: [e.code for e in v] for k, v in found.items()} == {-1: ["a", "b"], 0: ["c", "d"]}
    for slowest in map(math.exp, (-4.4, -2.0, 0.1, 2.5)):
        near, far = (split_buckets([Exemplar("x", slowest), Exemplar("y", slowest * f)], 0.3) for f in (1.02, 1.4))
        assert len(near) == 1 and len(far) == 2
    assert len(split_buckets([Exemplar("x", 0.0), Exemplar("y", -1.0)], 0.1)) == 1


def test_first_draw_follows_the_softmax_of_centred_means() -> None:
    config = ExemplarConfig(count=1, width=0.1, tau=0.3)
    draws = Counter(choose_exemplars(VARIANTS, config, seed)[0].code for seed in range(20_000))
    speedups = {"low": (0.53, 0.54), "mid": (0.91,), "high": (1.12, 1.13, 1.17), "top": (1.44,)}
    means = {k: sum(map(math.log, some)) / len(some) for k, some in speedups.items()}
    centre = sum(means.values()) / 4
    raw = {k: math.exp((m - centre) / 0.3) for k, m in means.items()}
    share = {k: r / sum(raw.values()) for k, r in raw.items()}
    got = {
        "low": draws["k0"] + draws["k1"],
        "mid": draws["k2"],
        "high": draws["k3"] + draws["k4"] + draws["k5"],
        "top": draws["k6"],
    }
    for k, expected in share.items():
        sigma = math.sqrt(20_000 * expected * (1 - expected))
        assert abs(got[k] - 20_000 * expected) < 5 * sigma, (k, got[k], expected)
    # within a bucket the choice is uniform
    assert abs(draws["k3"] - draws["k4"]) < 5 * math.sqrt(draws["k3"] + draws["k4"])


def test_two_exemplars_never_share_a_bucket_and_stand_slowest_first() -> None:
    config = ExemplarConfig(width=0.1)
    for seed in range(500):
        first, second = choose_exemplars(VARIANTS, config, seed)
        assert math.floor(first.speedup / 0.1) < math.floor(second.speedup / 0.1)


def test_a_small_tau_takes_the_best_two_buckets() -> None:
    config = ExemplarConfig(width=0.1, tau=1e-4)
    for seed in range(50):
        codes = [e.code for e in choose_exemplars(VARIANTS, config, seed)]
        assert codes[1] == "k6"
        assert codes[0] in ("k3", "k4", "k5")


def test_one_bucket_gives_one_exemplar() -> None:
    assert len(choose_exemplars(VARIANTS[:2], ExemplarConfig(width=0.5), 3)) == 1


def test_none_and_random() -> None:
    assert choose_exemplars(VARIANTS, ExemplarConfig(choice="none"), 0) == []
    config = ExemplarConfig(choice="random", width=10.0)
    pairs = Counter(tuple(e.code for e in choose_exemplars(VARIANTS, config, s)) for s in range(2000))
    assert len(pairs) == 21  # every pair of seven, one bucket or not


def test_relatives_serve_only_where_the_region_has_none() -> None:
    relatives = [Exemplar("r", 1.5)]
    assert [e.code for e in choose_exemplars([], ExemplarConfig(), 0, relatives)] == ["r"]
    assert all(
        e.code != "r" for s in range(50) for e in choose_exemplars(VARIANTS, ExemplarConfig(), s, relatives)
    )


def test_a_bad_config_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="tau"):
        ExemplarConfig(tau=0.0)
    with pytest.raises(ValueError, match="buckets, random or none"):
        ExemplarConfig(choice="islands")  # type: ignore[arg-type]


@given(st.lists(st.floats(0.01, 500.0), min_size=1, max_size=12), st.integers(0, 2**32), st.randoms())
def test_order_of_rows_does_not_matter_and_weights_are_a_distribution(speeds, seed, shuffler) -> None:  # type: ignore[no-untyped-def]
    variants = [Exemplar(f"v{i}", s) for i, s in enumerate(speeds)]
    config = ExemplarConfig(tau=0.01)
    expected = choose_exemplars(variants, config, seed)
    shuffler.shuffle(variants)
    assert choose_exemplars(variants, config, seed) == expected
    buckets = list(split_buckets(variants, config.width).values())
    assert sum(bucket_weights(buckets, config.tau)) == pytest.approx(1.0)
    assert len(expected) == min(2, len(buckets))
