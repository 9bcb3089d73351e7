"""Transposed convolutions of few outputs are right, break no rule of memory and stay in registers."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products.register_blocked_phases import PHASES
from cudal1_compile.codegen.templates import Schedule, variants
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = pytest.mark.usefixtures("built_quickly")

PROGRAMS = {
    "four taps at a step of two, a bias and tanh": (
        "d0=2 d1=33 d2=5 d3=7 d4=3 d5=10 d6=14 k0=4 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nt2 f32[d0,d4,d5,d6] = tanh(t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "one image, windows that fill their step, odd sizes": (
        "d0=33 d1=3 d2=5 d3=2 d4=6 d5=10 k0=2 k1=2",
        "in0 f32[d0,d1,d2]\nin1 f32[d0,d3,k0,k1]",
        "t0 f32[d3,d4,d5] = dot(in0[d1=(d4-k0)/2, d2=(d5-k1)/2], in1) over d0,k0,k1\nout0 f32[d3,d4,d5] = t0",
    ),
    "unequal phases, a chain before, half": (
        "d0=2 d1=32 d2=5 d3=6 d4=3 d5=10 d6=12 k0=3 k1=3",
        "in0 f16[d0,d1,d2,d3]\nin1 f16[d1,d4,k0,k1]\nin2 f16[d1]",
        "t0 f16[d0,d1,d2,d3] = add(in0, in2)\nt1 f16[d0,d1,d2,d3] = relu(t0)\n"
        "t2 f16[d0,d4,d5,d6] = dot(t1[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f16[d0,d4,d5,d6] = t2\nout1 f16[d0,d1,d2,d3] = t1",
    ),
    "five taps, padded at one end of the result": (
        "d0=3 d1=9 d2=4 d3=3 d4=2 d5=8 d6=6 k0=5 k1=5",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+2)/2, d3=(d6-k1+2)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
    "sound, steps of eight": (
        "d0=2 d1=32 d2=37 d3=296 k0=16",
        "in0 f32[d0,d1,d2]\nin1 f32[d1,k0]",
        "t0 f32[d0,d3] = dot_tf32(in0[d2=(d3-k0+4)/8], in1) over d1,k0\n"
        "t1 f32[d0,d3] = tanh(t0)\nout0 f32[d0,d3] = t1",
    ),
    "sound, steps longer than the window, bf16": (
        "d0=2 d1=5 d2=11 d3=4 d4=32 k0=2",
        "in0 bf16[d0,d1,d2]\nin1 bf16[d1,d3,k0]",
        "t0 bf16[d0,d3,d4] = dot(in0[d2=(d4-k0)/3], in1) over d1,k0\nout0 bf16[d0,d3,d4] = t0",
    ),
    "a volume": (
        "d0=1 d1=8 d2=3 d3=4 d4=3 d5=1 d6=6 d7=8 d8=6 k0=4 k1=4 k2=4",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d1,d5,k0,k1,k2]\nin2 f32[d0,d5,d6,d7,d8]",
        "t0 f32[d0,d5,d6,d7,d8] = dot(in0[d2=(d6-k0+1)/2, d3=(d7-k1+1)/2, d4=(d8-k2+1)/2], in1) over d1,k0,k1,k2\n"
        "t1 f32[d0,d5,d6,d7,d8] = add(t0, in2)\nout0 f32[d0,d5,d6,d7,d8] = t1",
    ),
    "frames that are not spread, weights with the outputs first": (
        "d0=2 d1=6 d2=3 d3=4 d4=3 d5=2 d6=3 d7=8 d8=6 k0=3 k1=4 k2=2",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d5,d1,k0,k1,k2]\nin2 f32[d5]",
        "t0 f32[d1,d5,k0,k1,k2] = mul(in1, in2)\n"
        "t1 f32[d0,d5,d6,d7,d8] = dot(in0[d2=d6-k0+1, d3=(d7-k1+1)/2, d4=(d8-k2)/2], t0) over d1,k0,k1,k2\n"
        "out0 f32[d0,d5,d6,d7,d8] = t1",
    ),
    "channels of two axes, images that are not counted": (
        "d0=?2 d1=5 d2=7 d3=5 d4=3 d5=3 d6=9 d7=7 k0=3 k1=4",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d2,d1,d5,k0,k1]\nin2 f32[d0,d3,d4]",
        "t0 f32[d0,d1,d2,d3,d4] = mul(in0, in2)\n"
        "t1 f32[d0,d5,d6,d7] = dot(t0[d3=(d6-k0+1)/2, d4=(d7-k1+1)/2], in1) over d1,d2,k0,k1\n"
        "out0 f32[d0,d5,d6,d7] = t1",
    ),
}
LEFT = {
    "weights in double that fill more than shared memory": (
        "d0=2 d1=200 d2=5 d3=6 d4=3 d5=10 d6=12 k0=4 k1=4",
        "in0 f64[d0,d1,d2,d3]\nin1 f64[d1,d4,k0,k1]",
        "t0 f64[d0,d4,d5,d6] = dot(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f64[d0,d4,d5,d6] = t0",
    ),
    "a window that slides": (
        "d0=2 d1=33 d2=9 d3=7 d4=3 d5=9 d6=7 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\nout0 f32[d0,d4,d5,d6] = t0",
    ),
    "groups": (
        "d0=2 d1=8 d2=4 d3=5 d4=7 d5=10 d6=14 k0=2 k1=2",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d1,d2,k0,k1]",
        "t0 f32[d0,d1,d5,d6] = dot(in0[d3=(d5-k0)/2, d4=(d6-k1)/2], in1) over d2,k0,k1\n"
        "out0 f32[d0,d1,d5,d6] = t0",
    ),
    "channels last": (
        "d0=2 d1=33 d2=5 d3=7 d4=3 d5=10 d6=14 k0=4 k1=4",
        "in0 f32[d0,d2,d3,d1]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d5,d6,d4] = t0",
    ),
    "many outputs": (
        "d0=2 d1=33 d2=5 d3=7 d4=9 d5=10 d6=14 k0=4 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
}


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*(PROGRAMS | LEFT)[name]))


def cell_schedules(program: Program) -> list[Schedule]:
    return [s for s in variants(program) if any(x.kind == PHASES for x in s.stages)]


def in_cells(program: Program) -> list[Variant]:
    return [v for s in cell_schedules(program) if (v := write_variant(program, s)) is not None]


QUICK = [n for n in PROGRAMS if n.startswith(("four taps", "unequal phases", "a volume", "sound, steps longer"))]


@pytest.mark.parametrize("name", slow_but(QUICK, PROGRAMS))
def test_cells_are_right(name: str) -> None:
    program = program_of(name)
    written = in_cells(program)
    candidates = {v.name: v.candidate for v in written}
    assert len(candidates) >= 2
    assert run_on_host(program, candidates) == (set(candidates), {})
    assert_no_rule_is_broken(program, written[:: len(written) - 1])


@pytest.mark.parametrize("name", LEFT)
def test_what_has_no_cells_is_left_to_others(name: str) -> None:
    assert not in_cells(program_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_registers_hold_sums_and_places(name: str) -> None:
    program = program_of(name)
    assert_registers_hold_all(program, in_cells(program))
