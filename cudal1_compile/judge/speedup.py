"""From paired times to a speedup that can be trusted: buckets, medians, rounding toward 1, a lower bound.

    rounds of (baseline us, candidate us) -> 7 buckets of consecutive rounds -> ratio of each
        -> median, rounded toward 1; bootstrap lower bound; a spread between buckets that is too large: Unstable

Numbers in, numbers out: nothing here touches a device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pvariance

BUCKETS = 7
MAX_VARIANCE = 0.005  # of the bucket ratios, relative to their mean squared
RESAMPLES = 400
CONFIDENCE = 0.95  # one-sided
SECOND_LOOK = 3.0  # a speedup above it is measured again in another process
SECOND_LOOK_AGREEMENT = 0.10


@dataclass(frozen=True, slots=True)
class Speedup:
    """Baseline over candidate."""

    value: float  # rounded toward 1
    lower_bound: float
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
    ratios = [median(b) / median(c) for b, c in zip(_split(baseline_us), _split(candidate_us), strict=True)]
    variance = pvariance(ratios) / fmean(ratios) ** 2
    if variance > max_variance:
        return Unstable(variance)
    return Speedup(
        value=round_toward_one(median(ratios)),
        lower_bound=lower_bound(ratios),
        candidate_us=median(candidate_us),
        baseline_us=median(baseline_us),
        rounds=len(baseline_us),
    )


def round_toward_one(ratio: float) -> float:
    """1.118 -> 1.11, 0.992 -> 1.0, 0.913 -> 0.92."""
    hundredths = round(ratio * 100, 6)
    return (math.floor(hundredths) if ratio >= 1 else math.ceil(hundredths)) / 100


def lower_bound(ratios: Sequence[float]) -> float:
    """One-sided bootstrap bound of the median ratio. Deterministic."""
    rng = random.Random(len(ratios))
    medians = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int((1 - CONFIDENCE) * RESAMPLES)]


def agree(first: float, second: float) -> bool:
    """Whether a second look confirms a speedup."""
    return abs(first - second) <= SECOND_LOOK_AGREEMENT * max(first, second)


def _split(times: Sequence[float]) -> list[Sequence[float]]:
    """Buckets of consecutive rounds, as even as possible, fewer where there are fewer rounds."""
    count = min(BUCKETS, len(times))
    edges = [round(i * len(times) / count) for i in range(count + 1)]
    return [times[a:b] for a, b in zip(edges, edges[1:], strict=False)]
