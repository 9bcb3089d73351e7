"""A maker of chunks for tests of the loop. It imports no torch: a feed's process starts in 0.3 s instead of 8."""

from __future__ import annotations

import random
from dataclasses import dataclass

from cudal1_trainer.data.loader import Batch, Row, pack


@dataclass(frozen=True)
class Copies:
    """Replies that repeat their prompt: learnable, and never the same chunk twice."""

    def __call__(self, index: int) -> list[Batch]:
        rng = random.Random(index)
        rows = []
        for _ in range(64):
            word = [rng.randrange(10, 20) for _ in range(4)]
            rows.append(Row([1, *word, 2, *word, *word, 3], 6))
        return pack(rows, 512, rng)
