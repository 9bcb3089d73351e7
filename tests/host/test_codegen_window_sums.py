"""Gradients of depthwise convolutions' weights, by register tiles, are right and break no rule of memory."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products.window_sums import lanes_of
from cudal1_compile.codegen.templates import variants
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Rejected
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = pytest.mark.usefixtures("built_quickly")

PROGRAMS = {
    "channels last": (
        "d0=3 d1=9 d2=10 d3=20 d4=9 d5=10 k0=3 k1=3",
        "in0 f32[d0,d4,d5,d3]\nin1 f32[d0,d1,d2,d3]",
        "t0 f32[d3,k0,k1] = dot_tf32(in1[d1=d4+k0-1, d2=d5+k1-1], in0) over d0,d4,d5\nout0 f32[d3,k0,k1] = t0",
    ),
    "strided, half, five by five": (
        "d0=2 d1=13 d2=16 d3=24 d4=7 d5=8 k0=5 k1=5",
        "in0 f16[d0,d1,d2,d3]\nin1 f16[d0,d4,d5,d3]",
        "t0 f16[d3,k0,k1] = dot(in0[d1=2*d4+k0-2, d2=2*d5+k1-2], in1) over d0,d4,d5\nout0 f16[d3,k0,k1] = t0",
    ),
    "channels outside": (
        "d0=3 d1=5 d2=9 d3=11 d4=9 d5=11 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d0,d1,d4,d5]",
        "t0 f32[d1,k0,k1] = dot(in0[d2=d4+k0-1, d3=d5+k1-1], in1) over d0,d4,d5\nout0 f32[d1,k0,k1] = t0",
    ),
    "chains before both, a sum behind": (
        "d0=2 d1=8 d2=9 d3=16 d4=8 d5=9 k0=3 k1=3",
        "in0 f32[d0,d4,d5,d3]\nin1 f32[d0,d4,d5,d3]\nin2 f32[d0,d1,d2,d3]\n"
        "in3 f32[d3]\nin4 f32[d0,d3]\nin5 f32[d3,k0,k1]",
        "t0 bool[d0,d3,d4,d5] = le(in0, 0.0)\nt1 f32[d0,d3,d4,d5] = where(t0, 0.0, in1)\n"
        "t2 f32[d0,d1,d2,d3] = sub(in2, in3)\nt3 f32[d0,d1,d2,d3] = mul(t2, in4)\nt4 f32[d0,d1,d2,d3] = tanh(t3)\n"
        "t5 f32[d3,k0,k1] = dot_tf32(t4[d1=d4+k0-1, d2=d5+k1-1], t1) over d0,d4,d5\n"
        "t6 f32[d3,k0,k1] = mul(in5, 0.01)\nt7 f32[d3,k0,k1] = add(t5, t6)\nout0 f32[d3,k0,k1] = t7",
    ),
    "a chain before a gradient that fills no strip": (
        "d0=2 d1=6 d2=7 d3=8 d4=6 d5=7 k0=3 k1=3",
        "in0 f32[d0,d4,d5,d3]\nin1 f32[d0,d1,d2,d3]\nin2 f32[d3]",
        "t0 f32[d0,d3,d4,d5] = mul(in0, in2)\nt1 f32[d0,d3,d4,d5] = sigmoid(t0)\n"
        "t2 f32[d3,k0,k1] = dot(in1[d1=d4+k0-1, d2=d5+k1-1], t1) over d0,d4,d5\nout0 f32[d3,k0,k1] = t2",
    ),
    "dilated, strided along one axis, seven by three": (
        "d0=2 d1=17 d2=15 d3=6 d4=9 d5=15 k0=7 k1=3",
        "in0 bf16[d0,d1,d2,d3]\nin1 bf16[d0,d4,d5,d3]",
        "t0 bf16[d3,k0,k1] = dot(in0[d1=2*d4+k0-3, d2=d5+2*k1-2], in1) over d0,d4,d5\nout0 bf16[d3,k0,k1] = t0",
    ),
    "one image, no padding, no vector": (
        "d0=12 d1=18 d2=5 d3=10 d4=16 k0=3 k1=3",
        "in0 f32[d0,d1,d2]\nin1 f32[d3,d4,d2]",
        "t0 f32[d2,k0,k1] = dot(in0[d0=d3+k0, d1=d4+k1], in1) over d3,d4\nout0 f32[k0,k1,d2] = t0",
    ),
    "along one axis, a long window": (
        "d0=3 d1=6 d2=35 d3=33 k0=9",
        "in0 f32[d0,d1,d2]\nin1 f32[d0,d1,d3]",
        "t0 f32[d1,k0] = dot_tf32(in0[d2=d3+k0-3], in1) over d0,d3\nout0 f32[d1,k0] = t0",
    ),
    "along one axis, a single channel": (
        "d0=3 d1=21 d2=21 k0=5",
        "in0 f32[d0,d1]\nin1 f32[d0,d2]",
        "t0 f32[k0] = dot(in0[d1=d2+k0-2], in1) over d0,d2\nout0 f32[k0] = t0",
    ),
    "in three dimensions": (
        "d0=2 d1=5 d2=6 d3=7 d4=8 d5=5 d6=6 d7=7 k0=3 k1=1 k2=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d0,d5,d6,d7,d4]",
        "t0 f32[d4,k0,k1,k2] = dot(in0[d1=d5+k0-1, d2=d6+k1, d3=d7+k2-1], in1) over d0,d5,d6,d7\n"
        "out0 f32[d4,k0,k1,k2] = t0",
    ),
    "sizes that are not known": (
        "d0=?2 d1=?9 d2=?10 d3=8 d4=?9 d5=?10 k0=3 k1=3",
        "in0 f32[d0,d4,d5,d3]\nin1 f32[d0,d1,d2,d3]",
        "t0 f32[d3,k0,k1] = dot(in1[d1=d4+k0-1, d2=d5+k1-1], in0) over d0,d4,d5\nout0 f32[d3,k0,k1] = t0",
    ),
}


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*PROGRAMS[name]))


def sums_of(program: Program) -> list[Variant]:
    found = [s for s in variants(program) if lanes_of(s.stages[0]) is not None]
    return [v for s in found if (v := write_variant(program, s)) is not None]


QUICK = [n for n in PROGRAMS if n.startswith(("channels", "strided, half", "in three", "along one axis, a s"))]


@pytest.mark.parametrize("name", slow_but(QUICK, PROGRAMS))
def test_sums_are_right(name: str) -> None:
    program = program_of(name)
    candidates = {v.name: v.candidate for v in sums_of(program)}
    assert len(candidates) >= 2
    assert run_on_host(program, candidates) == (set(candidates), {})


def test_what_lies_past_a_row_counts_nothing_though_it_is_infinite() -> None:
    """The last strip of a row reaches past it: nothing times infinity is no number."""
    names = ["channels last", "channels outside", "chains before both, a sum behind", "in three dimensions"]
    tasks = [(program, sums_of(program)[0].reply.code) for program in map(program_of, names)]
    with Judge(HOST, Limits(host_s=20.0), seed=1) as judge:
        verdicts = judge.judge_tasks(tasks)
    assert {v.stage for v in verdicts if isinstance(v, Rejected)} <= {"time"}, verdicts


@pytest.mark.parametrize("name", slow_but([*PROGRAMS][::6], [*PROGRAMS][::3]))
def test_sums_break_no_rule_of_memory(name: str) -> None:
    program = program_of(name)
    assert_no_rule_is_broken(program, sums_of(program)[::3])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROGRAMS)[:4])
def test_registers_hold_the_sums(name: str) -> None:
    program = program_of(name)
    assert_registers_hold_all(program, sums_of(program))


def test_no_thread_sums_all_places_alone() -> None:
    """On an H100 that took 38 ms where the library has 0.1."""
    dims = "d0=32 d1=56 d2=56 d3=144 d4=56 d5=56 k0=3 k1=3"
    found = variants(parse_program("region v1\ndims {}\n{}\n{}\n".format(dims, *PROGRAMS["channels last"][1:])))
    assert "direct" not in {x.kind for s in found for x in s.stages}
    best = found[0].stages[0]
    assert (best.kind, best.vector) == ("windows4x4", 4)
    assert 132 < best.splits * 144 // 16 <= 264
