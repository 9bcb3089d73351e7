"""Widened tasks: canonical, as wide as regions of models, and the templates are right on them."""

from __future__ import annotations

import random

import pytest
import torch
from codegen_checks import run_on_host
from slow_cases import slow_but

from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.evaluate import evaluate, run_values
from cudal1_fx_passes.program.ir import Program
from cudal1_trainer.scores.quickcheck import Unusable
from cudal1_trainer.tasks import generate_task
from cudal1_trainer.tasks.variants import make_task, write_variants
from cudal1_trainer.tasks.widen import MAX_INPUTS, MAX_OPS, MAX_OUTPUTS, add_outputs, join, split_axis, widen

CPU = torch.device("cpu")


def _task(seed: int) -> Program:
    return canonicalise(generate_task(random.Random(seed), small=True))


def _wide(seed: int) -> Program:
    rng = random.Random(seed)
    return widen(_task(seed), rng, lambda: _task(rng.getrandbits(32)))


@pytest.mark.parametrize("seed", range(40))
def test_widened_tasks_are_canonical_and_within_limits(seed: int) -> None:
    program = _wide(seed)
    assert canonicalise(program) == program == _wide(seed)
    assert (
        len(program.ops) <= MAX_OPS and len(program.inputs) <= MAX_INPUTS and len(program.outputs) <= MAX_OUTPUTS
    )


def test_they_are_as_wide_as_regions_of_models() -> None:
    programs = []
    for seed in range(150):
        rng = random.Random(seed)
        programs.append(widen(make_task(seed), rng, lambda rng=rng: make_task(rng.getrandbits(32))))  # type: ignore[misc]
    assert sum(len(p.outputs) >= 5 for p in programs) >= 15
    assert sum(len(p.inputs) >= 8 for p in programs) >= 12
    assert sum(len({o.over for o in p.ops if o.over}) >= 2 for p in programs) >= 15


@pytest.mark.parametrize("seed", range(12))
def test_outputs_that_were_there_keep_their_values(seed: int) -> None:
    program = _task(seed)
    wide = add_outputs(program, random.Random(seed))
    inputs = make_inputs(program, "normal", 0, CPU)
    values = run_values(wide, inputs)
    for old, new in zip(evaluate(program, inputs), evaluate(wide, inputs), strict=False):
        assert torch.equal(old.nan_to_num(), new.nan_to_num())
    assert all(o.value in values for o in wide.outputs) and len(wide.outputs) > len(program.outputs)


def test_a_joined_task_reads_values_of_the_first() -> None:
    joined = 0
    for seed in range(60):
        first, second = _task(seed), _task(1000 + seed)
        try:
            both = join(first, random.Random(seed), second)
        except ValueError:
            continue
        joined += 1
        assert both.ops[: len(first.ops)] == first.ops
        assert len(both.ops) >= len(first.ops) + len(second.ops)
        assert len(both.inputs) < len(first.inputs) + len(second.inputs)
    assert joined >= 20


def test_a_split_axis_stays_split() -> None:
    more_axes = 0
    for seed in range(60):
        program = _task(seed)
        try:
            found = canonicalise(split_axis(program, random.Random(seed)))
        except ValueError:
            continue
        more_axes += len(found.axes) > len(program.axes)
    assert more_axes >= 15


@pytest.mark.parametrize("seed", slow_but(range(101, 105), range(100, 112)))
def test_templates_are_right_on_widened_tasks(seed: int) -> None:
    program = _wide(seed)
    variants = write_variants(program, 2)
    assert variants
    try:
        kernels, failures = run_on_host(program, {v.name: v.candidate for v in variants})
    except Unusable:
        return  # its values overflow: a lesson in form only
    assert failures == {} and kernels
