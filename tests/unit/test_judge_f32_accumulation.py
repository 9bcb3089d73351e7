"""Kernels that keep float32 within half types are known by their text and held to float32's budget."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from judge_checks import refusals
from torch import Tensor

from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.checks.cases import ROUNDS_OTHERWISE
from cudal1_compile.judge.inputs.literal_targeted import (
    LITERAL_TARGETED,
    MAX_CASES,
    foreign_numbers,
    literal_case_count,
    put_together,
)
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.oracle.bounds import Bounded
from cudal1_compile.judge.oracle.compare import Expected, measure, read, refusal
from cudal1_compile.judge.oracle.f32_accumulation import (
    HALF,
    expect_f32_accumulation,
    expected_of_f32,
    foreign_rounding,
    keeps_float32,
    rounds_literals,
    unrounded,
    widened,
)
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE, evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

CPU = torch.device("cpu")
PLAN = "// launch: k<<<1, 64>>>(in0, out0, out1)\n"
HEAD = "__global__ void k(const bf16* __restrict__ a, bf16* __restrict__ o, f32* p DIMS) "
KEPT = PLAN + HEAD + "{ float v[2]; vload<2>(a, v); st(o, v[0] * ld(a + 1)); st(p, v[1]); float q = ld(p); }"


def program(dtype: str = "bf16") -> Program:
    return parse_program(f"""region v1
