"""The error budget: other summation orders are legal, narrower arithmetic is not. No kernel, torch alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge import cases as cases_module
from cudal1_compile.judge import exam as exam_module
from cudal1_compile.judge.audit.regions import region
from cudal1_compile.judge.bounds import bounded_outputs
from cudal1_compile.judge.cases import Case, parallel_axis
from cudal1_compile.judge.compare import expect, measure, read, refusal
from cudal1_compile.judge.exam import Exam, NoRoom, Unverifiable, prepare_exam
from cudal1_compile.judge.extremes import SCALARS
from cudal1_compile.judge.inputs import DISTRIBUTIONS, HUGE, make_inputs
from cudal1_compile.judge.sizes import tensor_bytes
from cudal1_fx_passes.evaluate import evaluate, round_to_tf32
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import parse_program

CPU = torch.device("cpu")
SEED = 20261121

POINTWISE = """region v1
dims d0=40 d1=100
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = sigmoid(t0)
t2 f32[d0,d1] = mul(t0, t1)
t3 f32[d0,d1] = add(t2, 0.5)
out0 f32[d0,d1] = t3
"""
SOFTMAX = """region v1
dims d0=40 d1=300
in0 f32[d0,d1]
t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0,d1] = div(t2, t3)
out0 f32[d0,d1] = t4
"""
LAYERNORM = """region v1
dims d0=40 d1=300
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = mul(t1, t1)
t3 f32[d0] = mean(t2) over d1
t4 f32[d0] = add(t3, 1e-05)
t5 f32[d0] = rsqrt(t4)
t6 f32[d0,d1] = mul(t1, t5)
out0 f32[d0,d1] = t6
"""
WIDE_SUM = """region v1
dims d0=4 d1=131072
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
out0 f32[d0] = t0
"""
WIDE_EXP_SUM = """region v1
dims d0=4 d1=100000
in0 f32[d0,d1] in [-4,4]
t0 f32[d0,d1] = exp(in0)
t1 f32[d0] = sum(t0) over d1
out0 f32[d0] = t1
"""
WIDE_VARIANCE = """region v1
dims d0=4 d1=100352
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0] = var(in0, 0) over d1
out0 f32[d0] = t0
out1 f32[d0] = t1
"""
PROGRAMS = {
    "pointwise": POINTWISE,
    "softmax": SOFTMAX,
    "layernorm": LAYERNORM,
    "wide sum": WIDE_SUM,
    "wide sum of exp": WIDE_EXP_SUM,
    "wide variance": WIDE_VARIANCE,
}
_EXAMS: dict[str, Exam] = {}


def _exam(name: str) -> Exam:
    if name not in _EXAMS:
        found = prepare_exam(parse_program(PROGRAMS[name]), SEED, CPU, 1 << 30)
        assert isinstance(found, Exam), found
        _EXAMS[name] = found
    return _EXAMS[name]


def _sequential(x: Tensor, length: int) -> Tensor:
    """A float32 sum over the last dim with `length` additions in a row in each accumulator, then pairwise."""
    missing = -x.shape[-1] % length
    rows = torch.nn.functional.pad(x, (0, missing)).reshape(*x.shape[:-1], length, -1)
    total = torch.zeros(rows[..., 0, :].shape)
    for i in range(length):
        total = total + rows[..., i, :]
    return total.sum(-1)


def _honest(name: str, inputs: list[Tensor], length: int) -> list[Tensor]:
    """The program in float32 by other formulas and another order of sums."""
    x = inputs[0]
    n = x.shape[-1]
    match name:
        case "pointwise":
            t = x * inputs[1]
            return [t * (1.0 / (1.0 + torch.exp(-t))) + 0.5]
        case "softmax":
            e = torch.exp(x - x.amax(-1, keepdim=True))
            return [e * (1.0 / _sequential(e, length))[..., None]]
        case "layernorm":
            d = x - (_sequential(x, length) * (1.0 / n))[..., None]
            return [d * torch.rsqrt(_sequential(d * d, length) * (1.0 / n) + 1e-5)[..., None]]
        case "wide sum":
            return [_sequential(x, length)]
        case "wide sum of exp":
            return [_sequential(torch.exp(x), length)]
        case _:
            mean = _sequential(x, length) / n
            d = x - mean[..., None]
            return [mean, _sequential(d * d, length) / n]


def _tf32(x: Tensor) -> Tensor:
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


ROUNDINGS = {"bf16": lambda x: x.bfloat16().float(), "f16": lambda x: x.half().float(), "tf32": _tf32}


def _narrow_intermediates(name: str, inputs: list[Tensor], kind: str) -> list[Tensor]:
    low = ROUNDINGS[kind]
    x = inputs[0]
    match name:
        case "pointwise":
            t = low(x * inputs[1])
            return [t * torch.sigmoid(t) + 0.5]
        case "softmax":
            e = low(torch.exp(x - x.amax(-1, keepdim=True)))
            return [e / e.sum(-1, keepdim=True)]
        case "layernorm":
            d = low(x - x.mean(-1, keepdim=True))
            return [d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5)]
        case "wide variance":
            d = low(x - x.mean(-1, keepdim=True))
            return [x.mean(-1), (d * d).mean(-1)]
        case _:
            raise ValueError(name)


def _refusals(cases: tuple[Case, ...], results: list[list[Tensor]]) -> list[str]:
    found = [c.check(r).refusal for c, r in zip(cases, results, strict=True)]
    return [r for r in found if r is not None]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_native_reference_is_well_inside(name: str) -> None:
    exam = _exam(name)
    for case in exam.cases:
        found = case.check(evaluate(exam.program, case.inputs))
        assert found.refusal is None
        assert found.worst <= 0.26  # a quarter is its own error alone


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("length", [1, 4, 64, 300, 3125])
def test_other_orders_of_a_sum_are_legal(name: str, length: int) -> None:
    """Up to 3125 terms one after the other in each accumulator: a warp over 100000; 300: one thread a row."""
    exam = _exam(name)
    length = min(length, exam.program.axis["d1"].size)
    results = [_honest(name, c.inputs, length) for c in exam.cases]
    assert _refusals(exam.cases, results) == []


@pytest.mark.parametrize("kind", ROUNDINGS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_rounded_to_a_narrower_format_are_refused(name: str, kind: str) -> None:
    exam = _exam(name)
    results = [evaluate(exam.program, [ROUNDINGS[kind](x) for x in c.inputs]) for c in exam.cases]
    assert _refusals(exam.cases, results)


# Known limit: deviations from a mean, rounded to f16 or TF32 before 100000 squares are summed, change it by less
# than a sequential float32 sum may, so no budget that allows the one can refuse the other.
NARROW = [(n, k) for n in ("pointwise", "softmax", "layernorm") for k in ROUNDINGS] + [("wide variance", "bf16")]


@pytest.mark.parametrize(("name", "kind"), NARROW)
def test_intermediates_rounded_to_a_narrower_format_are_refused(name: str, kind: str) -> None:
    exam = _exam(name)
    results = [_narrow_intermediates(name, c.inputs, kind) for c in exam.cases]
    assert _refusals(exam.cases, results)


def test_accumulating_in_bf16_is_refused() -> None:
    exam = _exam("wide sum")
    results = [[c.inputs[0].bfloat16().sum(-1).float()] for c in exam.cases]
    assert _refusals(exam.cases, results)


def test_a_bf16_program_may_keep_f32_inside_and_may_round_as_eager_does() -> None:
    text = POINTWISE.replace("f32", "bf16")
    exam = prepare_exam(parse_program(text), SEED, CPU, 1 << 30)
    assert isinstance(exam, Exam)
    eager = [evaluate(exam.program, c.inputs) for c in exam.cases]
    assert _refusals(exam.cases, eager) == []
    wide = parse_program(POINTWISE)
    kept = [[evaluate(wide, [x.float() for x in c.inputs])[0].bfloat16()] for c in exam.cases]
    assert _refusals(exam.cases, kept) == []


def test_an_f64_program_refuses_f32() -> None:
    exam = prepare_exam(parse_program(SOFTMAX.replace("f32", "f64")), SEED, CPU, 1 << 30)
    assert isinstance(exam, Exam)
    right = [_honest_f64(c.inputs[0]) for c in exam.cases]
    assert _refusals(exam.cases, right) == []
    narrow = [[torch.softmax(c.inputs[0].float(), -1).double()] for c in exam.cases]
    assert _refusals(exam.cases, narrow)


def _honest_f64(x: Tensor) -> list[Tensor]:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return [e * (1.0 / e.flip(-1).cumsum(-1)[..., -1:])]


def test_every_distribution_takes_part() -> None:
    assert [c.name for c in _exam("wide sum").cases] == [d for d in DISTRIBUTIONS if d != SCALARS]
    # without a reduction there are no rows
    names = [d for d in DISTRIBUTIONS if not d.endswith("_rows") and d != SCALARS]
    assert [c.name for c in _exam("pointwise").cases] == names
    found = prepare_exam(region("scaled_tanh"), SEED, CPU, 1 << 30)
    assert isinstance(found, Exam) and [c.name for c in found.cases] == list(DISTRIBUTIONS)
    assert [bool(c.inputs[1].isnan()) for c in found.cases] == [d == SCALARS for d in DISTRIBUTIONS]


@pytest.mark.parametrize("seed", range(5))
def test_a_variance_in_one_pass_is_refused_in_most_rows(seed: int) -> None:
    exam = prepare_exam(region("batch_stats"), seed, CPU, 1 << 30)
    assert isinstance(exam, Exam)
    case = next(c for c in exam.cases if c.name == "near_rows")
    assert case.expected is not None
    x, expected = case.inputs[0], case.expected[2]
    mean = x.mean((0, 2, 3))
    shares = ((x * x).mean((0, 2, 3)) - mean * mean - expected.want).abs() / expected.tolerance
    assert (shares > 1.0).double().mean() > 0.5  # a third of the rows varies about zero, where nothing cancels
    right = x.var((0, 2, 3), unbiased=False)
    assert refusal(read(measure(right, expected), expected), right, expected) is None


def test_a_large_case_is_compared_slice_by_slice_and_finds_one_wrong_element() -> None:
    program = parse_program(SOFTMAX)
    assert parallel_axis(program, {}) == "d0"
    exam = prepare_exam(program, SEED, CPU, 9 * tensor_bytes(program), ("normal", "offset"))
    assert isinstance(exam, Exam)
    case = exam.cases[0]
    assert case.expected is None
    got = evaluate(program, case.inputs)
    assert case.check(got).refusal is None
    got[0][39, 299] += 1e-3
    refusal = case.check(got).refusal
    assert refusal is not None
    assert "1 of" in refusal


def test_a_large_case_that_may_be_kept_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(SOFTMAX)
    for module in (cases_module, exam_module):
        monkeypatch.setattr(module, "oracle_bytes", lambda *_: 1 << 32)
    exam = prepare_exam(program, SEED, CPU, 1 << 30, ("normal", "offset"))
    assert isinstance(exam, Exam)
    case = exam.cases[0]
    assert case.expected is None and len(case.parts) > 1
    assert case.expected_bytes == 16 * program.size(program.outputs[0].axes)
    assert {id(t) for t in exam.tensors()} >= {id(e.want) for part in case.parts for e in part}  # they are sealed
    monkeypatch.setattr(cases_module, "expect", None)
    got = evaluate(program, case.inputs)
    assert case.check(got).refusal is None
    got[0][39, 299] += 1e-3
    assert "1 of" in (case.check(got).refusal or "")
    other = exam.cases[1]
    assert not case.with_inputs("normal", other.inputs).parts  # what was kept is of other inputs


@pytest.mark.parametrize("order", [("t1", "t0"), ("t0", "t1")])
def test_the_limits_over_a_whole_output_hold_for_each_output_of_a_large_case(order: tuple[str, str]) -> None:
    text = "region v1\ndims d0=40 d1=300\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nt1 bool[d0,d1] = gt(t0, 1.0)\n"
    text += "".join(f"out{i} {'bool' if t == 't1' else 'f32'}[d0,d1] = {t}\n" for i, t in enumerate(order))
    program = parse_program(text)
    exam = prepare_exam(program, SEED, CPU, 9 * tensor_bytes(program), ("normal", "offset"))
    assert isinstance(exam, Exam)
    case = exam.cases[0]
    assert case.expected is None
    right = evaluate(program, case.inputs)
    assert case.check(right).refusal is None
    place = order.index("t0")
    rough = [x.clone() for x in right]
    rough[place] = _all_but_out_of_tolerance(case, place)
    refusal = case.check(rough).refusal
    assert refusal is not None
    assert "root mean square" in refusal


def _all_but_out_of_tolerance(case: Case, place: int) -> Tensor:
    """A float output that uses most of what each element may be off; rounded to f32 it must not use all."""
    empty = [torch.empty([40, 300], device="meta")] * 2
    found = []
    for start, stop in case.slices():
        want = [w for _, w in case.compared_slice(empty, start, stop)][place]
        assert want.tolerance is not None
        found.append(want.want + 0.84 * want.tolerance)
    return torch.cat(found, dim=["d0", "d1"].index(case.axis or "")).float()


def test_no_room_is_said_and_not_tried() -> None:
    assert isinstance(prepare_exam(parse_program(SOFTMAX), SEED, CPU, 1000), NoRoom)


VACUOUS = {
    "a constant": "t0 f32[d0] = mul(in0, 0.0)\nt1 f32[d0] = add(t0, 1.0)\nout0 f32[d0] = t1\n",
    "zeros": "t0 f32[d0] = mul(in0, 0.0)\nout0 f32[d0] = t0\n",
}


@pytest.mark.parametrize("stand_in", VACUOUS)
def test_a_vacuous_task_is_unverifiable(stand_in: str) -> None:
    program = parse_program(f"region v1\ndims d0=64\nin0 f32[d0] in [-1,1]\n{VACUOUS[stand_in]}")
    found = prepare_exam(program, SEED, CPU, 1 << 30)
    assert isinstance(found, Unverifiable)
    assert "unverifiable" in found.reason


def test_one_unlucky_draw_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(program: Program, seed: int, *_: object) -> Unverifiable:
        drawn.append(seed)
        return Unverifiable("not finite")

    monkeypatch.setattr(exam_module, "_draw", draw)
    assert isinstance(prepare_exam(region("softmax"), SEED, CPU, 1 << 30), Unverifiable)
    assert len(set(drawn)) == 2


def test_a_copy_is_verifiable_although_its_input_passes_through() -> None:
    program = parse_program("region v1\ndims d0=64 d1=8\nin0 f32[d0,d1]\nout0 f32[d1,d0] = in0\n")
    exam = prepare_exam(program, SEED, CPU, 1 << 30)
    assert isinstance(exam, Exam)
    good = [[c.inputs[0].t()] for c in exam.cases]
    assert _refusals(exam.cases, good) == []
    bad = [[c.inputs[0].t() * (1 + 2**-23)] for c in exam.cases]
    assert _refusals(exam.cases, bad)


def test_masks_are_exact_where_inputs_are_compared_and_exempt_only_at_rounding_distance() -> None:
    text = """region v1
