"""Products whose operands are packed into planes and copied in bulk are right on the host target."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.products.sides import BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D
from cudal1_compile.codegen.stages.schedule import Schedule
from cudal1_compile.codegen.stages.stage import cut_stages
from cudal1_compile.codegen.strategies import stage_schedules
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = pytest.mark.usefixtures("built_quickly")

PROGRAMS = {
    "images, chains before and behind, a norm of the columns, channels that fill no step": (
        "d0=2 d1=20 d2=9 d3=11 d4=70 d5=9 d6=11 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]\nin3 f32[d0,d4,d5,d6]",
        "t0 f32[d0,d1,d2,d3] = exp(in0)\n"
        "t1 f32[d0,d4,d5,d6] = dot_tf32(t0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "t2 f32[d4] = abs(in2)\nt3 f32[d0,d4,d5,d6] = mul(t1, t2)\nt4 f32[d0,d4,d5,d6] = add(t3, in3)\n"
        "out0 f32[d0,d4,d5,d6] = t4",
    ),
    "channels last, no padding, dilated along one axis": (
        "d0=2 d1=32 d2=12 d3=10 d4=40 d5=8 d6=8 k0=3 k1=3",
        "in0 f32[d0,d2,d3,d1]\nin1 f32[d4,k0,k1,d1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+2*k0, d3=d6+k1], in1) over d1,k0,k1\nout0 f32[d0,d5,d6,d4] = t0",
    ),
    "a volume with more padding at its ends than results, groups": (
        "d0=2 d1=2 d2=16 d3=5 d4=6 d5=4 d6=18 d7=6 d8=6 d9=4 k0=4 k1=3 k2=3",
        "in0 f32[d0,d1,d2,d3,d4,d5]\nin1 f32[d1,d6,d2,k0,k1,k2]",
        "t0 f32[d0,d1,d6,d7,d8,d9] = dot_tf32(in0[d3=d7+k0-2, d4=d8+k1-1, d5=d9+k2-1], in1) over d2,k0,k1,k2\n"
        "out0 f32[d0,d1,d6,d7,d8,d9] = t0",
    ),
    "the gradient of an image, half": (
        "d0=2 d1=24 d2=13 d3=40 d4=13 k0=5",
        "in0 f16[d0,d1,d2]\nin1 f16[d1,d3,k0]",
        "t0 f16[d0,d3,d4] = dot(in0[d2=d4-k0+2], in1) over d1,k0\nout0 f16[d0,d3,d4] = t0",
    ),
    "transposed, windows of two steps and of one": (
        "d0=2 d1=32 d2=6 d3=5 d4=40 d5=12 d6=10 k0=4 k1=2",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d4,d5,d6] = t0",
    ),
    "strides of two and three, a norm of the columns, no padding along one": (
        "d0=2 d1=20 d2=13 d3=15 d4=70 d5=7 d6=5 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\nin2 f32[d4]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=2*d5+k0-1, d3=3*d6+k1], in1) over d1,k0,k1\n"
        "t1 f32[d4] = abs(in2)\nt2 f32[d0,d4,d5,d6] = mul(t0, t1)\nout0 f32[d0,d4,d5,d6] = t2",
    ),
    "a volume, strides along two of its axes, a long window": (
        "d0=2 d1=32 d2=3 d3=12 d4=11 d5=24 d6=3 d7=6 d8=6 k0=3 k1=4 k2=5",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d5,d1,k0,k1,k2]",
        "t0 f32[d0,d5,d6,d7,d8] = dot_tf32(in0[d2=d6+k0-1, d3=2*d7+k1-1, d4=2*d8+k2-2], in1) over d1,k0,k1,k2\n"
        "out0 f32[d0,d5,d6,d7,d8] = t0",
    ),
    "one axis, a stride of two, half, a chain before": (
        "d0=3 d1=40 d2=37 d3=70 d4=19 k0=5",
        "in0 f16[d0,d1,d2]\nin1 f16[d3,d1,k0]",
        "t0 f16[d0,d1,d2] = relu(in0)\n"
        "t1 f16[d0,d3,d4] = dot(t0[d2=2*d4+k0-2], in1) over d1,k0\nout0 f16[d0,d3,d4] = t1",
    ),
    "a wide volume, strides of two, windows of several lengths": (
        "d0=1 d1=16 d2=3 d3=15 d4=64 d5=16 d6=2 d7=8 d8=32 k0=3 k1=3 k2=4",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d5,d1,k0,k1,k2]",
        "t0 f32[d0,d5,d6,d7,d8] = dot_tf32(in0[d2=2*d6+k0-1, d3=2*d7+k1-1, d4=2*d8+k2-1], in1) over d1,k0,k1,k2\n"
        "out0 f32[d0,d5,d6,d7,d8] = t0",
    ),
    "the gradient of a wide volume, dilated along one axis, channels last behind": (
        "d0=1 d1=16 d2=6 d3=14 d4=30 d5=24 d6=2 d7=16 d8=32 k0=3 k1=3 k2=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d1,d5,k0,k1,k2]",
        "t0 f32[d0,d1,d2,d3,d4] = abs(in0)\n"
        "t1 f32[d0,d5,d6,d7,d8] = dot_tf32(t0[d2=d6+2*k0, d3=d7-k1, d4=d8-k2], in1) over d1,k0,k1,k2\n"
        "out0 f32[d0,d6,d7,d8,d5] = t1",
    ),
    "groups of a wide image": (
        "d0=1 d1=2 d2=24 d3=16 d4=32 d5=32 d6=16 d7=32 k0=3 k1=3",
        "in0 f32[d0,d1,d2,d3,d4]\nin1 f32[d1,d5,d2,k0,k1]",
        "t0 f32[d0,d1,d5,d6,d7] = dot_tf32(in0[d3=d6+k0-1, d4=d7+k1-1], in1) over d2,k0,k1\n"
        "out0 f32[d0,d1,d5,d6,d7] = t0",
    ),
    "channels last, a norm, a mask and rows of the other order before, a residual behind, no full step": (
        "d0=2 d1=20 d2=9 d3=11 d4=70 d5=9 d6=11 k0=3 k1=3",
        "in0 f32[d0,d2,d3,d1]\nin1 f32[d4,k0,k1,d1]\nin2 f32[d1]\nin3 f32[d0,d5,d6,d4]\nin4 f32[d0,d2,d3]\n"
        "in5 f32[d0,d1,d2,d3]",
        "t0 f32[d1] = abs(in2)\nt1 f32[d0,d1,d2,d3] = mul(in0, t0)\nt2 f32[d0,d1,d2,d3] = add(t1, in4)\n"
        "t3 f32[d0,d1,d2,d3] = exp(t2)\nt4 f32[d0,d1,d2,d3] = add(t3, in5)\n"
        "t5 f32[d0,d4,d5,d6] = dot_tf32(t4[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "t6 f32[d0,d4,d5,d6] = add(t5, in3)\nout0 f32[d0,d5,d6,d4] = t6",
    ),
    "channels last, strides of two, half, a chain before": (
        "d0=2 d1=40 d2=12 d3=17 d4=70 d5=6 d6=9 k0=3 k1=3",
        "in0 f16[d0,d2,d3,d1]\nin1 f16[d4,d1,k0,k1]",
        "t0 f16[d0,d1,d2,d3] = relu(in0)\n"
        "t1 f16[d0,d4,d5,d6] = dot(t0[d2=2*d5+k0-1, d3=2*d6+k1-1], in1) over d1,k0,k1\nout0 f16[d0,d5,d6,d4] = t1",
    ),
    "channels last, a wide image of few channels": (
        "d0=1 d1=16 d2=16 d3=64 d4=24 d5=16 d6=64 k0=3 k1=3",
        "in0 f32[d0,d2,d3,d1]\nin1 f32[d4,d1,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1\n"
        "out0 f32[d0,d5,d6,d4] = t0",
    ),
    "channels last, a wide image, half, strides of two, groups": (
        "d0=1 d1=2 d2=24 d3=31 d4=63 d5=16 d6=16 d7=32 k0=3 k1=3",
        "in0 f16[d0,d3,d4,d1,d2]\nin1 f16[d1,d5,d2,k0,k1]",
        "t0 f16[d0,d1,d5,d6,d7] = dot(in0[d3=2*d6+k0-1, d4=2*d7+k1-1], in1) over d2,k0,k1\n"
        "out0 f16[d0,d6,d7,d1,d5] = t0",
    ),
    "channels last, transposed": (
        "d0=2 d1=32 d2=6 d3=5 d4=40 d5=12 d6=10 k0=4 k1=4",
        "in0 f32[d0,d2,d3,d1]\nin1 f32[d1,d4,k0,k1]",
        "t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1\n"
        "out0 f32[d0,d5,d6,d4] = t0",
    ),
    "channels of two axes, positions of one of them on both sides": (
        "d0=2 d1=2 d2=10 d3=17 d4=17 d5=18 k0=4",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,d2,k0]",
        "t0 i64[d1] = iota() along d1\nt1 f32[d1] = cast(t0)\nt2 f32[d0,d1,d2,d3] = add(in0, t1)\n"
        "t3 f32[d1,d2,d4,k0] = mul(in1, t1)\n"
        "t4 f32[d0,d4,d5] = dot_tf32(t2[d3=d5+k0-2], t3) over d1,d2,k0\nout0 f32[d0,d4,d5] = t4",
    ),
    "a matrix product, batched, bf16": (
        "d0=3 d1=70 d2=520 d3=48",
        "in0 bf16[d0,d1,d2]\nin1 bf16[d0,d2,d3]",
        "t0 bf16[d0,d1,d3] = dot(in0, in1) over d2\nout0 bf16[d0,d1,d3] = t0",
    ),
}


def program_of(name: str) -> Program:
    return parse_program("region v1\ndims {}\n{}\n{}\n".format(*PROGRAMS[name]))


def in_bulk(program: Program, form: str = BULK_COPY) -> list[Variant]:
    """All of them, however late they come among a program's variants."""
    plan = cut_stages(program)
    assert plan is not None and len(plan.stages) == 1
    found = [x for x in stage_schedules(plan.stages[0]) if x.kind.endswith(form)]
    written = [write_variant(program, Schedule("split" if x.splits > 1 else "product", (x,))) for x in found]
    return [v for v in written if v is not None]


