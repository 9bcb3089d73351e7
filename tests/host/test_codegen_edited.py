"""Edited kernels build for sm_90a and are right on the host target.

A failure names the program by its family and seed, its schedule and its edits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
from codegen_checks import run_on_host
from slow_cases import slow_but
from toolchain import has_nvrtc

from cudal1_compile.codegen.edits import Edit, apply, draw_edits, print_edits
from cudal1_compile.codegen.edits.edit import KERNEL_VALUES, STAGE_VALUES
from cudal1_compile.codegen.stages.schedule import Schedule, parse_schedule, print_schedule
from cudal1_compile.codegen.templates import variants
from cudal1_compile.kernel.candidate import Reply, parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.tasks import generate_task

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("built_quickly")]

EDITS = 4  # of one kernel
SEEDS = range(3)

MATMUL = """region v1
dims d0=300 d1=128 d2=200
in0 {dtype}[d0,d1]
in1 {dtype}[d2,d1]
in2 f32[d2]
t0 {dtype}[d0,d2] = {dot}(in0, in1) over d1
t1 f32[d0,d2] = cast(t0)
t2 f32[d0,d2] = add(t1, in2)
out0 f32[d0,d2] = t2
"""
NORM = """region v1
dims d0=33 d1=1536
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0] = var(in0, 0.0) over d1
t3 f32[d0,d1] = mul(t1, t2)
t4 f32[d0,d1] = mul(t3, in1)
out0 f32[d0,d1] = t4
"""
CHAIN = """region v1
dims d0=61 d1=1032
in0 f32[d0,d1]
in1 f32[d1]
in2 bf16[d0,d1]
t0 f32[d0,d1] = cast(in2)
t1 f32[d0,d1] = add(in0, in1)
t2 f32[d0,d1] = tanh(t1)
t3 f32[d0,d1] = mul(t2, t0)
out0 f32[d0,d1] = t3
out1 bf16[d0,d1] = t0
"""
WHOLE = {
    "half tiles ahead": (MATMUL.format(dtype="bf16", dot="dot"), "product/bf16_pipe.1.128.t64x32x64"),
    "warp groups": (MATMUL.format(dtype="f16", dot="dot"), "product/f16_wide.1.128.t64x64x64"),
    "bulk copies": (MATMUL.format(dtype="f32", dot="dot_tf32"), "product/tf32_bulk.1.160.t64x64x32"),
    "rows in registers": (NORM, "grouped/block.4.128.r"),
    "rows read again": (NORM, "grouped/block.4.128"),
    "vectors": (CHAIN, "pointwise/exact.4.128"),
    "rows of vectors": (CHAIN, "pointwise/rows.4.128"),
    "a walk": (CHAIN, "pointwise/stride.4.128"),
}
DRAWN = ("rows", "totals", "mixed", "images", "scan", "joined")


def _subjects() -> Iterator[tuple[str, Program, Schedule]]:
    for name, (text, schedule) in WHOLE.items():
        yield name, parse_program(text), parse_schedule(schedule)
    for family in DRAWN:
        rng = random.Random(7)
        program = generate_task(rng, family, small=True)
        yield f"{family} 7", program, rng.choice(variants(program))


SUBJECTS = {name: (program, schedule) for name, program, schedule in _subjects()}


@cache
def _drawn(name: str, seed: int) -> tuple[Edit, ...]:
    return draw_edits(*SUBJECTS[name], random.Random(f"{name} {seed}"), EDITS)


@pytest.mark.parametrize("seed", slow_but(SEEDS[:1], SEEDS))
@pytest.mark.parametrize("name", SUBJECTS)
def test_edited_kernels_build_and_are_right(name: str, seed: int) -> None:
    (program, schedule), edits = SUBJECTS[name], _drawn(name, seed)
    reply = apply(program, schedule, edits)
    assert isinstance(reply, Reply) and edits, reply
    candidate = parse_candidate(reply.code, program)
    said = f"{print_schedule(schedule)}\n{print_edits(edits)}\n{reply.code}"
    right, failures = run_on_host(program, {"edited": candidate})
    assert right == {"edited"}, f"{failures}\n{said}"
    if has_nvrtc():
        assert build(program, candidate, H100).kernels, said


@pytest.mark.parametrize("knob", [*STAGE_VALUES, *KERNEL_VALUES])
def test_each_knob_is_drawn_for_two_programs(knob: str) -> None:
    found = {name for name in SUBJECTS for seed in SEEDS if knob in {e.knob for e in _drawn(name, seed)}}
    assert len(found) > 1, found