dims d0=64 d1=200
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 bool[d0,d1] = gt(t0, 0.5)
out0 bool[d0,d1] = t1
"""
    exam = prepare_exam(parse_program(text), SEED, CPU, 1 << 30)
    assert isinstance(exam, Exam)
    case = exam.cases[0]
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
    from cudal1_compile.judge.cases import make_case

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


LABELS = """region v1
dims d0=4 d1=16 d2=50
in0 i64[d0,d1]
in1 f32[d0,d1,d2]
t0 bool[d0,d1] = ne(in0, -100)
t1 f32[d0,d1] = logsumexp(in1) over d2
t2 f32[d0,d1,d2] = sub(in1, t1)
t3 i64[d0,d1] = where(t0, in0, 0)
t4 f32[d0,d1] = neg(t2[d2=t3])
t5 f32[d0,d1] = where(t0, t4, 0.0)
t6 f32[] = sum(t5) over d0,d1
t7 i64[d0,d1] = cast(t0)
t8 i64[] = sum(t7) over d0,d1
out0 f32[] = t6
out1 i64[] = t8
"""


def test_few_cases_of_labels_hold_the_one_that_is_left_out() -> None:
    """Else the count of the others is the same for all inputs, and the task cannot be told from a stand-in."""
    exam = prepare_exam(parse_program(LABELS), SEED, CPU, 1 << 30, HUGE)
    assert isinstance(exam, Exam), exam


def test_an_argmax_may_keep_what_eager_rounds_and_no_less() -> None:
    exam = prepare_exam(parse_program(TIES), SEED, CPU, 1 << 30)
    assert isinstance(exam, Exam)
    inputs = [[x.float() for x in c.inputs] for c in exam.cases]
    wide = [[(a * b).argmax(1)] for a, b in inputs]
    rounded = [[(a * b).bfloat16().argmax(1)] for a, b in inputs]
    assert any(not torch.equal(a[0], b[0]) for a, b in zip(wide, rounded, strict=True))
    assert _refusals(exam.cases, wide) == _refusals(exam.cases, rounded) == []
    last = [[299 - (a * b).bfloat16().flip(1).argmax(1)] for a, b in inputs]  # the last of equal values
    assert _refusals(exam.cases, last)


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
    exam = prepare_exam(program, SEED, CPU, 1 << 31, ("normal", "offset", "heavy", "coherent"))
    assert isinstance(exam, Exam)
    roundings = {"f32": torch.clone, "tf32": round_to_tf32, "bf16": lambda x: x.bfloat16().float()}
    for name, rounded in roundings.items():
        results = [
            [torch.nn.functional.conv2d(*(rounded(x) for x in case.inputs), padding=1)] for case in exam.cases
        ]
        assert bool(_refusals(exam.cases, results)) == (name not in allows), name


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
