"""Convolutions of few channels over a halo tile that lies whole in shared memory are right on the host target."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products import few_channel_halo as few_channel_halo
from cudal1_compile.codegen.products.sides import FEW_CHANNEL_HALO
from cudal1_compile.codegen.templates import variants
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = pytest.mark.usefixtures("built_quickly")

PROGRAMS = {
    "images, strided, a norm of the columns behind it, more columns than a tile": (
        "d0=2 d1=3 d2=19 d3=37 d4=70 d5=10 d6=19 k0=5 k1=7",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-2, d3=2*d6+k1-3], in1) over d1,k0,k1\n"
        "t1 f32[d4] = abs(in2)\nt2 f32[d0,d4,d5,d6] = mul(t0, t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "a chain before, which reads only what lies inside": (
        "d0=2 d1=3 d2=9 d3=20 d4=10 d5=9 d6=20 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d0,d1,d2,d3]\nin2 f32[d4,d1,k0,k1]",
        "t0 f32[d0,d1,d2,d3] = maximum(in0, in1)\nt1 f32[d0,d1,d2,d3] = exp(t0)\n"
        "t2 f32[d0,d4,d5,d6] = dot_tf32(t1[d2=d5+k0-1, d3=d6+k1-1], in2) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t2",
    ),
    "a volume, one axis dilated and strided, groups": (
        "d0=2 d1=2 d2=2 d3=11 d4=9 d5=18 d6=9 d7=3 d8=9 d9=18 k0=3 k1=3 k2=3",
        "in0 f32[d0,d1,d2,d3,d4,d5]\nin1 f32[d1,d6,d2,k0,k1,k2]",
        "t0 f32[d0,d1,d6,d7,d8,d9] = dot_tf32(in0[d3=3*d7+2*k0-1, d4=d8+k1-1, d5=d9+k2-1], in1) over d2,k0,k1,k2\n"
        "out0 f32[d0,d1,d6,d7,d8,d9] = t0",
    ),
    "one volume of one channel, half": (
        "d0=7 d1=9 d2=17 d3=20 d4=7 d5=9 d6=17 k0=3 k1=3 k2=3",
        "in0 f16[d0,d1,d2]\nin1 f16[d3,k0,k1,k2]\nin2 f16[d3,d4,d5,d6]",
        "t0 f16[d3,d4,d5,d6] = dot(in0[d0=d4+k0-1, d1=d5+k1-1, d2=d6+k2-1], in1) over k0,k1,k2\n"
        "t1 f16[d3,d4,d5,d6] = add(t0, in2)\nout0 f16[d3,d4,d5,d6] = t1\nout1 f16[d3,d4,d5,d6] = t0",
    ),
    "sound, dilated, bf16": (
        "d0=2 d1=2 d2=160 d3=20 d4=73 k0=9",
        "in0 bf16[d0,d1,d2]\nin1 bf16[d3,d1,k0]",
        "t0 bf16[d0,d3,d4] = dot(in0[d2=2*d4+3*k0-5], in1) over d1,k0\nout0 bf16[d0,d3,d4] = t0",
    ),
    "channels last, dilated along both": (
        "d0=2 d1=3 d2=14 d3=19 d4=20 d5=14 d6=19 k0=3 k1=3",
        "in0 f32[d0,d2,d3,d1]\nin1 f32[d4,k0,k1,d1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+2*k0-2, d3=d6+2*k1-2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d5,d6,d4] = t0",
    ),
}


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*PROGRAMS[name]))


def few_channel_halos(program: Program) -> list[Variant]:
    found = [s for s in variants(program) if any(x.kind.endswith(FEW_CHANNEL_HALO) for x in s.stages)]
    return [v for s in found if (v := write_variant(program, s)) is not None]


QUICK = [n for n in PROGRAMS if n.startswith(("a chain before", "a volume", "sound"))]  # one to three axes, bf16


@pytest.mark.parametrize("name", slow_but(QUICK, PROGRAMS))
def test_a_halo_tile_in_shared_memory_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_channel_halo, "MIN_WORK", 1)
    monkeypatch.setattr(few_channel_halo, "MIN_TERMS", 1)
    program = program_of(name)
    written = few_channel_halos(program)
    candidates = {v.name: v.candidate for v in written}
    assert len(candidates) >= 2
    assert run_on_host(program, candidates) == (set(candidates), {})
    assert_no_rule_is_broken(program, written[:1])


@pytest.mark.parametrize(("channels", "columns", "rows"), [(9, 64, 112), (3, 160, 112), (3, 64, 28)])
def test_it_is_offered_where_it_may_be_the_fastest(channels: int, columns: int, rows: int) -> None:
    text = (
        "region v1\ndims d0=1 d1={} d2={} d3={} d4={} d5={} d6={} k0=7 k1=7\nin0 f32[d0,d1,d2,d3]\n"
        "in1 f32[d4,d1,k0,k1]\n"
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-3, d3=2*d6+k1-3], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0\n"
    )
    assert few_channel_halos(parse_program(text.format(3, 224, 224, 64, 112, 112)))
    assert not few_channel_halos(parse_program(text.format(channels, 2 * rows, 2 * rows, columns, rows, rows)))
