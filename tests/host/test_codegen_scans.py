"""Kernels of running sums and products, every kind, on the host target; registers on a GPU."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.templates import Schedule, variants
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("built_quickly")]

# dims, inputs, body, the mappings that must be among the schedules
PROGRAMS = {
    "weights along a ray": (
        "d0=9 d1=192",
        "in0 f32[d0,d1]\nin1 f32[d0,d1] >=0",
        "t0 f32[d0,d1] = mul(in0, in1)\nt1 f32[d0,d1] = sigmoid(t0)\nt2 f32[d0,d1] = sub(1.0, t1)\n"
        "t3 f32[d0,d1] = cumprod(t1) along d1\nt4 f32[d0,d1] = mul(t2, t3)\nout0 f32[d0,d1] = t4",
        {"warp", "block"},
    ),
    "a long row": (
        "d0=2 d1=9001",
        "in0 f32[d0,d1]\nin1 f32[d0]",
        "t0 f32[d0] = relu(in1)\nt1 f32[d0,d1] = mul(in0, t0)\nt2 f32[d0,d1] = cumsum(t1) along d1\n"
        "t3 bool[d0,d1] = gt(t2, 0.9)\nout0 f32[d0,d1] = t2\nout1 bool[d0,d1] = t3\nout2 f32[d0] = t0",
        {"warp", "block", "joined"},
    ),
    "what is likely enough": (
        "d0=2 d1=9000",
        "in0 f32[d0,d1]",
        "t0 f32[d0] = amax(in0) over d1\nt1 f32[d0,d1] = sub(in0, t0)\nt2 f32[d0,d1] = exp(t1)\n"
        "t3 f32[d0] = sum(t2) over d1\nt4 f32[d0,d1] = div(t2, t3)\nt5 f32[d0,d1] = cumsum(t4) along d1\n"
        "t6 f32[d0,d1] = sub(t5, t4)\nout0 f32[d0,d1] = t6",
        {"block", "joined"},
    ),
    "a long row, half": (
        "d0=3 d1=8192",
        "in0 bf16[d0,d1]\nin1 bf16[d1]",
        "t0 f32[d0,d1] = cast(in0)\nt1 f32[d0,d1] = cumsum(t0) along d1\nt2 f32[d1] = cast(in1)\n"
        "t3 f32[d0,d1] = mul(t1, t2)\nt4 bf16[d0,d1] = cast(t3)\nout0 bf16[d0,d1] = t4",
        {"block", "joined"},
    ),
    "positions without what is masked": (
        "d0=5 d1=300",
        "in0 i64[d0,d1] in [0,d0)",
        "t0 bool[d0,d1] = eq(in0, 0)\nt1 i64[d0,d1] = cumsum(in0) along d1\nt2 i64[d1] = iota() along d1\n"
        "t3 i64[d0,d1] = sub(t1, t2)\nt4 i64[d0,d1] = where(t0, 1, t3)\nout0 i64[d0,d1] = t4",
        {"warp", "block"},
    ),
    "columns": (
        "d0=3 d1=70 d2=45",
        "in0 f32[d0,d1,d2]\nin1 f32[d2]",
        "t0 f32[d0,d1,d2] = cumsum(in0) along d1\nt1 i64[d1] = iota() along d1\nt2 f32[d1] = cast(t1)\n"
        "t3 f32[d1] = add(t2, 1.0)\nt4 f32[d0,d1,d2] = div(t0, t3)\nt5 f32[d2] = relu(in1)\n"
        "t6 f32[d0,d1,d2] = mul(t4, t5)\nout0 f32[d0,d1,d2] = t6",
        {"tile", "thread", "joined_tile"},
    ),
    "long columns": (
        "d0=2050 d1=5",
        "in0 f32[d0,d1]",
        "t0 f32[d0,d1] = sigmoid(in0)\nt1 f32[d0,d1] = add(t0, 0.5)\nt2 f32[d0,d1] = cumprod(t1) along d0\n"
        "out0 f32[d0,d1] = t2",
        {"tile", "thread", "joined_tile"},
    ),
    "backwards": (
        "d0=6 d1=40 d2=40 d3=40",
        "in0 f32[d0,d2]\nin1 f32[d0,d1]",
        "t0 f32[d0,d2] = mul(in0, in0)\nt1 f32[d0,d3] = cumsum(t0[d2=-d3+39]) along d3\n"
        "t2 f32[d0,d1] = add(t1[d3=-d1+39], in1)\nout0 f32[d0,d1] = t2",
        {"warp"},
    ),
    "looked up before and behind": (
        "d0=3 d1=90 d2=7",
        "in0 i64[d0,d1] in [0,d2)\nin1 f32[d2]",
        "t0 i64[d0,d1] = sub(6, in0)\nt1 f32[d0,d1] = neg(in1[d2=t0])\nt2 f32[d0,d1] = cumsum(t1) along d1\n"
        "t3 i64[d0,d1] = cumsum(in0) along d1\nt4 i64[d0,d1] = remainder(t3, 7)\n"
        "t5 f32[d0,d1] = mul(t2, in1[d2=t4])\nout0 f32[d0,d1] = t5",
        {"warp"},
    ),
    "of a size that is not known": (
        "d0=3 d1=?700",
        "in0 f32[d0,d1]",
        "t0 f32[d0,d1] = relu(in0)\nt1 f32[d0,d1] = cumsum(t0) along d1\nout0 f32[d0,d1] = t1",
        {"warp", "block"},
    ),
    "columns of a size that is not known": (
        "d0=?700 d1=40",
        "in0 f32[d0,d1]",
        "t0 f32[d0,d1] = relu(in0)\nt1 f32[d0,d1] = cumsum(t0) along d0\nout0 f32[d0,d1] = t1",
        {"tile", "thread"},
    ),
}


ALIKE = {"what is likely enough", "looked up before and behind", "columns"}  # of kinds that others have


def program(name: str) -> Program:
    dims, inputs, body, _ = PROGRAMS[name]
    return parse_program(f"region v1\ndims {dims}\n{inputs}\n{body}\n")


def kinds(schedule: Schedule) -> set[str]:
    return {s.kind for s in schedule.stages}


def one_of_each(p: Program) -> list[Variant]:
    """The likely best variant of every mapping, in registers and step by step."""
    found = {tuple((part.kind, part.cached) for part in s.stages): s for s in reversed(variants(p))}
    made = [write_variant(p, s) for s in found.values()]
    return [v for v in made if v is not None]


@pytest.mark.parametrize("name", slow_but([n for n in PROGRAMS if n not in ALIKE], PROGRAMS))
def test_each_is_right(name: str) -> None:
    p = program(name)
    assert PROGRAMS[name][3] <= set().union(*map(kinds, variants(p)))
    candidates = {v.name: v.candidate for v in one_of_each(p)}
    assert run_on_host(p, candidates) == (set(candidates), {})


FORMS = ["a long row", "positions without what is masked", "columns", "long columns"]


@pytest.mark.parametrize("name", slow_but(FORMS[1:3], FORMS))
def test_no_rule_of_memory_is_broken(name: str) -> None:
    p = program(name)
    assert_no_rule_is_broken(p, one_of_each(p))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a long row", "long columns"])
def test_registers_hold_what_they_are_meant_to(name: str) -> None:
    p = program(name)
    assert_registers_hold_all(p, one_of_each(p))
