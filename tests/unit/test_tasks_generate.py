"""Generated tasks: seeded, canonical, finite, within sizes, every family and every length."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch

from cudal1_compile.codegen.prior.traffic import bytes_moved
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.tasks import FAMILIES, generate_task, structure
from cudal1_trainer.tasks.generate import MAX_OPS
from cudal1_trainer.tasks.shapes import MAX_BYTES, MIN_BYTES


def draw(seed: int, family: str | None = None, small: bool = False, n_ops: int | None = None) -> Program:
    return generate_task(random.Random(seed), family, n_ops, small)


@pytest.mark.parametrize("family", FAMILIES)
def test_same_seed_gives_the_same_text_and_it_is_canonical(family: str) -> None:
    for seed in range(12):
        program = draw(seed, family)
        text = print_program(program)
        assert text == print_program(draw(seed, family))
        assert parse_program(text) == program
        assert print_program(canonicalise(program)) == text
        assert 1 <= len(program.ops) <= MAX_OPS
        assert MIN_BYTES <= bytes_moved(program) <= MAX_BYTES


@pytest.mark.parametrize("family", FAMILIES)
def test_small_tasks_are_finite_and_not_constant(family: str) -> None:
    constant = 0
    for seed in range(12):
        program = draw(seed, family, small=True)
        outputs = evaluate(program, make_inputs(program, "normal", seed, torch.device("cpu")), float64=True)
        for out in outputs:
            assert out.numel() > 0
            if out.is_floating_point():
                assert out.isfinite().double().mean() > 0.99, print_program(program)
        constant += all(bool((o == o.flatten()[0]).all()) and o.numel() > 1 for o in outputs)
    assert constant <= 4


def test_every_length_occurs() -> None:
    missing = set(range(1, MAX_OPS - 3))
    for seed in range(1500):  # 320 are enough today
        missing.discard(len(draw(seed).ops))
        if len(missing) <= 3:
            break
    assert len(missing) <= 3, missing


def test_half_precision_and_other_dtypes_occur() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        seen.update({i.dtype for i in draw(seed).inputs})
    for dtype in ("f32", "bf16", "f16", "bool", "i64"):
        assert seen[dtype] >= 10, seen


def test_structure_ignores_sizes_and_tells_operations_apart() -> None:
    base = "region v1\ndims d0={} d1=8\nin0 f32[d0,d1]\nt0 f32[d0,d1] = {}(in0)\nout0 f32[d0,d1] = t0\n"
    first = structure(parse_program(base.format(4, "exp")))
    assert first == structure(parse_program(base.format(64, "exp")))
    assert first != structure(parse_program(base.format(4, "tanh")))


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ValueError, match="family 'conv'"):
        draw(0, "conv")