# what a program must have kernels of: planes copied, patches filled, patches of eight rows
FORMS = {
    "a matrix": (BULK_COPY,),
    "channels last, strides": (IMPLICIT_GEMM,),
    "channels last, a wide image": (IMPLICIT_GEMM, IMPLICIT_GEMM_2D),
    "transposed": (BULK_COPY,),
    "strides": (IMPLICIT_GEMM,),
    "a volume, strides": (IMPLICIT_GEMM,),
    "one axis, a stride": (IMPLICIT_GEMM,),
    "a wide volume": (IMPLICIT_GEMM, IMPLICIT_GEMM_2D),
    "the gradient of a wide volume": (IMPLICIT_GEMM, IMPLICIT_GEMM_2D),
    "groups": (BULK_COPY, IMPLICIT_GEMM, IMPLICIT_GEMM_2D),
}
CASES = [
    (name, form)
    for name in PROGRAMS
    for form in next(
        (f for begin, f in reversed(FORMS.items()) if name.startswith(begin)), (BULK_COPY, IMPLICIT_GEMM)
    )
]


# in every run: one, two and three axes, each type, stride, gradient and order of channels
QUICK = (
    "images, chains before",
    "a volume with more padding",
    "the gradient of an image, half",
    "transposed",
    "one axis, a stride",
    "a wide volume",
    "channels last, a norm",
    "channels of two axes",
    "a matrix product",
)
NUMBERED = [(at, *case) for at, case in enumerate(CASES)]
KINDS = [case for case in NUMBERED if case[1].startswith(QUICK)]


