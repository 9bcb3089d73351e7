"""Discrete results where rounding may decide: what rounds elsewhere is right, what decides otherwise is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge.bounds import bounded_outputs
from cudal1_compile.judge.cases import Case
from cudal1_compile.judge.exam import Exam, prepare_exam
from cudal1_fx_passes.text import parse_program

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
    exam = prepare_exam(parse_program(text), seed, CPU, 1 << 30)
    assert isinstance(exam, Exam), exam
    return exam.cases


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
