"""Labels told from the program: where nothing is rounded the judge's tolerance is 0, on every distribution."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cudal1_compile.judge.checks.cases import COHERENT
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.inputs.sizes import tensor_elements
from cudal1_compile.judge.oracle.compare import expect
from cudal1_compile.judge.oracle.numerics import numerics_of
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

EXACT = {
    "selections": """region v1
dims d0=40 d1=30
in0 bf16[d0,d1]
t0 f32[d0,d1] = cast(in0)
t1 bool[d0,d1] = gt(t0, 0.5)
t2 f32[d0] = amax(t0) over d1
t3 bf16[d0,d1] = where(t1, in0, -inf)
t4 i64[d0] = argmax(in0) over d1
out0 bf16[d0,d1] = t3
out1 f32[d0] = t2
out2 i64[d0] = t4
""",
    "integers": """region v1
dims d0=40 d1=300
in0 i32[d0,d1]
in1 bool[d0,d1]
t0 i32[d0,d1] = cast(in1)
t1 i32[d0,d1] = mul(in0, t0)
t2 i32[d0] = sum(t1) over d1
t3 i32[d0,d1] = cumsum(t1) along d1
t4 bool[d0,d1] = lt(t3, t2)
out0 i32[d0] = t2
out1 bool[d0,d1] = t4
""",
    "moves": """region v1
dims d0=7 d1=9 d2=4
in0 f16[d0,d1]
in1 i64[d2] in [0,d0)
t0 f16[d1,d2] = relu(in0[d0=in1])
out0 f16[d2,d1] = t0
""",
}
LINES = (
    ("add(in0, in0)", "reassociates"),
    ("exp(in0)", "reassociates"),
    ("maximum(in0, 0.25)", "exact"),
    ("maximum(in0, 0.1)", "reassociates"),  # float32 does not hold it, the oracle does
    ("floor(in0)", "exact"),
)


def _tolerance(program: Program, distribution: str) -> float:
    inputs = make_inputs(program, distribution, 1, torch.device("cpu"))
    found = expect(program, inputs, coherent=distribution in COHERENT)
    return max(0.0 if e.tolerance is None else float(e.tolerance.max()) for e in found)


@pytest.mark.parametrize("name", EXACT)
def test_where_nothing_is_rounded_no_kernel_may_differ(name: str) -> None:
    program = parse_program(EXACT[name])
    assert numerics_of(program) == "exact"
    assert all(_tolerance(program, d) == 0.0 for d in ("normal", "offset", "coherent", "wide"))


@pytest.mark.parametrize(("line", "label"), LINES)
def test_one_operation(line: str, label: str) -> None:
    text = f"region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = {line}\nout0 f32[d0] = t0\n"
    program = parse_program(text)
    assert numerics_of(program) == label
    assert label == "reassociates" or _tolerance(program, "normal") == 0.0


def test_split_products_have_a_label_of_their_own() -> None:
    product = "dims d0=64 d1=32 d2=64\nin0 {t}[d0,d1]\nin1 {t}[d1,d2]\nt0 {t}[d0,d2] = dot(in0, in1) over d1\n"
    floats, integers = (
        parse_program(f"region v1\n{product.format(t=t)}out0 {t}[d0,d2] = t0\n") for t in ("f32", "i64")
    )
    code = "product_pipe<f32_split, 64, 64, 32, 32, 16, 3, 4, 1, 4, 1>(1, d1,"
    assert numerics_of(floats) == numerics_of(floats, "product_tile<f32, 64") == "reassociates"
    assert numerics_of(floats, code) == "f32_split"
    assert numerics_of(integers, code) == "exact"
    assert numerics_of(floats, "float not_f32_split_at_all") == "reassociates"


def test_regions_of_models_with_the_label_have_no_tolerance() -> None:
    lines = (Path(__file__).parents[2] / "trainer/data/regions.jsonl").read_text().splitlines()
    programs = [parse_program(json.loads(line)["text"]) for line in lines]
    found = [p for p in programs if numerics_of(p) == "exact" and tensor_elements(p) <= 2**20]
    assert found and all(_tolerance(p, "normal") == 0.0 for p in found)
