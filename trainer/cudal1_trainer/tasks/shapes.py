"""Sizes as real models have them: hidden widths, tokens, channels, images; and small ones for host tests."""

from __future__ import annotations

import random
from dataclasses import dataclass

HIDDEN = (
    64,
    96,
    128,
    192,
    256,
    320,
    384,
    512,
    576,
    640,
    768,
    896,
    1024,
    1152,
    1280,
    1536,
    2048,
    2560,
    3072,
    4096,
    5120,
    8192,
)
CHANNELS = (
    3,
    8,
    12,
    16,
    24,
    32,
    40,
    48,
    64,
    80,
    96,
    112,
    128,
    160,
    192,
    256,
    320,
    384,
    480,
    512,
    640,
    768,
    960,
    1024,
    1280,
    2048,
)
SPATIAL = (
    7,
    8,
    10,
    13,
    14,
    16,
    20,
    26,
    27,
    28,
    32,
    35,
    38,
    48,
    55,
    56,
    64,
    75,
    96,
    109,
    112,
    128,
    147,
    150,
    160,
    222,
    224,
)
CLASSES = (10, 11, 80, 100, 151, 365, 1000, 1001, 10000, 21841, 30522, 32000, 32128, 50257, 50304)
MIN_BYTES, MAX_BYTES = 1 << 16, 1 << 28


@dataclass(frozen=True, slots=True)
class Sizes:
    """Draws sizes; `small` keeps a whole tensor within 32768 elements, mostly far less."""

    rng: random.Random
    small: bool = False

    def elements(self) -> int:
        """How many elements the largest tensor shall have: log-uniform, most within 1 to 64 MB in float32."""
        if self.small:
            return int(2 ** self.rng.uniform(5, 12 if self.rng.random() < 0.7 else 15))
        if self.rng.random() < 0.8:
            return int(2 ** self.rng.uniform(18, 24))
        return int(2 ** self.rng.uniform(14, 25.5))

    def width(self) -> int:
        """An innermost extent: hidden size, class count, or anything."""
        if self.small:
            return self.rng.choice(
                (1 << self.rng.randint(2, 8), self.rng.randint(2, 200), 8 * self.rng.randint(1, 24))
            )
        p = self.rng.random()
        if p < 0.45:
            return self.rng.choice(HIDDEN)
        if p < 0.55:
            return self.rng.choice(CLASSES)
        if p < 0.72:
            return 8 * self.rng.randint(1, 1024)
        if p < 0.9:
            return int(2 ** self.rng.uniform(3, 13.5))
        return int(2 ** self.rng.uniform(3, 17))

    def rows(self, elements: int, width: int) -> int:
        """Rows so that the tensor has about that many elements."""
        n = max(1, elements // width)
        p = self.rng.random()
        if p < 0.5:
            return 1 << max(0, n.bit_length() - 1)
        return max(1, n - n % 8) if p < 0.75 else n

    def split(self, n: int, parts: int) -> list[int]:
        """Factors whose product is near n."""
        found = []
        for left in range(parts, 1, -1):
            share = max(1, round(n ** (1 / left) * 2 ** self.rng.uniform(-1.5, 1.5)))
            if self.rng.random() < 0.5:
                share = 1 << max(0, share.bit_length() - 1)
            share = max(2, min(share, max(2, n // 2 ** (left - 1))))
            found.append(share)
            n = max(1, n // share)
        return [*found, max(2, n)]

    def image(self) -> tuple[int, int, int, int]:
        """(batch, channels, height, width)"""
        if self.small:
            side = self.rng.choice((2, 4, 5, 7, 8, 9, 12, 24))
            batch = self.rng.randint(1, 6) if self.rng.random() < 0.7 else self.rng.randint(7, 32)
            return batch, self.rng.choice((2, 3, 4, 6, 8)), self.rng.randint(2, 12), side
        elements = self.elements()
        channels = self.rng.choice(CHANNELS)
        height = self.rng.choice(SPATIAL)
        width = height if self.rng.random() < 0.85 else self.rng.choice(SPATIAL)
        while channels * height * width > elements and height > 7:
            height, width = max(7, height // 2), max(7, width // 2)
        batch = max(1, elements // (channels * height * width))
        if self.rng.random() < 0.7:
            batch = 1 << max(0, batch.bit_length() - 1)
        return min(batch, 1024), channels, height, width
