"""Register-blocked depthwise convolutions in NHWC are right, break no rule of memory and stay in registers."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products.register_blocked_nhwc import register_tile_of, shares_weights
from cudal1_compile.codegen.templates import variants
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = pytest.mark.usefixtures("built_quickly")

PROGRAMS = {
    "strided, with a bias": (
        "d0=2 d1=13 d2=15 d3=12 d4=7 d5=8 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]\nin2 f32[d3]",
        "t0 f32[d0,d3,d4,d5] = dot_tf32(in0[d1=2*d4+k0-1, d2=2*d5+k1-1], in1) over k0,k1\n"
        "t1 f32[d0,d3,d4,d5] = add(t0, in2)\nt2 f32[d0,d3,d4,d5] = relu(t1)\nout0 f32[d0,d4,d5,d3] = t2",
    ),
    "a chain before, weights and a residual of other types": (
        "d0=2 d1=9 d2=7 d3=8 d4=9 d5=7 k0=5 k1=5",
        "in0 f16[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]\nin2 f32[d0,d3]\nin3 f16[d0,d4,d5,d3]\nin4 f32[d3]",
        "t0 f32[d0,d1,d2,d3] = cast(in0)\nt1 f32[d0,d1,d2,d3] = mul(t0, in2)\nt2 f32[d0,d1,d2,d3] = add(t1, in4)\n"
        "t3 f32[d0,d1,d2,d3] = sigmoid(t2)\nt4 f32[d0,d1,d2,d3] = mul(t2, t3)\nt5 f16[d0,d1,d2,d3] = cast(t4)\n"
        "t6 f16[d3,k0,k1] = cast(in1)\n"
        "t7 f16[d0,d3,d4,d5] = dot(t5[d1=d4+k0-2, d2=d5+k1-2], t6) over k0,k1\n"
        "t8 f16[d0,d3,d4,d5] = add(t7, in3)\nout0 f16[d0,d4,d5,d3] = t8\nout1 f16[d0,d4,d5,d3] = t7",
    ),
    "the sum of two images": (
        "d0=2 d1=6 d2=9 d3=6 d4=6 d5=9 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]\nin2 f32[d0,d1,d2,d3]",
        "t0 f32[d0,d1,d2,d3] = add(in0, in2)\n"
        "t1 f32[d0,d3,d4,d5] = dot(t0[d1=d4+k0-1, d2=d5+k1-1], in1) over k0,k1\nout0 f32[d0,d4,d5,d3] = t1",
    ),
    "dilated, no vector of channels": (
        "d0=3 d1=11 d2=10 d3=5 d4=11 d5=10 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]",
        "t0 f32[d0,d3,d4,d5] = dot(in0[d1=d4+2*k0-2, d2=d5+2*k1-2], in1) over k0,k1\nout0 f32[d0,d4,d5,d3] = t0",
    ),
    "strided and dilated": (
        "d0=2 d1=13 d2=18 d3=4 d4=5 d5=8 k0=3 k1=2",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]",
        "t0 f32[d0,d3,d4,d5] = dot(in0[d1=3*d4+2*k0-3, d2=2*d5+2*k1-1], in1) over k0,k1\n"
        "out0 f32[d0,d4,d5,d3] = t0",
    ),
    "even windows, half, one image": (
        "d0=12 d1=15 d2=8 d3=12 d4=14 k0=2 k1=4",
        "in0 f16[d0,d1,d2]\nin1 f16[d2,k0,k1]",
        "t0 f16[d2,d3,d4] = dot(in0[d0=d3+k0-1, d1=d4+k1-1], in1) over k0,k1\nout0 f16[d3,d4,d2] = t0",
    ),
    "no padding, all strips whole": (
        "d0=2 d1=10 d2=18 d3=4 d4=8 d5=16 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]",
        "t0 f32[d0,d3,d4,d5] = dot(in0[d1=d4+k0, d2=d5+k1], in1) over k0,k1\nout0 f32[d0,d4,d5,d3] = t0",
    ),
    "seven by seven, bf16": (
        "d0=2 d1=14 d2=14 d3=6 d4=14 d5=14 k0=7 k1=7",
        "in0 bf16[d0,d1,d2,d3]\nin1 bf16[d3,k0,k1]",
        "t0 bf16[d0,d3,d4,d5] = dot(in0[d1=d4+k0-3, d2=d5+k1-3], in1) over k0,k1\nout0 bf16[d0,d4,d5,d3] = t0",
    ),
    "weights shared, the last channels alone": (
        "d0=2 d1=9 d2=8 d3=130 d4=5 d5=4 k0=3 k1=5",
        "in0 bf16[d0,d1,d2,d3]\nin1 bf16[d3,k0,k1]\nin2 f32[d3]",
        "t0 f32[d0,d1,d2,d3] = cast(in0)\nt1 f32[d0,d1,d2,d3] = mul(t0, in2)\nt2 f32[d0,d1,d2,d3] = relu(t1)\n"
        "t3 bf16[d0,d1,d2,d3] = cast(t2)\n"
        "t4 bf16[d0,d3,d4,d5] = dot(t3[d1=2*d4+k0-1, d2=2*d5+k1-2], in1) over k0,k1\nout0 bf16[d0,d4,d5,d3] = t4",
    ),
    "the gradient of the image": (
        "d0=2 d1=9 d2=10 d3=8 d4=11 d5=9 k0=5 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]",
        "t0 f32[d0,d3,d4,d5] = dot_tf32(in0[d1=d4-k0+1, d2=d5-k1+2], in1) over k0,k1\nout0 f32[d0,d4,d5,d3] = t0",
    ),
    "the gradient of a dilated convolution's image": (
        "d0=2 d1=9 d2=10 d3=4 d4=9 d5=10 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]",
        "t0 f32[d0,d3,d4,d5] = dot(in0[d1=d4-2*k0+2, d2=d5-2*k1+2], in1) over k0,k1\nout0 f32[d0,d4,d5,d3] = t0",
    ),
    "two results a channel": (
        "d0=2 d1=8 d2=9 d3=3 d4=2 d5=8 d6=9 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,d4,k0,k1]\nin2 f32[d3,d4]",
        "t0 f32[d0,d3,d4,d5,d6] = dot(in0[d1=d5+k0-1, d2=d6+k1-1], in1) over k0,k1\n"
        "t1 f32[d0,d3,d4,d5,d6] = add(t0, in2)\nout0 f32[d0,d5,d6,d3,d4] = t1",
    ),
    "three dimensions": (
        "d0=2 d1=5 d2=8 d3=9 d4=4 d5=3 d6=8 d7=9 k0=3 k1=3 k2=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d4,k0,k1,k2]",
        "t0 f32[d0,d4,d5,d6,d7] = dot(in0[d1=2*d5+k0-1, d2=d6+k1-1, d3=d7+k2-1], in1) over k0,k1,k2\n"
        "out0 f32[d0,d5,d6,d7,d4] = t0",
    ),
    "sizes that are not known": (
        "d0=?2 d1=?9 d2=?10 d3=8 d4=?9 d5=?10 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,k0,k1]",
        "t0 f32[d0,d3,d4,d5] = dot(in0[d1=d4+k0-1, d2=d5+k1-1], in1) over k0,k1\nout0 f32[d0,d4,d5,d3] = t0",
    ),
}


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*PROGRAMS[name]))


def register_tiles_of(program: Program) -> list[Variant]:
    """One block size of each strip and vector."""
    found = [
        s
        for s in variants(program)
        if register_tile_of(s.stages[0]) is not None
        and s.stages[0].block == (256 if shares_weights(s.stages[0]) else 128)
    ]
    return [v for s in found if (v := write_variant(program, s)) is not None]


# each type, two and three axes, a gradient
QUICK = (
    "strided, with a bias",
    "a chain before, weights and a residual of other types",
    "dilated, no vector of channels",
    "seven by seven, bf16",
    "weights shared, the last channels alone",
    "the gradient of the image",
    "three dimensions",
)


@pytest.mark.parametrize("name", slow_but(QUICK, PROGRAMS))
def test_register_tiles_are_right(name: str) -> None:
    program = program_of(name)
    candidates = {v.name: v.candidate for v in register_tiles_of(program)}
    assert len(candidates) >= 3
    assert run_on_host(program, candidates) == (set(candidates), {})


@pytest.mark.parametrize("name", slow_but([*PROGRAMS][3::6], [*PROGRAMS][::3]))
def test_register_tiles_break_no_rule_of_memory(name: str) -> None:
    program = program_of(name)
    assert_no_rule_is_broken(program, register_tiles_of(program)[::2])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROGRAMS)[1::3])
def test_registers_hold_weights_and_sums(name: str) -> None:
    program = program_of(name)
    assert_registers_hold_all(program, register_tiles_of(program)[::2])


def test_only_what_may_lie_outside_is_compared() -> None:
    codes = {
        n: register_tiles_of(program_of(n))[0].candidate.code
        for n in ("no padding, all strips whole", "two results a channel")
    }
    assert [("inside" in code) for code in codes.values()] == [False, True]


def test_weights_are_shared_where_channels_are_many() -> None:
    found = {n: [v.name for v in register_tiles_of(program_of(n)) if "shared" in v.name] for n in PROGRAMS}
    assert [n for n, names in found.items() if names] == ["weights shared, the last channels alone"]
    assert {name.split(".")[0] for names in found.values() for name in names} == {
        "product/strip1x8_shared",
        "product/strip4x4_shared",
    }


def test_each_position_is_read_once_in_vectors() -> None:
    code = next(
        v for v in register_tiles_of(program_of("strided, with a bias")) if "strip2x4.4." in v.name
    ).candidate.code
    assert code.count("(in0 +") == 1 and "vload<4>(in0 + ((g * d1 + i1) * d2 + i2) * d3 + c, a0)" in code
    assert "vload<4>(in1 + c * k0 * k1 + 4 * k, r1 + 4 * k)" in code
