"""Kernels whose blocks share a group and wait for each other are right on the host target."""

from __future__ import annotations

import pytest
from codegen_checks import assert_no_rule_is_broken, assert_registers_hold_all, run_on_host
from slow_cases import slow_but

from cudal1_compile.codegen.templates import variants
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import Variant, write_variant

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("built_quickly")]

PROGRAMS = {
    "softmax": (
        "d0=2 d1=8193",
        "in0 f32[d0,d1]",
        "t0 f32[d0] = amax(in0) over d1\nt1 f32[d0,d1] = sub(in0, t0)\nt2 f32[d0,d1] = exp(t1)\n"
        "t3 f32[d0] = sum(t2) over d1\nt4 f32[d0,d1] = div(t2, t3)\nout0 f32[d0,d1] = t4",
    ),
    "group norm with its statistics": (
        "d0=2 d1=2 d2=3 d3=4000",
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d1,d2]",
        "t0 f32[d0,d1] = mean(in0) over d2,d3\nt1 f32[d0,d1] = var(in0, 0) over d2,d3\n"
        "t2 f32[d0,d1,d2,d3] = sub(in0, t0)\nt3 f32[d0,d1] = add(t1, 1e-05)\nt4 f32[d0,d1] = rsqrt(t3)\n"
        "t5 f32[d0,d1,d2,d3] = mul(t2, t4)\nt6 f32[d0,d1,d2,d3] = mul(t5, in1)\n"
        "out0 f32[d0,d1,d2,d3] = t6\nout1 f32[d0,d1] = t0\nout2 f32[d0,d1] = t4",
    ),
    "batch norm, half": (
        "d0=4 d1=3 d2=2500",
        "in0 bf16[d0,d1,d2]",
        "t0 f32[d0,d1,d2] = cast(in0)\nt1 f32[d1] = mean(t0) over d0,d2\nt2 f32[d1] = var(t0, 0) over d0,d2\n"
        "t3 f32[d0,d1,d2] = sub(t0, t1)\nt4 f32[d1] = add(t2, 1e-05)\nt5 f32[d1] = rsqrt(t4)\n"
        "t6 f32[d0,d1,d2] = mul(t3, t5)\nt7 bf16[d0,d1,d2] = cast(t6)\nout0 bf16[d0,d1,d2] = t7",
    ),
    "columns to mean 0 and variance 1": (
        "d0=601 d1=45",
        "in0 f32[d0,d1]\nin1 f32[d1]",
        "t0 f32[d1] = mean(in0) over d0\nt1 f32[d1] = var(in0, 0) over d0\nt2 f32[d0,d1] = sub(in0, t0)\n"
        "t3 f32[d1] = rsqrt(t1)\nt4 f32[d0,d1] = mul(t2, t3)\nt5 f32[d0,d1] = mul(t4, in1)\n"
        "out0 f32[d0,d1] = t5\nout1 f32[d1] = t1",
    ),
    "softmax over columns": (
        "d0=2 d1=700 d2=33",
        "in0 f32[d0,d1,d2]",
        "t0 f32[d0,d2] = amax(in0) over d1\nt1 f32[d0,d1,d2] = sub(in0, t0)\nt2 f32[d0,d1,d2] = exp(t1)\n"
        "t3 f32[d0,d2] = sum(t2) over d1\nt4 f32[d0,d1,d2] = div(t2, t3)\nout0 f32[d0,d1,d2] = t4",
    ),
    "a variance alone, far from zero": (
        "d0=2 d1=9001",
        "in0 f32[d0,d1]",
        "t0 f32[d0,d1] = add(in0, 300.0)\nt1 f32[d0] = var(t0, 1) over d1\nt2 f32[d0,d1] = mul(in0, t1)\n"
        "t3 f32[d0] = mean(in0) over d1\nt4 f32[d0,d1] = sub(t2, t3)\nout0 f32[d0,d1] = t4",
    ),
    "all of a tensor, and where its largest is": (
        "d0=9000",
        "in0 f32[d0]",
        "t0 i64[] = argmax(in0) over d0\nt1 f32[] = amax(in0) over d0\nt2 f32[d0] = sub(in0, t1)\n"
        "out0 i64[] = t0\nout1 f32[d0] = t2",
    ),
    "a maximum and a sum of exponentials, nothing else": (
        "d0=2 d1=8200",
        "in0 f32[d0,d1]",
        "t0 f32[d0] = amax(in0) over d1\nt1 f32[d0,d1] = sub(in0, t0)\nt2 f32[d0,d1] = exp(t1)\n"
        "t3 f32[d0] = sum(t2) over d1\nt4 f32[d0] = log(t3)\nout0 f32[d0] = t4\nout1 f32[d0] = t0",
    ),
    "gradient of a norm": (
        "d0=3 d1=10000",
        "in0 f32[d0,d1]\nin1 f32[d0,d1]",
        "t0 f32[d0,d1] = mul(in0, in1)\nt1 f32[d0] = sum(t0) over d1\nt2 f32[d0] = sum(in0) over d1\n"
        "t3 f32[d0,d1] = mul(in1, t1)\nt4 f32[d0,d1] = sub(in0, t3)\nt5 f32[d0,d1] = sub(t4, t2)\n"
        "out0 f32[d0,d1] = t5",
    ),
}


def program(name: str) -> Program:
    dims, inputs, body = PROGRAMS[name]
    return parse_program(f"region v1\ndims {dims}\n{inputs}\n{body}\n")


def inter_block(p: Program) -> list[Variant]:
    found = [write_variant(p, s) for s in variants(p) if any(part.kind.startswith("joined") for part in s.stages)]
    return [v for v in found if v is not None]


@pytest.mark.parametrize("name", slow_but([*PROGRAMS][::2], PROGRAMS))
def test_each_is_right(name: str) -> None:
    p = program(name)
    candidates = {v.name: v.candidate for v in inter_block(p)}
    assert candidates
    assert all("wait_for_blocks(" in c.code for c in candidates.values())
    assert run_on_host(p, candidates) == (set(candidates), {})


def test_a_mean_and_its_variance_are_one_wait() -> None:
    waits = {
        name: {v.candidate.code.count("wait_for_blocks(") for v in inter_block(program(name))} for name in PROGRAMS
    }
    assert waits["group norm with its statistics"] == waits["batch norm, half"] == {1}
    assert waits["softmax"] == {2}


@pytest.mark.parametrize("name", slow_but([*PROGRAMS][1::4], PROGRAMS))
def test_no_rule_of_memory_is_broken(name: str) -> None:
    p = program(name)
    assert_no_rule_is_broken(p, inter_block(p)[:1])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_registers_hold_a_part(name: str) -> None:
    p = program(name)
    assert_registers_hold_all(p, inter_block(p))


@pytest.mark.parametrize(
    "dims",
    ["d0=2 d1=100000000", "d0=2 d1=3000", "d0=2 d1=?9000"],
    ids=["too long for 64 blocks", "short enough for one", "of a size that is not known"],
)
def test_where_it_does_not_apply(dims: str) -> None:
    _, inputs, body = PROGRAMS["softmax"]
    p = parse_program(f"region v1\ndims {dims}\n{inputs}\n{body}\n")
    assert not inter_block(p)
