"""Discrete results where rounding may decide: what rounds elsewhere is right, what decides otherwise is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.checks.cases import Case
from cudal1_compile.judge.oracle.bounds import bounded_outputs
from cudal1_fx_passes.program.text import parse_program

CPU = torch.device("cpu")
SEEDS = (1, 2, 3)
RESULTS = (3, 10, 48, 256)
COLUMNS = 64

# four roundings to f16 by eager, none by the oracle, one by a kernel that rounds before it compares
CHAIN = """region v1
dims d0={rows} d1=64
in0 f16[d0,d1]
in1 f16[d0,d1]
in2 f16[d1]
t0 f16[d1] = sigmoid(in2)
t1 f16[d0,d1] = mul(in1, t0)
t2 f16[d0,d1] = mul(t1, in2)
t3 f16[d0,d1] = add(in0, t2)
t4 i64[d0] = argmax(t3) over d1
out0 i64[d0] = t4
"""
WINDOWS = """region v1
dims d0=4 d1=4 d2=8 d3=8 d4=4 d5=4 k0=3 k1=3
in0 {dtype}[d0,d1,d2,d3]
in1 {dtype}[d0,d1]
in2 {dtype}[d1]
t0 {dtype}[d0,d1] = sigmoid(in1)
t1 {dtype}[d0,d1] = mul(t0, in2)
t2 {dtype}[d0,d1,d2,d3] = mul(in0, t1)
t3 i8[d0,d1,d4,d5] = argmax(t2[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
out0 i8[d0,d1,d4,d5] = t3
"""
# no half type holds 0.79, and eager compares with what it holds
LITERAL = """region v1
dims d0=64 d1=32
in0 {dtype}[d0,d1]
t0 bool[d0,d1] = gt(in0, 0.79)
t1 {dtype}[d0,d1] = where(t0, in0, 0.0)
t2 i64[d0] = argmax(t1) over d1
out0 bool[d0,d1] = t0
out1 i64[d0] = t2
"""
# of windows of a convolution; its operands may be truncated to TF32 or rounded
POOLED = """region v1
dims d0=2 d1=24 d2=48 d3=48 d4=24 d5=48 d6=48 d7=24 d8=24 k0=3 k1=3 k2=2 k3=2
in0 f32[d0,d1,d2,d3] >=0
in1 f32[d4,d1,k0,k1]
t0 f32[d0,d4,d5,d6] = dot_tf32(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1
t1 f32[d0,d4,d5,d6] = relu(t0)
t2 i8[d0,d4,d7,d8] = argmax(t1[d5=2*d7+k2, d6=2*d8+k3]) over k2,k3
out0 i8[d0,d4,d7,d8] = t2
"""


def cases(text: str, seed: int) -> tuple[Case, ...]:
    suite = prepare_suite(parse_program(text), seed, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite), suite
    return suite.cases


def refusals(found: list[tuple[Case, list[Tensor]]]) -> list[str]:
    checked = (case.check(outputs).refusal for case, outputs in found)
    return [reason for reason in checked if reason is not None]


def chained(case: Case) -> Tensor:
    a, b, c = (x.float() for x in case.inputs)
    return (a + b * torch.sigmoid(c) * c).half()


def pooled(case: Case) -> Tensor:
    """All windows, rounded once: [d0, d1, place in the window, d4, d5]."""
    x, a, b = (t.float() for t in case.inputs)
    made = x * (torch.sigmoid(a) * b)[..., None, None]
    made = made if case.inputs[0].dtype == torch.float32 else made.half().float()
    padded = torch.nn.functional.pad(made, (1, 1, 1, 1), value=-torch.inf)
    places = [padded[..., i : i + 8 : 2, j : j + 8 : 2] for i in range(3) for j in range(3)]
    return torch.stack(places, 2)


def test_a_kernel_may_round_once_before_it_decides() -> None:
    for seed in SEEDS:
        for rows in RESULTS:
            found = [(c, [chained(c).argmax(1)]) for c in cases(CHAIN.format(rows=rows), seed)]
            assert refusals(found) == []
        found = [(c, [pooled(c).argmax(2).to(torch.int8)]) for c in cases(WINDOWS.format(dtype="f16"), seed)]
        assert refusals(found) == []


@pytest.mark.parametrize("rows", RESULTS)
def test_the_last_of_equals_is_refused_however_few_results_there_are(rows: int) -> None:
    for seed in SEEDS:
        found = [(c, [COLUMNS - 1 - chained(c).flip(1).argmax(1)]) for c in cases(CHAIN.format(rows=rows), seed)]
        assert refusals(found)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_one_wrong_place_of_a_window_is_refused(dtype: str) -> None:
    """That its values are computed, and so rounded, is no reason to look away."""
    for seed in SEEDS:
        made = cases(WINDOWS.format(dtype=dtype), seed)
        assert refusals([(c, [pooled(c).argmax(2).to(torch.int8)]) for c in made]) == []
        for place in range(0, 256, 15):
            found = []
            for case in made:
                wrong = pooled(case).argmax(2).to(torch.int8)
                wrong.view(-1)[place] = pooled(case).argmin(2).view(-1)[place]
                found.append((case, [wrong]))
            assert refusals(found)


def masked(case: Case, bound: float, included: bool) -> list[Tensor]:
    x = case.inputs[0].double()
    kept = x >= bound if included else x > bound
    return [kept, torch.where(kept, x, 0.0).argmax(1)]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_literal_that_a_dtype_cannot_hold_is_one_of_its_neighbours_or_float32s(dtype: str) -> None:
    single, own = (torch.tensor(0.79, dtype=d).item() for d in (torch.float32, _TORCH[dtype]))
    for seed in SEEDS:
        made = cases(LITERAL.format(dtype=dtype), seed)
        for bound in (single, own):
            assert refusals([(c, masked(c, bound, included=False)) for c in made]) == []
        below = torch.nextafter(torch.tensor(own, dtype=_TORCH[dtype]), torch.tensor(0.0, dtype=_TORCH[dtype]))
        wrong = below.item() if own > single else own
        assert refusals([(c, masked(c, wrong, included=True)) for c in made])


_TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}


def test_only_rivals_of_the_best_make_a_place_uncertain() -> None:
    program = parse_program(WINDOWS.format(dtype="f32"))
    x = torch.arange(4 * 4 * 64, dtype=torch.float32).reshape(4, 4, 8, 8)
    x[0, 0, 4, 4] = torch.nextafter(
        x[0, 0, 5, 5], torch.tensor(0.0)
    )  # as large as its neighbour, but for rounding
    (found,) = bounded_outputs(program, [x, torch.ones(4, 4), torch.ones(4)])
    assert found.error is not None
    assert found.error.nonzero().tolist() == [[0, 0, 2, 2]]


# of computed values, whose rounding made every tie one that may be decided anyhow; one result may always differ
ALONE = """region v1
dims d0=300
in0 f32[d0]
t0 f32[d0] = sigmoid(in0)
t1 i64[] = argmax(t0) over d0
out0 i64[] = t1
"""


def of_lanes(x: Tensor) -> Tensor:
    """The place of the largest element as 32 lanes find it that do not ask which of equals comes first."""
    rows = torch.nn.functional.pad(x, (0, -len(x) % 32), value=-torch.inf).unflatten(0, (-1, 32))
    found, lane = rows.max(0)
    at = lane * 32 + torch.arange(32)
    nan = x.isnan()
    return nan.int().argmax() if bool(nan.any()) else at[found.argmax()]


def test_of_equals_made_alike_the_first_is_the_place_though_they_are_rounded() -> None:
    made = [case for seed in range(1, 7) for case in cases(ALONE, seed)]
    assert refusals([(c, [torch.sigmoid(c.inputs[0]).argmax()]) for c in made]) == []
    assert refusals([(c, [of_lanes(torch.sigmoid(c.inputs[0]))]) for c in made])


def test_elements_are_alike_only_where_all_that_they_are_made_of_is() -> None:
    text = """region v1
dims d0=2 d1=3
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, 0.1)
t1 f32[d0,d1] = mul(in1, 0.1)
t2 f32[d0,d1] = add(t0, t1)
t3 i64[d0] = argmax(t2) over d1
out0 i64[d0] = t3
"""
    a, b = torch.tensor([[2.0, 1.0, 0.0], [2.0, 2.0, 0.0]]), torch.tensor([[1.0, 2.0, 0.0], [1.0, 1.0, 0.0]])
    (found,) = bounded_outputs(parse_program(text), [a, b])
    assert found.error is not None
    assert (found.error > 0).tolist() == [True, False]


# sigmoid(0) is 0.5 and x / 0.125 is 8 x, whatever the formula
MASK = """region v1
dims d0=24 d1=40
in0 f32[d0,d1]
t0 f32[d0,d1] = sigmoid(in0)
t1 bool[d0,d1] = gt(t0, 0.5)
t2 f32[d0,d1] = cast(t1)
out0 f32[d0,d1] = t2
"""
STEP = """region v1
dims d0=24 d1=40
in0 f32[d0,d1]
t0 f32[d0,d1] = div(in0, 0.125)
t1 f32[d0,d1] = round(t0)
out0 f32[d0,d1] = t1
"""
# of which a divisor that is 0 made too much not finite: no equal numbers were left
CHANNELS = STEP.replace("in0 f32[d0,d1]", "in0 f32[d0,d1]\nin1 f32[d1]").replace("0.125", "in1")


def away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x.sign() * (x.abs() + 0.5).floor(), x)


def test_a_float_that_hangs_on_a_decision_is_decided_where_no_rounding_decides() -> None:
    for seed in SEEDS:
        made = cases(MASK, seed)
        assert refusals([(c, [(torch.sigmoid(c.inputs[0]) > 0.5).float()]) for c in made]) == []
        assert refusals([(c, [(torch.sigmoid(c.inputs[0]) >= 0.5).float()]) for c in made])
        made = cases(STEP, seed)
        assert refusals([(c, [(c.inputs[0] / 0.125).round()]) for c in made]) == []
        assert refusals([(c, [away_from_zero(c.inputs[0] / 0.125)]) for c in made])


def test_a_divisor_that_may_be_zero_leaves_no_distribution_out() -> None:
    for seed in SEEDS:
        made = cases(CHANNELS, seed)
        assert {"blocks", "edges", "integers"} <= {c.name for c in made}
        assert refusals([(c, [(c.inputs[0] / c.inputs[1]).round()]) for c in made]) == []
        assert refusals([(c, [away_from_zero(c.inputs[0] / c.inputs[1])]) for c in made])


# greedy decoding, and the largest of sums: of so many hardly ever the last one
HEAD = """region v1
dims d0=2 d1=16 d2=1003
in0 f32[d0,d1]
in1 f32[d2,d1]
in2 f32[d2]
t0 f32[d0,d2] = dot(in0, in1) over d1
t1 f32[d0,d2] = add(t0, in2)
t2 i64[d0] = {search}(t1) over d2
out0 i64[d0] = t2
"""
ROWS = """region v1
dims d0=1003 d1=16
in0 f32[d0,d1]
t0 f32[d0] = sum(in0) over d1
t1 f32[] = {search}(t0) over d0
out0 f32[] = t1
"""


@pytest.mark.parametrize("left_out", [1, 11])
def test_a_search_among_sums_that_leaves_out_the_last_tile_is_refused(left_out: int) -> None:
    kept = 1003 - left_out
    for seed in SEEDS:
        for search, find in (("argmax", torch.argmax), ("argmin", torch.argmin)):
            found = [
                (c, torch.addmm(c.inputs[2], c.inputs[0], c.inputs[1].T)) for c in cases(_of(HEAD, search), seed)
            ]
            assert refusals([(c, [find(x, 1)]) for c, x in found]) == []
            assert refusals([(c, [find(x[:, :kept], 1)]) for c, x in found])
        for search, extreme in (("amax", torch.amax), ("amin", torch.amin)):
            found = [(c, c.inputs[0].sum(1)) for c in cases(_of(ROWS, search), seed)]
            assert refusals([(c, [extreme(x, 0)]) for c, x in found]) == []
            assert refusals([(c, [extreme(x[:kept], 0)]) for c, x in found])


def _of(text: str, search: str) -> str:
    return text.format(search=search)


CHANGED = """region v1
dims d0=7 d1=1003
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = sub(in0, in1)
t1 f32[d0,d1] = abs(t0)
t2 f32[] = amax(t1) over d0,d1
out0 f32[] = t2
"""
KNOWN = """region v1
dims d0=5 d1=1003
in0 i64[d0,d1]
in1 i64[d0]
t0 bool[d0,d1] = eq(in0, in1)
t1 bool[d0] = any(t0) over d1
out0 bool[d0] = t1
"""
SPOILT = """region v1
dims d0=1003 d1=5
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 bool[d0,d1] = isnan(t0)
t2 bool[] = any(t1) over d0,d1
out0 bool[] = t2
"""


def difference(a: Tensor, b: Tensor, left_out: int) -> Tensor:
    return (a - b).abs().flatten()[: a.numel() - left_out].amax()


def has_known(a: Tensor, b: Tensor, left_out: int) -> Tensor:
    return (a == b[:, None])[:, : a.shape[1] - left_out].any(1)


def has_nan(a: Tensor, b: Tensor, left_out: int) -> Tensor:
    return (a * b).isnan().flatten()[: a.numel() - left_out].any()


@pytest.mark.parametrize(("text", "run"), [(CHANGED, difference), (KNOWN, has_known), (SPOILT, has_nan)])
def test_of_many_that_are_looked_through_the_last_one_decides_alone_once(
    text: str, run: Callable[[Tensor, Tensor, int], Tensor]
) -> None:
    for seed in SEEDS:
        made = cases(text, seed)
        assert refusals([(c, [run(c.inputs[0], c.inputs[1], 0)]) for c in made]) == []
        assert refusals([(c, [run(c.inputs[0], c.inputs[1], 3)]) for c in made])


def truncated(x: Tensor) -> Tensor:
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def largest(case: Case, to_kind: Callable[[Tensor], Tensor]) -> Tensor:
    """The place in each window of 2x2 of a convolution whose operands are rounded by `to_kind`."""
    image, weight = (to_kind(x).double() for x in case.inputs)
    made = torch.nn.functional.conv2d(image, weight, padding=1).float().relu()
    windows = made.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).transpose(-3, -2).flatten(-2)
    return windows.argmax(-1).to(torch.int8)


@pytest.mark.parametrize("seed", SEEDS)
def test_truncated_operands_may_decide_where_inputs_are_nearly_equal(seed: int) -> None:
    """As the hardware takes them: 3 of 4 right replies to the pooling of a U-Net in training were refused."""
    made = cases(POOLED, seed)
    assert refusals([(c, [largest(c, truncated)]) for c in made]) == []
    assert refusals([(c, [largest(c, lambda x: x.bfloat16().float())]) for c in made])
    near = next(c for c in made if c.name == "near_rows")
    wrong = largest(near, truncated)
    wrong[0] = 3 - wrong[0]
    assert refusals([(near, [wrong])])