dims d0=2048
in0 {dtype}[d0]
t0 {dtype}[d0] = mul(in0, 0.7)
t1 {dtype}[d0] = exp(t0)
t2 {dtype}[d0] = mul(t1, in0)
t3 f32[d0] = cast(t2)
out0 {dtype}[d0] = t2
out1 f32[d0] = t3
""")


COPIES = "float v[2]; __shared__ bf16 tile[64]; in0_t kept = a[1]; tile[0] = kept;"


@pytest.mark.parametrize(
    "code",
    [
        KEPT,
        KEPT.replace("float v[2];", COPIES),
        "// scratch: s0 bf16[d0]\n" + KEPT.replace("ld(a + 1)", "ld(o + 1)"),
    ],
)
def test_a_kernel_that_does_not_say_that_it_rounds_is_taken_to_keep_float32(code: str) -> None:
    candidate = parse_candidate(code, program())
    assert keeps_float32(program(), candidate)
    assert unrounded(program(), candidate) is None


@pytest.mark.parametrize("call", ["round_to<bf16>(ld(a + 1))", "R(ld(a + 1))"])
def test_one_that_rounds_has_an_unrounded_form(call: str) -> None:
    code = PLAN + "#define R round_to<bf16>\n" + KEPT[len(PLAN) :].replace("ld(a + 1)", call)
    candidate = parse_candidate(code, program())
    assert not keeps_float32(program(), candidate)
    exact = unrounded(program(), candidate)
    assert exact is not None and keeps_float32(program(), exact)
    assert exact.launches == candidate.launches and call.replace("round_to", "unrounded") in exact.code
    assert unrounded(program("f32"), candidate) is None


FACTORS = """region v1
dims d0=64 d1=64 d2=64
in0 f32[d0,d1]
in1 bf16[d1,d2]
t0 bf16[d0,d1] = cast(in0)
t1 bf16[d0,d2] = dot(t0, in1) over d1
out0 bf16[d0,d2] = t1
"""


@pytest.mark.parametrize(
    ("old", "new", "keeps"),
    [
        ("", "", True),
        ("float x", "__shared__ bf16 tile[64]; float x", False),
        (PLAN, "// scratch: s0 bf16[d0]\n" + PLAN, False),
    ],
)
def test_only_factors_that_the_region_computes_may_be_held_in_half_types(old: str, new: str, keeps: bool) -> None:
    code = PLAN.replace("in0, out0, out1", "in0, in1, out0") + (
        "__global__ void k(const f32* a, const bf16* b, bf16* o DIMS) { float x = ld(a) * ld(b); st(o, x); }"
    )
    code = code.replace(old, new, 1) if old != PLAN else "// scratch: s0 bf16[d0]\n" + code
    computed = parse_program(FACTORS)
    given = parse_program(
        FACTORS.replace("in0 f32", "in0 bf16")
        .replace("t0 bf16[d0,d1] = cast(in0)\n", "")
        .replace("dot(t0", "dot(in0")
    )
    assert keeps_float32(computed, parse_candidate(code, computed)) == keeps
    assert keeps_float32(given, parse_candidate(code, given))


def test_f32_alone_is_not_widened() -> None:
    assert widened(program("f32")) is None
    assert all(d not in HALF for d in (widened(program()) or program()).value_dtype.values())


def refused(got: Tensor, expected: Expected) -> bool:
    return refusal(read(measure(got, expected), expected), got, expected) is not None


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-7, 1.0014])
def test_every_case_tells_float32_from_a_value_a_little_off(dtype: str, factor: float) -> None:
    suite = prepare_suite(program(dtype), 11, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite) and len(suite.f32_cases) == len(suite.cases)
    wide = widened(program(dtype))
    assert wide is not None
    found = {}
    for case in suite.f32_cases:
        assert case.expected is not None
        first, second = evaluate(wide, [x.float() for x in case.inputs], case.sizes)
        found[case.name] = refused((first * factor).to(TORCH_DTYPE[dtype]), case.expected[0])
        assert not refused(second, case.expected[1])
    assert any(found.values()) == (factor == 1.0014), found
    assert not refused(evaluate(program(dtype), suite.cases[0].inputs)[0], suite.cases[0].expected[0])  # type: ignore[index]


def test_what_overflows_is_infinite_and_nothing_else() -> None:
    native, oracle = torch.tensor([torch.inf, 1.0]), torch.tensor([1e200, 1.0], dtype=torch.float64)
    wanted = expected_of_f32(program(), program().outputs[0], native[None], Bounded(oracle, None).of_one)[0]
    assert not refused(torch.tensor([torch.inf, 1.0], dtype=torch.bfloat16), wanted)
    assert refused(torch.tensor([3e38, 1.0], dtype=torch.bfloat16), wanted)
    assert refused(torch.tensor([torch.inf, 1.01], dtype=torch.bfloat16), wanted)


def test_the_case_suite_of_a_candidate() -> None:
    suite = prepare_suite(program(), 11, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    plain = suite.of(parse_candidate(KEPT, program()))
    assert plain.cases == suite.f32_cases
    rounds = suite.of(parse_candidate(KEPT.replace("ld(a + 1)", "round_to<bf16>(ld(a + 1))"), program()))
    assert [replace(c, readings=()) for c in rounds.cases] == list(suite.cases)
    assert all(len(c.readings) == 2 for c in rounds.cases)  # nothing is rounded, or all is
    named = suite.of(parse_candidate(KEPT.replace("v[1]", "v[1] / 8.0f > 77.5f"), program()))
    alone, together = named.cases[len(plain.cases) :]
    assert alone.name == together.name == LITERAL_TARGETED
    assert alone.wide is not None and together.wide is not None
    assert {77.5, -77.5} <= set(alone.inputs[0].float().tolist())
    assert {620.0, -620.0} <= set(together.inputs[0].float().tolist())


@pytest.mark.parametrize("dtype", HALF)
def test_a_kernel_that_rounds_must_round_as_eager_mode_or_nothing(dtype: str) -> None:
    suite = prepare_suite(program(dtype), 11, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    call = f"round_to<{dtype}>(ld(a + 1))"
    code = KEPT.replace("bf16", dtype).replace("ld(a + 1)", call)
    cases = suite.of(parse_candidate(code, program(dtype))).cases
    wide = widened(program(dtype))
    assert wide is not None
    half = TORCH_DTYPE[dtype]
    eager = [_as_eager(c.inputs[0]) for c in cases]
    float32 = [evaluate(wide, [x.float() for x in c.inputs], c.sizes) for c in cases]
    kept = [[first.to(half), second] for first, second in float32]
    off = [_as_eager(c.inputs[0], 1.001 if dtype == "bf16" else 1.0001) for c in cases]  # less than a rounding
    assert refusals(cases, eager) == refusals(cases, kept) == []
    assert refusals([replace(c, readings=()) for c in cases], off) == []
    assert any(r.startswith(ROUNDS_OTHERWISE) for r in refusals(cases, off))


def _as_eager(x: Tensor, factor: float = 1.0) -> list[Tensor]:
    """The program with every result rounded; unlike in `evaluate`, its literal is none."""
    scaled = (x.float() * 0.7).to(x.dtype)
    found = ((factor * scaled.float().exp()).to(x.dtype).float() * x.float()).to(x.dtype)
    return [found, found.float()]


TIE = """region v1
dims d0=4
in0 bf16[d0]
in1 bf16[d0]
t0 bf16[d0] = mul(in0, in1)
t1 bf16[d0] = relu(t0)
out0 bf16[d0] = t1
"""


@pytest.mark.parametrize(("text", "exact"), [(TIE, True), (TIE.replace("relu", "sigmoid"), False)])
def test_what_lies_between_two_numbers_goes_to_the_even_one_where_it_is_exact(text: str, exact: bool) -> None:
    tied = parse_program(text)
    wide = widened(tied)
    assert wide is not None
    # 1.51171875 lies between 1.5078125, which is odd, and 1.515625
    inputs = [torch.tensor([1.5, 1.5, -1.5, 1.0]), torch.tensor([1.0078125, 1.0234375, 1.0078125, 1.0])]
    (expected,) = expect_f32_accumulation(tied, wide, [x.bfloat16() for x in inputs], None, False, False)
    assert expected.tolerance is not None
    assert (expected.tolerance == 0.0).tolist() == ([True, True, False, False] if exact else [False] * 4)
    if exact:
        assert expected.want[:2].tolist() == [1.515625, 1.53125]


def test_numbers_that_only_a_kernel_names() -> None:
    code = (
        "// launch: k<<<77, 256>>>(in0)\nint i = 999 * 128 + 0xffffffff; x = 1'5.5e1f * 0.7f + 0x4479c000u - 3.0f;"
    )
    assert {3.0, 155.0, 999.0, 0x4479C000} <= set(foreign_numbers(program(), code))
    assert foreign_numbers(program(), "y = 1.0f + 0.5f * v[31] * 0.7f;") == ()


@pytest.mark.parametrize("places", [1, 8, 4096])
def test_a_short_input_holds_all_that_lies_at_the_numbers_one_case_after_the_other(places: int) -> None:
    short = parse_program(
        f"region v1\ndims d0=512 d1={places}\nin0 f32[d1]\nin1 f32[d0,d1]\nt0 bool[d1] = gt(in0, 20.0)\n"
        "t1 f32[d0,d1] = mul(in0, in1)\nout0 bool[d1] = t0\nout1 f32[d0,d1] = t1\n"
    )
    numbers = (5.5, 20.25, 301.0)
    plain = make_inputs(short, "normal", 1, CPU)
    count = literal_case_count(short, plain, numbers)
    assert count == {1: 1 + MAX_CASES, 8: 7, 4096: 2}[places]
    made = [make_inputs(short, LITERAL_TARGETED, 1, CPU, None, numbers, turn)[0] for turn in range(count)]
    held = {round(float(v), 4) for x in made for v in x.flatten()}
    assert {5.5, 20.25, 301.0, 20.125, 2.75, 12.0, 12.5} <= held
    assert places == 1 or len(made) == len({tuple(x.flatten().tolist()) for x in made})


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        ("x > 1e5f * 1e4f", {1e9}),
        ("constexpr float A = 3e4f;\nx > A * A", {9e8}),
        ("#define B 3e4f\nx > (B + 7.f) * 10.0f", {300070.0}),
        ("x > 0x1p20f || x > 3.0f / 3e-12f", {2.0**20, 1e12}),
        ("__int_as_float(0x42aa0000 + 0x1111)", {85.03333}),
        ("(__float_as_uint(x) >> 12) == (0x42a00u | 0xbbu)", {85.84375}),
        ("x > sizeof(float) * 0.37f || x > 0.37f * sizeof( double )", {1.48, 2.96}),
        ("#define E(a) ((a) * 1.5f + 0.25f)\nx > E(3.5f)", {5.5}),
        ("float e(float a, int b) {\n  return a * b - 0.25f;\n}\nx > e(3.5f, 7)", {24.25}),
        ("float e() { return 3.5f * 7.0f; }\nx > e()", {24.5}),
        ("float e(float a) { return a * a; }\nx > e(y) + sizeof(z) / 2", set()),
        ("__float_as_uint(x) == (0x446u << 20) || __float_as_uint(x) == ~0xbb9affffu", {896.0, 916.0}),
        ("x == ldexpf(7.0f, 7) || x == scalbnf(5.0f, -9)", {896.0, 5.0 / 512.0}),
        ("x == fmaf(30.0f, 30.0f, 17.0f)", {917.0}),
        ("v[4 * 8 + 3] / 0.0f", set()),
    ],
)
def test_numbers_that_a_kernel_computes(code: str, numbers: set[float]) -> None:
    found = foreign_numbers(program(), code)
    assert all(any(abs(f - n) <= 1e-6 * n for f in found) for n in numbers)
    assert numbers or not found


@pytest.mark.parametrize("code", ["x / 7.0f == 131.0f", "enum { A = 7, B = A * 131 };", "x - 1048.0f == -131.0f"])
def test_numbers_are_put_together_wherever_they_stand(code: str) -> None:
    found = foreign_numbers(program(), code)
    assert 917.0 in put_together(found, code)
    assert not set(put_together(found, code)) & set(found)
    assert put_together((), code) == ()


def test_a_block_has_as_many_threads_as_its_plan_says() -> None:
    code = "// launch: k<<<1, 256>>>(in0)\nx == blockDim.x * 3.5f"
    assert 896.0 in put_together(foreign_numbers(program(), code), code)


@pytest.mark.parametrize(
    "number",
    ["0x1p5000", "1e9999f", "9" * 400, "0x" + "f" * 400, "ldexp(1e300, 999)", " + ".join(["1.5f"] * 9000)],
)
def test_numbers_that_no_double_holds_are_no_errors(number: str) -> None:
    code = f"x == {number} || x == 77.5f"
    found = foreign_numbers(program(), code)
    assert 77.5 in found
    assert all(map(math.isfinite, put_together(found, code)))


def test_a_type_that_nothing_in_the_region_has_is_no_type_to_round_to() -> None:
    def rounding_to(dtype: str) -> str | None:
        code = KEPT.replace("v[0] * ld(a + 1)", f"round_to<{dtype}>(v[0]) * ld(a + 1)")
        return foreign_rounding(program(), parse_candidate(code, program()))

    assert rounding_to("bf16") is rounding_to("tf32") is None
    assert rounding_to("f16") == "f16"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("bool b = round_to<bf16>(1.001f) == 1.0f;", True),
        ("float c = 1.001f; bool b = round_to<bf16>(2.0f * (c + 1.0f)) == c;", True),
        ("float s = 0.0f; s += v[0]; v[0] = round_to<bf16>(s);", False),
        ("float s = 0.0f; s = v[0]; v[0] = round_to<bf16>(s);", False),
        ("float s = 0.0f; change(s, v); v[0] = round_to<bf16>(s);", False),
        ("v[0] = round_to<bf16>(v[0] * 1.001f);", False),
    ],
)
def test_no_constant_may_be_rounded(line: str, found: bool) -> None:
    code = KEPT.replace("v[0] * ld(a + 1)", f"v[0]); {line} (v[0] * ld(a + 1)")
    assert rounds_literals(parse_candidate(code, program())) == found
