"""From paired times to a speedup that can be trusted: buckets, medians, rounding toward 1, a lower bound.

    rounds of (baseline us, candidate us) -> the ratio within each round -> 7 buckets of consecutive rounds
        -> median, rounded toward 1; the least and the largest bucket as bounds; buckets too far apart: Unstable

A ratio within a round is blind to whatever slows a whole round down: drift, another clock rate, a neighbour.
Medians are of logarithms, so that swapping the contenders turns every figure round: no rule favours the candidate.
Numbers in, numbers out: nothing here touches a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, pvariance

BUCKETS = 7  # each lies below the true median ratio with probability 1/2, so all above it with 1/128
MAX_VARIANCE = 0.005  # of the buckets' logarithms: a relative spread of 7%
SECOND_LOOK = 3.0  # a speedup above it is measured again in another process
SECOND_LOOK_AGREEMENT = 0.10


@dataclass(frozen=True, slots=True)
class Speedup:
    """Baseline over candidate."""

    value: float  # rounded toward 1
    lower_bound: float  # one-sided, 99.2% where there are as many rounds as buckets
    upper_bound: float  # likewise
    candidate_us: float
    baseline_us: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Unstable:
    """The measurement contradicts itself and counts for nothing."""

    variance: float


def compare_times(
    baseline_us: Sequence[float], candidate_us: Sequence[float], max_variance: float = MAX_VARIANCE
) -> Speedup | Unstable:
    """Times of the same rounds, in their order. Raises ValueError for times that are no times."""
    if len(baseline_us) != len(candidate_us) or not baseline_us:
        raise ValueError(f"{len(baseline_us)} baseline and {len(candidate_us)} candidate times: expected as many")
    if not all(math.isfinite(t) and t > 0 for t in (*baseline_us, *candidate_us)):
        raise ValueError("a time that is not positive and finite")
    rounds = [math.log(b) - math.log(c) for b, c in zip(baseline_us, candidate_us, strict=True)]
    logs = [median(bucket) for bucket in _split(rounds)]
    if (variance := pvariance(logs)) > max_variance:
        return Unstable(variance)
    return Speedup(
        value=round_toward_one(math.exp(median(logs))),
        lower_bound=math.exp(min(logs)),
        upper_bound=math.exp(max(logs)),
        candidate_us=median(candidate_us),
        baseline_us=median(baseline_us),
        rounds=len(rounds),
    )


def slowest(times_us: Sequence[float]) -> float:
    """What a contender takes at most: the median of its slowest bucket."""
    return max(median(bucket) for bucket in _split(times_us))


def round_toward_one(ratio: float) -> float:
    """1.118 -> 1.11, 0.992 -> 1.0, 0.913 -> 0.92."""
    hundredths = round(ratio * 100, 6)
    return (math.floor(hundredths) if ratio >= 1 else math.ceil(hundredths)) / 100


def agree(first: float, second: float) -> bool:
    """Whether a second look confirms a speedup."""
    return abs(first - second) <= SECOND_LOOK_AGREEMENT * max(first, second)


def _split(rounds: Sequence[float]) -> list[Sequence[float]]:
    """Buckets of consecutive rounds, as even as possible, fewer where there are fewer rounds."""
    count = min(BUCKETS, len(rounds))
    edges = [round(i * len(rounds) / count) for i in range(count + 1)]
    return [rounds[a:b] for a, b in pairwise(edges)]
