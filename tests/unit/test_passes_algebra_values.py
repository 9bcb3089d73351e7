"""Algebra: values that cannot matter, reductions over one element, what is computed twice."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cudal1_fx_passes.algebra import rewrite
from tests.algebra_checks import LABELS, Function, check, check_training, drawn, rewritten, targets, traced

SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -1.0, 0.1, 3e38, 1e-40]

CONSTANTS: dict[str, tuple[Function, float]] = {
    "minimum, clamp": (lambda x: torch.clamp(torch.minimum(x, torch.full((), 0.0)), 0, 1), 0.0),
    "clamp max, clamp": (lambda x: torch.clamp(x, max=0.125).clamp(0.125, 1), 0.125),
    "clamp, clamp": (lambda x: x.clamp(0, 1).clamp(2, 3), 2.0),
    "relu of negative": (lambda x: torch.relu(-torch.sigmoid(x)), 0.0),
    "hardtanh, minimum": (lambda x: F.hardtanh(x).clamp(min=-2).clamp(max=-1), -1.0),
    "less itself": (lambda x: x - x, 0.0),
    "times zero": (lambda x: torch.exp((x + 1) * 0.0), 1.0),
    "both": (lambda x: torch.where(x > 0, torch.relu(-torch.relu(x)), torch.full((), 0.0)), 0.0),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_chain_that_always_gives_one_number(name: str, dtype: torch.dtype) -> None:
    fn, number = CONSTANTS[name]
    x = drawn(8, 9, dtype=dtype)
    gm, fired = rewritten(fn, x)
    assert set(fired) <= {"constant_result", "clamp_within_range"} and "constant_result" in fired
    assert targets(gm) == {"aten.full.default"}
    assert torch.equal(gm(x), fn(x)) and torch.equal(gm(x), torch.full_like(x, number))
    assert "constant_result" not in rewritten(fn, x, labels={"exact", "reassociates"})[1]  # NaN would be lost


NOT_CONSTANT: list[Function] = [
    lambda x: x.clamp(max=0.5).clamp(0, 1),
    lambda x: x.clamp(max=math.inf).clamp(min=0),
    lambda x: x / x,  # 0 / 0
    lambda x: x - x.clone().mul(2),
    lambda x: torch.relu(x) * 2 - torch.relu(x),
    lambda x: torch.sigmoid(x).clamp(0.5, 1),
    lambda x: torch.where(x > 0, x.clamp(1, 2), 1.0).clamp(min=0.5),
    lambda x: torch.rand_like(x).clamp(0, 1),
]


@pytest.mark.parametrize("fn", NOT_CONSTANT)
def test_chains_that_stay(fn: Function) -> None:
    gm, fired = rewritten(fn, drawn(8, 9))
    assert "constant_result" not in fired


def test_what_only_a_constant_read_goes_and_random_numbers_stay() -> None:
    x, w = drawn(2, 3, 8, 8), drawn(4, 3, 3, 3)
    gm = check(lambda x, w: F.conv2d(x, w).clamp(max=0.0).clamp(0, 1), x, w, rule="constant_result")
    assert "aten.convolution.default" not in targets(gm)
    gm, fired = rewritten(lambda x: x + (torch.rand_like(x) * x).clamp(max=0.0).clamp(0, 1), x)
    assert fired == ["constant_result"]
    assert any("rand" in name for name in targets(gm))  # draws as before
    gm = traced(lambda x: x.clamp(max=0.0).clamp(0, 1), [x], dynamic=True)
    assert rewrite(gm.graph, LABELS) == []


def test_constants_in_training() -> None:
    x, w = drawn(16, 24), drawn(20, 24)
    check_training(
        lambda x, w: F.linear(x, w).clamp(max=-9.0).clamp(-9.0, 1) + x[:, :20], x, w, rule="constant_result"
    )
    check_training(lambda x, w: F.linear(x, w).amax(1, keepdim=True).softmax(1) + x, x, w, rule="constant_result")


WITHIN: dict[str, Function] = {
    "relu of relu": lambda x: torch.exp(torch.relu(torch.relu(x))),
    "relu of sigmoid": lambda x: torch.exp(torch.relu(torch.sigmoid(x))),
    "abs of relu": lambda x: torch.exp(torch.abs(torch.relu(x))),
    "clamp of sigmoid": lambda x: torch.exp(torch.sigmoid(x).clamp(0, 1)),
    "clamp of hardtanh": lambda x: torch.exp(F.hardtanh(x).clamp(-1, 2)),
    "minimum of tanh": lambda x: torch.exp(torch.minimum(torch.full((), 1.5), torch.tanh(x))),
    "relu of softmax": lambda x: torch.exp(torch.relu(F.softmax(x, 1))),
    "relu of a softmax in parts": lambda x: torch.exp(
        torch.relu(torch.exp(x) / torch.exp(x).sum(1, keepdim=True))
    ),
}


@pytest.mark.parametrize("name", WITHIN)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_lies_within_bounds_is_not_clamped(name: str, data: st.DataObject) -> None:
    x = drawn(4, 6)
    for place in data.draw(st.lists(st.integers(0, 23), max_size=4)):
        x.view(-1)[place] = data.draw(st.sampled_from(SPECIAL))
    gm, fired = rewritten(WITHIN[name], x, labels={"exact"})
    assert set(fired) == {"clamp_within_range"}
    assert torch.equal(gm(x).nan_to_num(nan=-1), traced(WITHIN[name], [x])(x).nan_to_num(nan=-1))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.exp(torch.tanh(x).clamp(0, 0.5)),
        lambda x: torch.exp(torch.relu(x).clamp(0.5)),
        lambda x: torch.exp(torch.minimum(torch.sigmoid(x), x.abs() + 1)),  # NaN
        lambda x: torch.relu(torch.relu(x)),  # would be one tensor, were the other returned
        lambda x: torch.exp(torch.abs(x)),
    ],
)
def test_clamps_that_stay(fn: Function) -> None:
    assert rewritten(fn, drawn(4, 6))[1] == []


def test_no_result_becomes_another_one_or_an_input() -> None:
    x = drawn(4, 1).relu()
    gm = traced(lambda x: torch.stack([x]), [x])
    for fn in (lambda x: x.sum(1, keepdim=True), lambda x: x.sum(1, keepdim=True).view(2, 2)):
        gm, fired = rewritten(fn, x)
        assert fired == [] and gm(x).data_ptr() != x.data_ptr()


ONES: dict[str, Function] = {
    "sum": lambda x: torch.exp(x.sum(1)),
    "mean": lambda x: torch.exp(x.mean(1, keepdim=True)),
    "amax": lambda x: torch.exp(x.amax(1)),
    "amin": lambda x: torch.exp(x.amin((1, 2), keepdim=True)),
    "max": lambda x: torch.exp(x.max(1).values),
    "logsumexp": lambda x: torch.exp(torch.logsumexp(x, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ONES)
def test_reductions_of_one_element(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype).reshape(-1, 1, 1)
    gm, fired = rewritten(ONES[name], x, labels={"exact"})
    assert ("logsumexp_of_one" if name == "logsumexp" else "reduction_of_one") in fired
    assert not {t for t in targets(gm) if "sum" in t or "mean" in t or "max" in t or "min" in t}
    got, plain = gm(x), ONES[name](x)
    assert got.shape == plain.shape and got.dtype == dtype
    assert torch.equal(got.nan_to_num(nan=-1), plain.nan_to_num(nan=-1))
    assert rewritten(ONES[name], drawn(8, 2, 1), labels={"exact"})[1] in ([], ["reduction_of_one"])
    assert rewritten(ONES[name], drawn(8, 2, 2), labels={"exact"})[1] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: F.softmax(F.linear(x, w).amax(1, keepdim=True), 1),
        lambda x, w: F.log_softmax(F.linear(x, w).amax(1, keepdim=True), 1),
        lambda x, w: (y := F.linear(x, w).amax(1, keepdim=True)) - y.mean(1, keepdim=True),
        lambda x, w: F.gelu((y := torch.max(x @ w.t(), 1, keepdim=True).values) - y.mean(1, keepdim=True)),
    ],
)
def test_softmax_and_centring_of_one_element(fn: Function, dtype: torch.dtype) -> None:
    x, w = drawn(16, 24, dtype=dtype), drawn(20, 24, dtype=dtype)
    gm, fired = rewritten(fn, x, w)
    assert "constant_result" in fired and not {t for t in targets(gm) if "mm" in t}
    assert torch.equal(gm(x, w), fn(x, w))
    assert "constant_result" not in rewritten(fn, x, w, labels={"exact"})[1]


def test_products_that_are_repeated() -> None:
    x, w = drawn(16, 24), drawn(20, 24)
    gm = check(lambda x, w: F.linear(x, w).relu() + F.linear(x, w).sigmoid(), x, w, rule="product_computed_before")
    assert sum("mm" in str(n.target) for n in gm.graph.nodes) == 1
    gm = check(lambda x, w: (x @ w.t() + 1) @ w + (x @ w.t() + 1) @ w, x, w, rule="product_computed_before")
    assert sum("mm" in str(n.target) for n in gm.graph.nodes) == 2
    image, taps = drawn(2, 3, 8, 8), drawn(4, 3, 3, 3)
    check(lambda x, w: F.conv2d(x, w).relu() * F.conv2d(x, w), image, taps, rule="product_computed_before")


def test_products_that_are_not_repeated() -> None:
    image, taps, x = drawn(2, 3, 8, 8), drawn(3, 3, 3, 3), drawn(16, 16)
    for fn in (
        lambda x, w: F.conv2d(x, w, padding=1).relu() * F.conv2d(x, w, padding=2, dilation=2),
        lambda x, w: F.conv2d(x, w).relu() * F.conv2d(x, w.transpose(0, 1)),
    ):
        assert rewritten(fn, image, taps)[1] == []

    def dropped(x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, True) @ x + F.dropout(x, 0.5, True) @ x

    assert rewritten(dropped, x)[1] == []

    def returned(x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ x, x @ x

    gm = traced(returned, [x])  # type: ignore[arg-type]
    assert rewrite(gm.graph, LABELS) == []