@pytest.mark.parametrize(("at", "name", "form"), slow_but(KINDS, NUMBERED))
def test_planes_and_halo_tiles_are_right(at: int, name: str, form: str) -> None:
    """Two kernels of each, one from the variants' either half, in turn: tiles and splits come round."""
    program = program_of(name)
    written = in_bulk(program, form)
    half = len(written) // 2
    chosen = [written[at % half], written[half + at % (len(written) - half)]]
    candidates = {v.name: v.candidate for v in chosen}
    assert run_on_host(program, candidates) == (set(candidates), {})


MEMORY = [("the gradient of an image, half", BULK_COPY)]
MEMORY += [("groups of a wide image", IMPLICIT_GEMM_2D)]
MEMORY += [("channels last, no padding, dilated along one axis", IMPLICIT_GEMM)]


@pytest.mark.parametrize(("name", "form"), slow_but(MEMORY, CASES[::3]))
def test_planes_and_patches_break_no_rule_of_memory(name: str, form: str) -> None:
    program = program_of(name)
    assert_no_rule_is_broken(program, in_bulk(program, form)[:1])


def test_channels_that_no_vector_divides_are_not_filled() -> None:
    text = (
        "region v1\ndims d0=2 d1=%d d2=12 d3=40 d4=10 k0=4\nin0 f16[d0,d2,d1]\nin1 f16[d3,d1,k0]\n"
        "t0 f16[d0,d3,d4] = dot(in0[d2=d4+k0-1], in1) over d1,k0\nout0 f16[d0,d4,d3] = t0\n"
    )
    assert in_bulk(parse_program(text % 40), IMPLICIT_GEMM)
    assert not in_bulk(parse_program(text % 36), IMPLICIT_GEMM)


def test_phases_of_unequal_windows_are_left_to_others() -> None:
    """A tap that is none would multiply an infinite value by 0."""
    assert not in_bulk(
        parse_program(
            "region v1\ndims d0=2 d1=32 d2=6 d3=40 d4=11 k0=3\nin0 f32[d0,d1,d2]\nin1 f32[d1,d3,k0]\n"
            "t0 f32[d0,d3,d4] = dot_tf32(in0[d2=(d4-k0+1)/2], in1) over d1,k0\nout0 f32[d0,d3,d4] = t0\n"
        )
    )


@pytest.mark.slow
def test_registers_hold_what_is_filled_at_once() -> None:
    """Of half types, where a place of a patch has the most elements."""
    program = parse_program(
        "region v1\ndims d0=16 d1=256 d2=32 d3=64 d4=48 d5=32 d6=64 k0=3 k1=3\nin0 f16[d0,d1,d2,d3]\n"
        "in1 f16[d4,d1,k0,k1]\n"
        "t0 f16[d0,d4,d5,d6] = dot(in0[d2=d5+2*k0-2, d3=d6+2*k1-2], in1) over d1,k0,k1\n"
        "out0 f16[d0,d4,d5,d6] = t0\n"
    )
    assert_registers_hold_all(
        program, [v for form in (IMPLICIT_GEMM, IMPLICIT_GEMM_2D) for v in in_bulk(program, form)]
    )
