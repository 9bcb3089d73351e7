"""What every family starts from: the numerics style of a region, its inputs, and its last casts.

A region computes either in its inputs' own dtype, or in float32 between casts, as autocast and torch's
decompositions of half-precision operations write it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from cudal1_fx_passes.program.ir import ANY, Axis, Domain
from cudal1_trainer.tasks.builder import UNIT, Builder, Interval
from cudal1_trainer.tasks.grow import Grower


@dataclass
class Region:
    """A builder with its numerics: `store` is the dtype of big tensors, `compute` that of operations."""

    b: Builder
    store: str
    compute: str
    values: list[str] = field(default_factory=list)  # float values ready for use, in the compute dtype
    masks: list[str] = field(default_factory=list)

    @property
    def rng(self) -> random.Random:
        return self.b.rng

    def tensor(
        self,
        axes: Iterable[str],
        interval: Interval = UNIT,
        dtype: str | None = None,
        domain: Domain = ANY,
        strides: tuple[int, ...] | None = None,
    ) -> str:
        """An input, cast to the compute dtype."""
        x = self.b.input(axes, dtype or self.store, interval, domain, strides)
        return self.b.cast(x, self.compute)

    def weight(self, axes: Iterable[str]) -> str:
        """A parameter or statistic: often float32 beside half-precision activations."""
        dtype = "f32" if self.compute == "f32" and self.rng.random() < 0.6 else self.store
        return self.tensor(axes, dtype=dtype)

    def statistic(self, axes: Iterable[str]) -> str:
        """A saved positive statistic (reciprocal deviation, variance), in the compute dtype."""
        return self.b.positive(axes, self.compute)

    def mask(self, axes: Iterable[str]) -> str:
        name = self.b.mask(axes)
        self.masks.append(name)
        return name

    def out(self, value: str) -> str:
        """The value as it is stored: cast back in the float32 style."""
        if self.b.dtype[value] == self.compute and self.rng.random() < 0.9:
            return self.b.cast(value, self.store)
        return value

    def grow(self, values: list[str], until: int, ends: int = 1) -> list[str]:
        return Grower(self.b, values, self.masks).grow(until, ends)

    def spread(self, values: list[str], more: int) -> str:
        """One value out of several, `more` operations later (about)."""
        return self.grow(values, len(self.b.ops) + more)[0] if more > 0 or len(values) > 1 else values[0]


def region(rng: random.Random, sizes: Iterable[int], half: float = 0.5) -> Region:
    """A region over d0, d1, ... of these sizes, in a random numerics style."""
    axes = [Axis(f"d{i}", n) for i, n in enumerate(sizes)]
    p = rng.random()
    store = "f32" if p > half else "bf16" if p > half * 0.35 else "f16"
    compute = "f32" if store == "f32" or rng.random() < 0.75 else store
    return Region(Builder(rng, axes), store, compute)


def part(rng: random.Random, total: int, parts: int) -> list[int]:
    """Splits an operation budget at random."""
    cuts = sorted(rng.randint(0, max(0, total)) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, max(0, total)], strict=True)]
