"""Structures with sums of products at new sizes, varied now and then. A structure keeps its product in it all."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cudal1_fx_passes.errors import ProgramError
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.product_sizes import TRAINED, Most, resize_product
from cudal1_trainer.tasks.vary import vary

REDRAWS = 8


def draw_product(texts: Sequence[str], rng: random.Random, varied: float, most: Most = TRAINED) -> Program:
    """A varied structure whose product is gone, or that no size fits, is drawn anew."""
    for _ in range(REDRAWS):
        program = parse_program(rng.choice(texts))
        changed = vary(program, rng) if rng.random() < varied else program
        try:
            found = resize_product(changed if changed.has_product else program, rng, most)
        except ProgramError:
            continue
        if found.has_product:
            return found
    return canonicalise(program)
