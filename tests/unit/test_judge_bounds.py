"""The error scale where it is not plain: what rounding decides, poles, zeros, ties, and sums that are exact."""

from __future__ import annotations

import pytest
import torch
from judge_checks import CPU, SEED, refusals

from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.oracle.bounds import bounded_outputs
from cudal1_compile.judge.oracle.compare import expect, measure, read, refusal
from cudal1_fx_passes.program.evaluate import round_to_tf32
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program


def test_masks_are_exact_where_inputs_are_compared_and_exempt_only_at_rounding_distance() -> None:
    text = """region v1
dims d0=64 d1=200
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 bool[d0,d1] = gt(t0, 0.5)
out0 bool[d0,d1] = t1
"""
    suite = prepare_suite(parse_program(text), SEED, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    case = suite.cases[0]
    right = case.inputs[0] * case.inputs[1] > 0.5
    assert case.check([right]).refusal is None
    flipped = right.clone()
    flipped[3, 7] = ~flipped[3, 7]
    refusal = case.check([flipped]).refusal
    assert refusal is not None
    assert "out0[3, 7]" in refusal


def test_nan_and_infinity_must_stand_where_the_reference_has_them() -> None:
    program: Program = parse_program(
        "region v1\ndims d0=8\nin0 f32[d0]\nt0 f32[d0] = reciprocal(in0)\nout0 f32[d0] = t0\n"
    )
    from cudal1_compile.judge.checks.cases import make_case

    x = torch.tensor([1.0, 0.0, -0.0, float("nan"), float("inf"), 2.0, -1.0, 4.0])
    case = make_case(program, "normal", [x], {}, 1 << 30)
    assert case.check([1.0 / x]).refusal is None
    for place, value in ((1, float("nan")), (3, 1.0), (0, float("inf")), (1, float("-inf")), (4, float("nan"))):
        got = 1.0 / x
        got[place] = value
        assert case.check([got]).refusal is not None, (place, value)


ZEROS = {
    "product": "t2 f32[d0,d1] = minimum(t1, 0.0)\nt3 f32[d0,d1] = mul(t1, t2)\nt4 bool[d0,d1] = le(t3, 0.0)",
    "choice": "t2 bool[d0,d1] = ge(t1, 0.0)\nt3 f32[d0,d1] = where(t2, 0.0, t1)\nt4 bool[d0,d1] = ge(t3, 0.0)",
}


@pytest.mark.parametrize("name", ZEROS)
def test_what_two_errors_decide_together_is_open(name: str) -> None:
    program = parse_program(
        "region v1\ndims d0=4 d1=50\nin0 f32[d0,d1]\nt0 f32[d0] = mean(in0) over d1\n"
        f"t1 f32[d0,d1] = sub(in0, t0)\n{ZEROS[name]}\n"
        "t5 f32[d0,d1] = where(t4, 1.0, 5.0)\nout0 f32[d0,d1] = t5\n"
    )
    rows = torch.rand(4, 1, generator=torch.Generator().manual_seed(SEED)) + 1.0
    (found,) = bounded_outputs(program, [rows.expand(4, 50).contiguous()], coherent=True)
    assert found.error is not None and bool((found.error >= 4.0).all())
    spread = torch.arange(50.0).expand(4, 50).contiguous()  # an exact 0 stays one, so nothing is open
    (found,) = bounded_outputs(program, [spread])
    assert found.error is not None and not found.error.any()


TIES = """region v1
dims d0=64 d1=300
in0 bf16[d0,d1]
in1 bf16[d0,d1]
t0 bf16[d0,d1] = mul(in0, in1)
t1 i64[d0] = argmax(t0) over d1
out0 i64[d0] = t1
"""


@pytest.mark.parametrize("op", ["div(in2, t0)", "reciprocal(t0)"])
def test_nothing_is_known_of_a_division_by_what_may_be_zero(op: str) -> None:
    """A difference of 1 of values of 1e8 (and of 1e6): the divisor is zero somewhere between 1 - 12 and 1 + 12."""
    program = parse_program(
        "region v1\ndims d0=2\nin0 f32[d0]\nin1 f32[d0]\nin2 f32[d0]\nt9 f32[d0] = mul(in0, in1)\n"
        f"t0 f32[d0] = sub(t9, in2)\nt1 f32[d0] = {op}\nout0 f32[d0] = t1\n"
    )
    in0, in1 = torch.tensor([1e4, 1e3]), torch.tensor([1e4, 1e3])
    (found,) = bounded_outputs(program, [in0, in1, in0 * in1 - 1.0])
    assert found.error is not None and found.error.isinf().tolist() == [True, False]


def test_a_masked_element_leaves_the_maximum_and_the_softmax_known() -> None:
    """Beside -3.4e38 a float32 errs by 1e31; what is masked so must not hide the rest of its row."""
    program = parse_program(
        "region v1\ndims d0=4 d1=9\nin0 f32[d0,d1]\nin1 bool[d0,d1]\n"
        "t0 f32[d0,d1] = where(in1, 0.0, -3.4028234663852886e+38)\nt1 f32[d0,d1] = add(in0, t0)\n"
        "t2 f32[d0] = amax(t1) over d1\nt3 f32[d0,d1] = sub(t1, t2)\nt4 f32[d0,d1] = exp(t3)\n"
        "out0 f32[d0] = t2\nout1 f32[d0,d1] = t4\n"
    )
    mask = torch.ones(4, 9, dtype=torch.bool).tril(5)
    found = bounded_outputs(program, [torch.randn(4, 9), mask])
    errors = [f.error for f in found if f.error is not None]
    assert len(errors) == 2 and all(bool((e < 1e-5).all()) for e in errors)


def test_what_saturates_upwards_still_falls() -> None:
    """A difference of 8 of values of 1e8 that err by 12: tanh of it is 1, and may be -1."""
    program = parse_program(
        "region v1\ndims d0=1\nin0 f32[d0]\nin1 f32[d0]\nin2 f32[d0]\nt0 f32[d0] = mul(in0, in0)\n"
        "t1 f32[d0] = mul(t0, in1)\nt2 f32[d0] = sub(t1, in2)\nt3 f32[d0] = tanh(t2)\nout0 f32[d0] = t3\n"
    )
    (found,) = bounded_outputs(program, [torch.tensor([1e4]), torch.ones(1), torch.tensor([1e8 - 8.0])])
    assert found.error is not None and found.error.item() > 1.9


@pytest.mark.parametrize("square", ["mul(t3, t3)", "fma(t3, t3, 0.0)"])
def test_a_square_of_what_may_be_more_or_less_is_open_on_both_sides(square: str) -> None:
    """A row of one value less its mean is 0 or nearly: it chooses between -0.3 and -0.85, squared 0.6 apart."""
    program = parse_program(
        "region v1\ndims d0=4 d1=50\nin0 f32[d0,d1]\nt0 f32[d0] = mean(in0) over d1\n"
        "t1 f32[d0,d1] = sub(in0, t0)\nt2 bool[d0,d1] = lt(t1, 0.0)\nt3 f32[d0,d1] = where(t2, -0.85, -0.3)\n"
        f"t4 f32[d0,d1] = {square}\nout0 f32[d0,d1] = t4\n"
    )
    rows = torch.rand(4, 1, generator=torch.Generator().manual_seed(SEED)) + 1.0
    (found,) = bounded_outputs(program, [rows.expand(4, 50).contiguous()], coherent=True)
    assert found.error is not None and bool((found.error >= 0.85**2 - 0.3**2).all())


@pytest.mark.parametrize("fn", ["sqrt", "rsqrt", "log"])
def test_an_infinite_sum_is_infinite_however_it_was_summed_up(fn: str) -> None:
    program = parse_program(
        "region v1\ndims d0=3 d1=8 d2=4\nin0 f32[d0,d1]\nt0 f32[d0,d1] = cumsum(in0) along d1\n"
        f"t1 f32[d0,d2] = {fn}(t0[d1=d2+4])\nout0 f32[d0,d2] = t1\n"
    )
    x = torch.ones(3, 8)
    x[0, 2], x[1, 2], x[1, 3] = torch.inf, 1e8, -1e8  # of the latter rounding decides whether it is positive
    (found,) = bounded_outputs(program, [x - torch.tensor([[0.0], [1.0], [0.0]])], coherent=True)
    assert found.free is not None and found.free.any(1).tolist() == [False, True, False]


def test_where_rounding_decides_whether_an_exponential_is_finite_silu_is_open() -> None:
    """A sum of -3e4 that may be off by 1e5, one that may not, and one whose exp is at the largest float32."""
    program = parse_program(
        "region v1\ndims d0=3 d1=2\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nt1 f32[d0] = neg(t0)\n"
        "t2 f32[d0] = exp(t1)\nt3 f32[d0] = add(t2, 1.0)\nt4 f32[d0] = div(t0, t3)\nout0 f32[d0] = t4\n"
    )
    x = torch.tensor([[1e12, -1e12 - 3e4], [-2e4, -1e4], [1e4, -1e4 - 88.725]])
    (found,) = bounded_outputs(program, [x])
    assert found.free is not None and found.free.tolist() == [True, False, True]


def test_errors_of_two_elements_of_one_value_do_not_cancel() -> None:
    """Neighbours' tanh err by some 1e-8 each, whatever their difference is: eager's own result shows it."""
    program = parse_program(
        "region v1\ndims d0=64 d1=64 d2=63\nin0 f32[d0,d1]\nt0 f32[d0,d1] = tanh(in0)\n"
        "t1 f32[d0,d2] = sub(t0[d1=d2+1], t0[d1=d2])\nt2 f32[d0,d1] = sub(t0, t0)\n"
        "out0 f32[d0,d2] = t1\nout1 f32[d0,d1] = t2\n"
    )
    x = torch.rand(64, 1, generator=torch.Generator().manual_seed(SEED)) + torch.linspace(0.0, 1e-6, 64)
    difference, nothing = bounded_outputs(program, [x])
    assert difference.error is not None and nothing.error is not None
    off = (x.tanh().diff(dim=1).double() - difference.value).abs()
    assert bool((off <= difference.error).all()) and float(difference.error.max()) < 1e-6
    assert not nothing.value.any() and not nothing.error.any()


def test_a_running_product_may_be_formed_in_any_order_below_the_least_normal_number() -> None:
    """A tree of 120 factors and a loop over them differ by a denormal's whole precision."""
    program = parse_program(
        "region v1\ndims d0=64 d1=120\nin0 f32[d0,d1]\n"
        "t0 f32[d0,d1] = cumprod(in0) along d1\nout0 f32[d0,d1] = t0\n"
    )
    x = torch.rand(64, 120, generator=torch.Generator().manual_seed(3)) * 0.9
    x[0, 5] = 0.0
    halves = x.view(64, 8, 15).cumprod(2)
    before = halves[:, :, -1].cumprod(1).roll(1, 1)
    before[:, 0] = 1.0
    found = (halves * before[:, :, None]).view(64, 120)
    (want,) = expect(program, [x])
    tiny = 2.0**-126
    assert bool(((found != x.cumprod(1)) & (found.abs() < tiny)).any())
    assert refusal(read(measure(found, want), want), found, want) is None
    late = torch.where(found.abs() < tiny, found, found * (1.0 + 2.0**-10))
    assert refusal(read(measure(late, want), want), late, want)
    late = torch.where(x.cumprod(1) == 0.0, 1e-30, found)  # behind a factor of zero
    assert refusal(read(measure(late, want), want), late, want)


def test_an_argmax_may_keep_what_eager_rounds_and_no_less() -> None:
    suite = prepare_suite(parse_program(TIES), SEED, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    inputs = [[x.float() for x in c.inputs] for c in suite.cases]
    wide = [[(a * b).argmax(1)] for a, b in inputs]
    rounded = [[(a * b).bfloat16().argmax(1)] for a, b in inputs]
    assert any(not torch.equal(a[0], b[0]) for a, b in zip(wide, rounded, strict=True))
    assert refusals(suite.cases, wide) == refusals(suite.cases, rounded) == []
    last = [[299 - (a * b).bfloat16().flip(1).argmax(1)] for a, b in inputs]  # the last of equal values
    assert refusals(suite.cases, last)


CONVOLUTION = """region v1
dims d0=2 d1=24 d2=12 d3=12 d4=8 d5=12 d6=12 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d4,d1,k0,k1]
t0 f32[d0,d4,d5,d6] = dot(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1
out0 f32[d0,d4,d5,d6] = t0
"""


@pytest.mark.parametrize(("fn", "allows"), [("dot", ["f32"]), ("dot_tf32", ["f32", "tf32"])])
def test_products_are_as_precise_as_the_flags_ask(fn: str, allows: list[str]) -> None:
    program = parse_program(CONVOLUTION.replace("dot(", f"{fn}("))
    suite = prepare_suite(program, SEED, CPU, 1 << 31, ("normal", "offset", "heavy", "coherent"))
    assert isinstance(suite, CaseSuite)
    roundings = {"f32": torch.clone, "tf32": round_to_tf32, "bf16": lambda x: x.bfloat16().float()}
    for name, rounded in roundings.items():
        results = [
            [torch.nn.functional.conv2d(*(rounded(x) for x in case.inputs), padding=1)] for case in suite.cases
        ]
        assert bool(refusals(suite.cases, results)) == (name not in allows), name


@pytest.mark.parametrize(
    ("large", "off", "right"), [(0.0, 0.3, True), (0.0, 0.4, False), (1000.0, 0.97, True), (1000.0, 6.0, False)]
)
def test_one_large_term_of_a_tf32_sum_errs_as_far_as_its_factors_do(large: float, off: float, right: bool) -> None:
    """Beside 4,095 others, whose roundings average out: 1000 * 2**-10 is far beyond what is left of theirs."""
    program = parse_program(
        "region v1\ndims d0=4 d1=4096\nin0 f32[d0,d1]\nin1 f32[d1]\n"
        "t0 f32[d0] = dot_tf32(in0, in1) over d1\nout0 f32[d0] = t0\n"
    )
    x = torch.randn(4, 4096, generator=torch.Generator().manual_seed(0)).sign()
    x[:, 0] = large
    (wanted,) = expect(program, [x, torch.ones(4096)])
    made = (x.double().sum(1) + off).float()
    assert (refusal(read(measure(made, wanted), wanted), made, wanted) is None) == right


EXACT = """region v1
dims d0=300000 d1=3 d2=40 d3=5
in0 f32[d0]
in1 f32[d1,d2]
in2 f32[d2,d3]
t0 f32[d0] = mul(in0, 1.25)
t1 f32[] = sum(t0) over d0
t2 f32[d0] = mul(in0, 0.1)
t3 f32[] = sum(t2) over d0
t4 f32[d1,d3] = dot(in1, in2) over d2
t5 f32[d0] = exp(in0)
t6 f32[] = sum(t5) over d0
out0 f32[] = t1
out1 f32[] = t3
out2 f32[d1,d3] = t4
out3 f32[] = t6
"""


def test_sums_of_small_integers_are_exact_in_any_order_and_others_are_not() -> None:
    program = parse_program(EXACT)
    for name, exact in (("integers", True), ("normal", False)):
        inputs = make_inputs(program, name, 3, torch.device("cpu"))
        quarters, tenths, products, exponentials = bounded_outputs(program, inputs, None, exact, exact)
        assert quarters.error is not None and products.error is not None
        assert (float(quarters.error) == 0.0) == exact
        assert bool((products.error == 0.0).all()) == exact
        assert tenths.error is not None and exponentials.error is not None
        assert float(tenths.error) > 0.0 and float(exponentials.error) > 0.0


F64 = "region v1\ndims d0=4\nin0 f64[d0]\n{body}\nout0 f64[d0] = t1\n"


@pytest.mark.parametrize(
    ("body", "values", "least"),
    [
        # whole periods
        ("t0 f64[d0] = mul(in0, in0)\nt1 f64[d0] = cos(t0)", [1e9 / 3, 7e8 / 3, 5e8 / 3, 0.5], 1.0),
        ("t0 f64[d0] = div(in0, 3.0)\nt1 f64[d0] = ceil(t0)", [3.0, 6.0, -9.0, 0.5], 0.9),  # a jump
    ],
)
def test_what_rounding_turns_over_in_float64_is_as_open_as_in_float32(
    body: str, values: list[float], least: float
) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    (found,) = bounded_outputs(parse_program(F64.format(body=body)), [x])
    assert found.error is not None
    assert bool((found.error[:3] >= least).all()) and float(found.error[3]) < 1e-14


def test_what_may_be_nan_stays_open_behind_comparisons_choices_and_quotients() -> None:
    text = (
        "region v1\ndims d0=2 d1=8\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nt1 f32[d0] = sqrt(t0)\n"
        "t2 bool[d0] = gt(t1, 0.0)\nt3 f32[d0] = mul(t1, 0.1)\nt4 f32[d0] = where(t2, 0.0, t3)\n"
        "t5 f32[d0] = add(t1, 1.0)\nt6 f32[d0] = div(t4, t5)\n"
        "out0 bool[d0] = t2\nout1 f32[d0] = t4\nout2 f32[d0] = t6\n"
    )
    near = torch.tensor([1.0, 2.0**-24, 2.0**-24, -1.0, 1.0, 2.0**-24, 2.0**-24, -1.0])
    found = bounded_outputs(parse_program(text), [torch.stack([near, near.abs()])])
    for output in found:
        assert output.free is not None
        assert output.free.tolist() == [True, False]
