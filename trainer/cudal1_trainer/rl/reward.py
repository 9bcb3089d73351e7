"""From scores to advantages. Numbers in, numbers out.

    score of a right reply -> (log score - mu) / sigma, clipped to 1.5    mu and sigma over the logarithms of the
                                                                          program's last right replies
    score 0, a refusal     -> -1.5, whatever the others gain
          -> within the group of one prompt    minus its mean over its deviation (GRPO),
                                               or minus the mean of the others (leave one out)

A refusal is a cost of its own: zeros among the scores made sigma so large that with 8% of them a reply that is 5%
faster was worth a sixth of a wrong one. Both deviations have a least value: in 260 of 340 groups all replies are
right, their times are within 2.7% of each other in the median, and the clock alone makes 1%. At one scale for
every group the clock's noise would teach as loudly as a wrong reply among right ones. A group without a spread
teaches nothing. None (no verdict) takes no part and gets 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

LIMIT = 1.5  # published
REFUSED = -LIMIT
LEAST_SIGMA = 0.05  # of logarithms: a reply that is 5% faster than usual is worth two thirds of the limit
LEAST_DEVIATION = 0.5  # of a group's smoothed scores
TINY = 1e-6  # a smaller deviation is rounding


def smooth(scores: Sequence[float | None], history: Sequence[float]) -> list[float | None]:
    """`history`: the program's latest scores of right replies, this group's among them."""
    logs = [math.log(s) for s in history]
    mu = fmean(logs) if logs else 0.0
    sigma = max(LEAST_SIGMA, pstdev(logs)) if logs else LEAST_SIGMA

    def value(score: float) -> float:
        return max(-LIMIT, min(LIMIT, (math.log(score) - mu) / sigma)) if score > 0.0 else REFUSED

    return [None if s is None else value(s) for s in scores]


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
