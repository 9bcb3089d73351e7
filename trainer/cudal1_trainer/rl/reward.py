"""From scores to advantages. Numbers in, numbers out.

    score -> (score - mu) / sigma, clipped to 1.5     mu and sigma over the program's last scores
          -> within the group of one prompt           minus its mean over its deviation (GRPO),
                                                      or minus the mean of the others (leave one out)

Both deviations have a least value: in 260 of 340 groups all replies are right, their times are within 2.7% of each
other in the median, and the clock alone makes 1%. At one scale for every group the clock's noise would teach as
loudly as a wrong reply among right ones. A group without a spread teaches nothing. None (no verdict) takes no part
and gets 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

LIMIT = 1.5  # published
LEAST_SIGMA = 0.1  # of the mean score
LEAST_DEVIATION = 0.5  # of a group's smoothed scores
TINY = 1e-6  # a smaller deviation is rounding


def smooth(scores: Sequence[float | None], history: Sequence[float]) -> list[float | None]:
    """`history`: the program's latest scores, this group's among them."""
    if not history:
        return list(scores)
    mu, sigma = fmean(history), pstdev(history)
    if sigma < TINY:
        return [None if s is None else 0.0 for s in scores]
    sigma = max(sigma, LEAST_SIGMA * mu)
    return [None if s is None else max(-LIMIT, min(LIMIT, (s - mu) / sigma)) for s in scores]


def group_advantages(values: Sequence[float | None]) -> list[float]:
    known = [v for v in values if v is not None]
    if len(known) < 2 or pstdev(known) < TINY:
        return [0.0] * len(values)
    mean, deviation = fmean(known), max(pstdev(known), LEAST_DEVIATION)
    return [0.0 if v is None else (v - mean) / deviation for v in values]


def leave_one_out(values: Sequence[float | None]) -> list[float]:
    """The baseline of a reply leaves the reply itself out, which makes the estimate unbiased."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return [0.0] * len(values)
    total, others = sum(known), len(known) - 1
    return [0.0 if v is None else v - (total - v) / others for v in values]


BASELINES = {"group": group_advantages, "leave_one_out": leave_one_out}
