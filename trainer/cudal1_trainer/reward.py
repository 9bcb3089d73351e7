"""From scores to advantages. Numbers in, numbers out.

    score -> (score - mu) / sigma, clipped to 1.5     mu and sigma over the program's last scores
          -> within the group of one prompt           minus its mean over its deviation (GRPO),
                                                      or minus the mean of the others (leave one out)

A group without a spread teaches nothing. None (no verdict) takes no part and gets 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

LIMIT = 1.5  # published
TINY = 1e-6  # a smaller deviation is rounding


def smooth(scores: Sequence[float | None], history: Sequence[float]) -> list[float | None]:
    """`history`: the program's latest scores, this group's among them."""
    if not history:
        return list(scores)
    mu, sigma = fmean(history), pstdev(history)
    if sigma < TINY:
        return [None if s is None else 0.0 for s in scores]
    return [None if s is None else max(-LIMIT, min(LIMIT, (s - mu) / sigma)) for s in scores]


def group_advantages(values: Sequence[float | None]) -> list[float]:
    known = [v for v in values if v is not None]
    if len(known) < 2 or pstdev(known) < TINY:
        return [0.0] * len(values)
    mean, deviation = fmean(known), pstdev(known)
    return [0.0 if v is None else (v - mean) / deviation for v in values]


def leave_one_out(values: Sequence[float | None]) -> list[float]:
    """The baseline of a reply leaves the reply itself out, which makes the estimate unbiased."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return [0.0] * len(values)
    total, others = sum(known), len(known) - 1
    return [0.0 if v is None else v - (total - v) / others for v in values]


BASELINES = {"group": group_advantages, "leave_one_out": leave_one_out}
