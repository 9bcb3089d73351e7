"""Templates are right on products as training draws them: varied, resized, with other windows (host target)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from codegen_checks import run_on_host
from slow_cases import slow_but

from cudal1_trainer.scores.quickcheck import Unusable
from cudal1_trainer.tasks.product_sizes import Most
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import read_structures
from cudal1_trainer.tasks.variants import write_variants

TEXTS = read_structures(Path(__file__).parents[2] / "trainer" / "data" / "products.jsonl.gz")
SMALL = Most(1 << 21, 1 << 15, 1 << 19)


@pytest.mark.parametrize("seed", slow_but(range(3), range(80)))
def test_templates_are_right_on_drawn_products(seed: int) -> None:
    rng = random.Random(seed)
    drawn = (draw_product(TEXTS, rng, 0.6, SMALL) for _ in range(3))  # one in fifty has no template
    program, variants = next((p, found) for p in drawn if (found := write_variants(p, 4)))
    try:
        kernels, failures = run_on_host(program, {v.name: v.candidate for v in variants})
    except Unusable:
        return  # its values overflow: a lesson in form only
    assert failures == {} and kernels
