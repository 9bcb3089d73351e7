"""Products whose results are handed out along columns store four at once where four divide them, and are right."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products.sides import BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D, RAW, WARP_GROUPS
from cudal1_compile.codegen.stages.schedule import Schedule
from cudal1_compile.codegen.stages.stage import cut_stages
from cudal1_compile.codegen.strategies import stage_schedules
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = pytest.mark.usefixtures("built_quickly")

IMAGES = "d0=2 d1=5 d2=9 d3=32 d4=5 d5=9 d6={} k0=3 k1=3"
READ = "in0[d1=d4+k0-1, d2=d5+k1-1], in1) over d3,k0,k1"
PROGRAMS = {
    "rows and columns that end within a tile": (
        IMAGES.format(72),
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d6,d3,k0,k1]",
        f"t0 f32[d0,d4,d5,d6] = dot_tf32({READ}\nout0 f32[d0,d4,d5,d6] = t0",
    ),
    "a norm of the columns, a bias, a residual, a gate of the rows, two outputs": (
        IMAGES.format(40),
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d6,d3,k0,k1]\nin2 f32[d6]\nin3 f32[d6]\nin4 f32[d0,d4,d5,d6]\n"
        "in5 f32[d0,d4,d5]",
        f"t0 f32[d0,d4,d5,d6] = dot_tf32({READ}\nt1 f32[d6] = abs(in2)\nt2 f32[d0,d4,d5,d6] = mul(t0, t1)\n"
        "t3 f32[d0,d4,d5,d6] = add(t2, in3)\nt4 f32[d0,d4,d5,d6] = add(t3, in4)\n"
        "t5 f32[d0,d4,d5,d6] = mul(t4, in5)\nout0 f32[d0,d4,d5,d6] = t5\nout1 f32[d0,d4,d5,d6] = t2",
    ),
    "half, a bias, a residual of floats": (
        IMAGES.format(68),
        "in0 f16[d0,d1,d2,d3]\nin1 f16[d6,d3,k0,k1]\nin2 f16[d6]\nin3 f32[d0,d4,d5,d6]",
        f"t0 f16[d0,d4,d5,d6] = dot({READ}\nt1 f16[d0,d4,d5,d6] = add(t0, in2)\n"
        "t2 f32[d0,d4,d5,d6] = add(t1, in3)\nt3 f16[d0,d4,d5,d6] = cast(t2)\nout0 f16[d0,d4,d5,d6] = t3",
    ),
    "positions along the columns, a mask": (
        IMAGES.format(40),
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d6,d3,k0,k1]",
        f"t0 f32[d0,d4,d5,d6] = dot_tf32({READ}\nt1 i64[d6] = iota() along d6\nt2 f32[d6] = cast(t1)\n"
        "t3 f32[d0,d4,d5,d6] = mul(t0, t2)\nt4 bool[d0,d4,d5,d6] = gt(t0, 0.0)\n"
        "out0 f32[d0,d4,d5,d6] = t3\nout1 bool[d0,d4,d5,d6] = t4",
    ),
    "transposed, a residual": (
        "d0=2 d1=6 d2=5 d3=32 d4=12 d5=10 d6=40 k0=4 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,d6,k0,k1]\nin2 f32[d0,d4,d5,d6]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=(d4-k0+1)/2, d2=(d5-k1+1)/2], in1) over d3,k0,k1\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nout0 f32[d0,d4,d5,d6] = t1",
    ),
    "transposed": (
        "d0=2 d1=6 d2=5 d3=32 d4=12 d5=10 d6=40 k0=4 k1=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d3,d6,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d1=(d4-k0+1)/2, d2=(d5-k1+1)/2], in1) over d3,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
    "groups, a residual in rows of their own": (
        "d0=2 d1=9 d2=11 d3=2 d4=32 d5=9 d6=11 d7=36 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d3,d7,d4,k0,k1]\nin2 f32[d0,d5,d6,d3,d7] strides(10560,880,80,40,1)",
        "t0 f32[d0,d3,d5,d6,d7] = dot_tf32(in0[d1=d5+k0-1, d2=d6+k1-1], in1) over d4,k0,k1\n"
        "t1 f32[d0,d3,d5,d6,d7] = add(t0, in2)\nout0 f32[d0,d5,d6,d3,d7] = t1",
    ),
    "a matrix product, a bias, columns of two axes": (
        "d0=130 d1=264 d2=9 d3=12",
        "in0 f32[d0,d1]\nin1 f32[d2,d3,d1]\nin2 f32[d3]\nin3 f32[d0,d2,d3]",
        "t0 f32[d0,d2,d3] = dot_tf32(in0, in1) over d1\nt1 f32[d0,d2,d3] = add(t0, in2)\n"
        "t2 f32[d0,d2,d3] = mul(t1, in3)\nout0 f32[d0,d2,d3] = t2",
    ),
}
BY_ONE = {  # what no vector divides, or lies otherwise
    "columns": ("d6=70", "in2 f32[d0,d4,d5,d6]"),
    "a residual's rows": ("d6=72", "in2 f32[d0,d4,d5,d6] strides(75776,4736,74,1)"),
    "a residual of the other order": ("d6=72", "in2 f32[d0,d6,d4,d5]"),
}
FORMS = {
    "transposed": (WARP_GROUPS, BULK_COPY, IMPLICIT_GEMM),
    "a matrix": (RAW + WARP_GROUPS,),
    "groups": (WARP_GROUPS, IMPLICIT_GEMM),
}
CASES = [
    (name, form)
    for name in PROGRAMS
    for form in next(
        (f for begin, f in FORMS.items() if name.startswith(begin)), (WARP_GROUPS, BULK_COPY, IMPLICIT_GEMM)
    )
]


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*PROGRAMS[name]))


def along(program: Program, form: str) -> list[Variant]:
    plan = cut_stages(program)
    assert plan is not None and len(plan.stages) == 1
    found = [x for x in stage_schedules(plan.stages[0]) if x.kind.endswith(form)]
    written = [write_variant(program, Schedule("split" if x.splits > 1 else "product", (x,))) for x in found]
    return [v for v in written if v is not None]


def chosen(variants: list[Variant], at: int) -> list[Variant]:
    """One whose sums are whole, in turn, and one whose sums are cut."""
    whole = [v for v in variants if v.strategy == "product"]
    return [whole[at % len(whole)]] + [v for v in variants if v.strategy == "split"][:1]


NUMBERED = [(at, *case) for at, case in enumerate(CASES)]


@pytest.mark.parametrize(("at", "name", "form"), slow_but(NUMBERED[::2], NUMBERED))
def test_four_columns_at_once_are_right(at: int, name: str, form: str) -> None:
    program = program_of(name)
    written = along(program, form)
    candidates = {v.name: v.candidate for v in chosen(written, at)}
    assert all("(&t0)[4]" in v.reply.code and "vstore<4>(" in v.reply.code for v in written)
    assert run_on_host(program, candidates) == (set(candidates), {})


@pytest.mark.parametrize(("name", "form"), slow_but(CASES[4:13:4], CASES[::4]))
def test_four_columns_at_once_break_no_rule_of_memory(name: str, form: str) -> None:
    program = program_of(name)
    assert_no_rule_is_broken(program, along(program, form)[:1])


@pytest.mark.parametrize("form", [WARP_GROUPS, BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D])
@pytest.mark.parametrize("why", BY_ONE)
def test_others_are_stored_one_by_one(why: str, form: str) -> None:
    size, residual = BY_ONE[why]
    program = parse_program(
        f"region v1\ndims d0=2 d1=16 d2=64 d3=32 d4=16 d5=64 {size} k0=3 k1=3\nin0 f32[d0,d1,d2,d3]\n"
        f"in1 f32[d6,d3,k0,k1]\n{residual}\nt0 f32[d0,d4,d5,d6] = dot_tf32({READ}\n"
        "t1 f32[d0,d4,d5,d6] = add(t0, in2)\nout0 f32[d0,d4,d5,d6] = t1\n"
    )
    written = [v for v in along(program, form) if v.strategy == "product"]
    assert written and all("float t0)" in v.reply.code for v in written)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(PROGRAMS)[1:3])
def test_registers_hold_the_rows_on_their_way(name: str) -> None:
    program = program_of(name)
    assert_registers_hold_all(
        program, [v for form in (WARP_GROUPS, IMPLICIT_GEMM) for v in chosen(along(program, form), 1)]
    )
