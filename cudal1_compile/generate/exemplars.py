"""Which earlier variants a prompt shows.

`buckets` is CUDA-L1's choice: variants fall into score buckets [k*width, (k+1)*width); a bucket is drawn
with probability proportional to exp((mean of i - mean of all bucket means) / tau); `count` DISTINCT
buckets, then one variant uniformly from each. Distinct buckets give a visible gap, the softmax keeps the
variants competitive. Width and tau are not published; the values here are this project's own. Scores are
logarithms of speedups here, so that a gap of 10% is one whatever the baseline.
`random` draws uniformly, `none` shows nothing; both exist to be measured against. Where designs are shown, of
which a prompt holds many, the buckets go round until there are enough.

Only right variants come in: the caller filters. Nothing is stored here, and equal seeds choose equally.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cudal1_compile.kernel.candidate import Exemplar

Choice = Literal["buckets", "random", "none"]
LEAST = 1e-3  # a speedup below is as bad as it
DESIGNS = 16  # shown in the place of two kernels, which take as many tokens as all of them


@dataclass(frozen=True, slots=True)
class ExemplarConfig:
    choice: Choice = "buckets"
    count: int = 2  # exemplars a prompt
    width: float = 0.1  # of a score bucket: 10%
    tau: float = 0.25  # temperature of the softmax over bucket means; larger is more uniform

    def __post_init__(self) -> None:
        if self.choice not in ("buckets", "random", "none"):
            raise ValueError(f"choice={self.choice!r}: must be buckets, random or none")
        if self.count < 1 or self.width <= 0 or self.tau <= 0:
            raise ValueError(f"{self}: count, width and tau must be positive")


def choose_exemplars(
    variants: Sequence[Exemplar], config: ExemplarConfig, seed: int, relatives: Sequence[Exemplar] = ()
) -> list[Exemplar]:
    """At most `config.count` variants, slowest first; from `relatives` where the region has none itself."""
    pool = list(variants) or list(relatives)
    if config.choice == "none" or not pool:
        return []
    rng = random.Random(seed)
    pool.sort(key=lambda e: (e.speedup, e.code))  # the order in which a store returns rows must not matter
    if config.choice == "random":
        chosen = rng.sample(pool, min(config.count, len(pool)))
    else:
        chosen = _choose_from_buckets(pool, config, rng)
        while config.count >= DESIGNS and len(chosen) < min(config.count, len(pool)):
            left = replace(config, count=config.count - len(chosen))
            chosen += _choose_from_buckets([v for v in pool if v not in chosen], left, rng)
    return sorted(chosen, key=lambda e: (e.speedup, e.code))


def split_buckets(variants: Sequence[Exemplar], width: float) -> dict[int, list[Exemplar]]:
    """Bucket k holds the variants with k*width <= log speedup < (k+1)*width."""
    buckets: dict[int, list[Exemplar]] = {}
    for variant in variants:
        buckets.setdefault(math.floor(_score(variant) / width), []).append(variant)
    return buckets


def _score(variant: Exemplar) -> float:
    return math.log(max(variant.speedup, LEAST))


def bucket_weights(buckets: Sequence[Sequence[Exemplar]], tau: float) -> list[float]:
    """Softmax over the centred means of the buckets; sums to 1."""
    means = [sum(map(_score, b)) / len(b) for b in buckets]
    centre = sum(means) / len(means)
    top = max(means) - centre  # subtracted so that exp cannot overflow; it cancels in the quotient
    raw = [math.exp((m - centre - top) / tau) for m in means]
    total = sum(raw)
    return [r / total for r in raw]


def _choose_from_buckets(pool: list[Exemplar], config: ExemplarConfig, rng: random.Random) -> list[Exemplar]:
    found = split_buckets(pool, config.width)
    buckets = [found[k] for k in sorted(found)]
    weights = bucket_weights(buckets, config.tau)
    left = list(range(len(buckets)))
    chosen: list[Exemplar] = []
    while left and len(chosen) < config.count:
        # the distribution is that of all buckets, restricted to those not drawn yet
        at = _draw(left, weights, rng)
        left.remove(at)
        chosen.append(rng.choice(buckets[at]))
    return chosen


def _draw(left: Sequence[int], weights: Sequence[float], rng: random.Random) -> int:
    """One of `left`; the last, which is the fastest, where all their weights have underflowed to zero."""
    rest = [weights[i] for i in left]
    return rng.choices(left, rest)[0] if any(rest) else left[-1]
