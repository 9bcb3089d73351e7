"""Algebra: products of triangular matrices, and what is scaled behind a product or a convolution."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_but
from torch import Tensor, fx

from cudal1_fx_passes.algebra import rewrite, triangles, weights
from cudal1_fx_passes.algebra.masks import Triangle
from tests.algebra_checks import LABELS, Function, check, check_training, drawn, rewritten, traced


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fires at large sizes does so at small ones."""
    for name, least in (
        ("LEAST_PANEL", 100),
        ("LEAST_SIDE", 24),
        ("LEAST_SIDE_OF_HALVES", 24),
        ("LEAST_MIRRORED", 30),
    ):
        monkeypatch.setattr(triangles, name, least)
    monkeypatch.setattr(weights, "LEAST", 1 << 10)


TRIANGLES: dict[str, Function] = {
    "both lower": lambda a, b: torch.tril(a) @ torch.tril(b),
    "both upper": lambda a, b: torch.triu(a) @ torch.triu(b),
    "beside the diagonal": lambda a, b: torch.tril(a, -2) @ torch.tril(b, 3),
    "above the diagonal": lambda a, b: torch.triu(a, 1) @ torch.triu(b, -3),
    "left": lambda a, b: torch.tril(a) @ b,
    "left, upper": lambda a, b: torch.triu(a, 2) @ b,
    "right": lambda a, b: a @ torch.tril(b),
    "right, upper": lambda a, b: a @ torch.triu(b, -1),
    "kept": lambda a, b: torch.tril(torch.tril(a) @ b),
}


def multiplications(gm: fx.GraphModule) -> int:
    products = [n for n in gm.graph.nodes if n.target in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)]
    return sum(n.meta["val"].numel() * n.args[0].meta["val"].shape[-1] for n in products)


@pytest.mark.parametrize(
    ("batch", "dtype"), [((), torch.float32), ((2,), torch.bfloat16), ((2, 1), torch.float16)], ids=str
)
@pytest.mark.parametrize("name", TRIANGLES)
def test_products_of_triangles(name: str, batch: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = drawn(*batch, 50, 50, dtype=dtype), drawn(*batch, 50, 50, dtype=dtype)
    fn = TRIANGLES[name]
    gm = check(fn, a, b, rule="product_of_triangles")
    assert multiplications(gm) <= 0.7 * a.numel() * 50
    assert torch.equal(gm(a, b) == 0, fn(a, b) == 0)
    assert rewritten(fn, a, b, labels={"exact", "assumes_finite"})[1] == []


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_half_of_a_product(batch: tuple[int, ...]) -> None:
    a, b = drawn(*batch, 64, 40), drawn(*batch, 40, 64)
    for fn in (lambda a, b: torch.tril(a @ b, 1), lambda a, b: torch.triu(a @ b)):
        gm = check(fn, a, b, rule="kept_half_of_product")
        assert multiplications(gm) <= 0.7 * a.numel() * 64
        assert rewritten(fn, a, b, labels={"exact", "assumes_finite"})[1] == []


def test_products_with_the_own_transpose() -> None:
    a = drawn(64, 80)
    for fn in (lambda a: a @ a.t(), lambda a: a.t() @ a):
        gm = check(fn, a, rule="product_with_own_transpose")
        assert multiplications(gm) <= 0.7 * fn(a).numel() * a.numel() / len(fn(a))
        assert torch.equal(gm(a), gm(a).t())
        assert rewritten(fn, a.bfloat16())[1] == []
    for fn in (lambda a: a @ a.cos().t(), lambda a: a[:, :64] @ a[:, :64], lambda a: a[:20] @ a[:20].t()):
        assert rewritten(fn, a)[1] == []


def test_triangles_in_training() -> None:
    a, b = drawn(48, 48), drawn(48, 48, seed=1)
    for fn in (TRIANGLES["both lower"], TRIANGLES["left"], TRIANGLES["right, upper"]):
        fired = check_training(fn, a, b, rule="product_of_triangles")
        assert len(fired) > 1  # in the backward, too
    check_training(lambda a, b: torch.tril(a @ b), a, b, rule="kept_half_of_product")


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(*[st.integers(24, 60)] * 3),
    sides=st.tuples(*[st.one_of(st.none(), st.tuples(st.booleans(), st.integers(-9, 9)))] * 3),
)
def test_triangles_of_any_shape(shape: tuple[int, int, int], sides: tuple[tuple[bool, int] | None, ...]) -> None:
    def cut(x: Tensor, side: tuple[bool, int] | None) -> Tensor:
        return x if side is None else (torch.tril if side[0] else torch.triu)(x, side[1])

    def fn(a: Tensor, b: Tensor) -> Tensor:
        return cut(cut(a, sides[0]) @ cut(b, sides[1]), sides[2])

    m, n, k = shape
    a, b = drawn(m, k), drawn(k, n)
    gm, fired = rewritten(fn, a, b)
    assert set(fired) <= {"product_of_triangles", "kept_half_of_product", "constant_result"}
    assert multiplications(gm) <= (0.7 if fired else 1) * m * n * k
    torch.testing.assert_close(gm(a, b).double(), fn(a.double(), b.double()), rtol=1e-5, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.booleans(), st.integers(-30, 30), st.integers(1, 20), st.integers(1, 20), st.data())
def test_where_a_triangle_is_zero(is_lower: bool, diagonal: int, m: int, n: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, m - 1))
    last = data.draw(st.integers(first + 1, m))
    ones = (torch.tril if is_lower else torch.triu)(torch.ones(m, n), diagonal)
    start, stop = Triangle(is_lower, diagonal).columns(first, last, n)
    rows = ones[first:last].any(0)
    assert start <= stop and torch.equal(rows.nonzero().flatten(), torch.arange(start, stop)[: int(rows.sum())])
    assert not rows[:start].any() and not rows[stop:].any() and int(rows.sum()) == stop - start
    turned = Triangle(is_lower, diagonal).transposed()
    assert turned.transposed() == Triangle(is_lower, diagonal)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: a @ b,
        lambda a, b: torch.tril(a, 40) @ b,  # hardly anything is zero
        lambda a, b: (torch.tril(a) + 1) @ b,
        lambda a, b: torch.tril(a)[:20] @ b,
        lambda a, b: torch.where(a > 0, a, 0.0) @ b,
        lambda a, b: torch.tril(a).masked_fill(torch.ones(48, 48, dtype=torch.bool).tril() < 1, 1.0) @ b,
        lambda a, b: torch.tril(y := a @ b) + y,
        lambda a, b: torch.tril(torch.exp(a @ b)),
        lambda a, b: (a @ b).double().tril(),
    ],
)
def test_products_that_stay(fn: Function) -> None:
    assert rewritten(fn, drawn(48, 48), drawn(48, 48))[1] == []


def test_small_and_changing_sizes_stay() -> None:
    fn = TRIANGLES["both lower"]
    assert rewritten(fn, drawn(20, 20), drawn(20, 20))[1] == []
    assert rewritten(TRIANGLES["left"], drawn(48, 48), drawn(48, 8))[1] == []
    assert rewrite(traced(fn, [drawn(48, 48), drawn(48, 48)], dynamic=True).graph, LABELS) == []


FROM: list[tuple[Function, int, int | None]] = [  # rows of float32 and of bfloat16, from which it fires
    (TRIANGLES["both lower"], 2048, 8192),
    (TRIANGLES["left"], 4096, 8192),
    (lambda a, b: torch.triu(a @ b), 4096, 8192),
    (lambda a, b: a @ a.t(), 4096, None),
]


@pytest.mark.parametrize("case", range(len(FROM)))
def test_panels_keep_a_large_gpu_busy(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # sizes as they are
    fn, *least = FROM[case]
    for dtype, size in zip((torch.float32, torch.bfloat16), least, strict=True):
        for n in (size // 2, size) if size else (16384,):
            assert bool(fired_on_a_gpu(fn, (n, n), (n, n), dtype=dtype)) == (n == size), (dtype, n)


def norm(y: Tensor, *p: Tensor) -> Tensor:
    """In eval."""
    return F.batch_norm(y, p[0], p[1].abs() + 0.5, p[2], p[3], False)


def parameters(channels: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [drawn(channels, dtype=dtype, seed=i) for i in range(4)]


LINEAR: dict[str, Function] = {
    "norm": lambda x, w, b, *p: norm(F.linear(x, w, b), *p),
    "norm without bias": lambda x, w, b, *p: norm(F.linear(x, w), *p),
    "factor": lambda x, w, b, *p: F.linear(x, w) * p[0],
    "numbers": lambda x, w, b, *p: (F.linear(x, w, b) * 0.1 - 3) / 7,
    "quotient": lambda x, w, b, *p: 2 + F.linear(x, w, b) / (p[0].abs() + 1),
    "one factor": lambda x, w, b, *p: F.linear(x, w, b) * p[0][:1] + p[1],
    "reshaped": lambda x, w, b, *p: F.linear(x.view(4, -1, x.shape[1]), w, b) * p[0] - p[1],
    "read by a product": lambda x, w, b, *p: F.linear(norm(F.linear(x, w, b), *p), w[:, :1].t().expand(9, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LINEAR)
def test_factors_behind_a_linear_layer(name: str, dtype: torch.dtype) -> None:
    x, w, b = drawn(512, 6, dtype=dtype), drawn(8, 6, dtype=dtype), drawn(8, dtype=dtype)
    gm = check(LINEAR[name], x, w, b, *parameters(8, dtype), rule="scale_into_weight")
    made = [n for n in gm.graph.nodes if n.op == "call_function"]
    large = {str(n.target) for n in made if n.meta["val"].numel() >= 512 * 8}
    assert large <= {"aten.mm.default", "aten.addmm.default", "aten.reshape.default"}  # no pass over the result


CONVOLUTIONS: list[tuple[Function, tuple[int, ...], dict[str, Any]]] = [
    (F.conv2d, (8, 3, 3, 3), {"padding": 1}),
    (F.conv2d, (9, 1, 3, 3), {"groups": 3}),
    (F.conv_transpose2d, (3, 8, 3, 3), {"stride": 2}),
    (F.conv_transpose2d, (3, 8, 2, 2), {"output_padding": 1, "stride": 2}),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{c[0].__name__} {c[2]}")
def test_factors_behind_a_convolution(case: tuple[Function, tuple[int, ...], dict[str, Any]]) -> None:
    function, taps, options = case
    channels = taps[1] if "transpose" in function.__name__ else taps[0]
    x, w, b, p = drawn(8, 3, 24, 24), drawn(*taps), drawn(channels), parameters(channels)
    gm = check(lambda x, w, b, *p: norm(function(x, w, b, **options), *p), x, w, b, *p, rule="scale_into_weight")
    assert sum(n.meta["val"].numel() > w.numel() for n in gm.graph.nodes if n.op == "call_function") == 1
    check(lambda x, w, s: function(x, w, **options) * s.view(-1, 1, 1), x, w, b, rule="scale_into_weight")
    check(lambda x, w, b: F.max_pool2d(function(x, w, b, **options) * 3, 2), x, w, b, rule="scale_into_weight")


def fired_on_a_gpu(fn: Function, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[str]:
    with torch._subclasses.FakeTensorMode():
        return rewrite(traced(fn, [torch.empty(s, device="cuda", dtype=dtype) for s in shapes]).graph, LABELS)


def test_on_a_gpu_a_convolutions_bias_is_a_pass_over_the_result_anyway() -> None:
    shapes = (8, 3, 24, 24), (8, 3, 3, 3), (8,)
    assert fired_on_a_gpu(lambda x, w, s: F.conv2d(x, w) * s.view(-1, 1, 1), *shapes) == ["scale_into_weight"]
    assert fired_on_a_gpu(lambda x, w, s: F.conv2d(x, w, s) * s.view(-1, 1, 1), *shapes) == []
    assert fired_on_a_gpu(lambda x, w, s: F.conv2d(x, w) * s.view(-1, 1, 1) + 1, *shapes) == []


STAY: dict[str, Function] = {
    "followed by an activation": lambda x, w, b, *p: torch.relu(norm(F.linear(x, w, b), *p)),
    "followed by a sum": lambda x, w, b, *p: (F.linear(x, w, b) * p[0]).amax(1),
    "read twice": lambda x, w, b, *p: torch.stack([(y := F.linear(x, w, b)) * p[0], y.cos()]),
    "behind an activation": lambda x, w, b, *p: torch.relu(F.linear(x, w, b)) * p[0],
    "by rows": lambda x, w, b, *p: F.linear(x, w, b) * x[:, :1],
    "of another dtype": lambda x, w, b, *p: F.linear(x, w, b) * p[0].double(),
    "only added": lambda x, w, b, *p: F.linear(x, w) + p[0],
    "few rows": lambda x, w, b, *p: F.linear(x[:64], w, b) * p[0],
    "the rows' vector": lambda x, w, b, *p: F.linear(x, w, b).view(8, 64, 8) * p[0].view(8, 1, 1),
}


@pytest.mark.parametrize("name", STAY)
def test_factors_that_stay(name: str) -> None:
    x, w, b = drawn(512, 6), drawn(8, 6), drawn(8)
    assert rewritten(STAY[name], x, w, b, *parameters(8))[1] == []


def test_halves_whose_weight_might_overflow_stay() -> None:
    x, w, b = (drawn(*s, dtype=torch.float16) for s in ((512, 6), (8, 6), (8,)))
    assert rewritten(LINEAR["norm"], x, w, b, *parameters(8, torch.float16))[1] == []
    gm = traced(LINEAR["factor"], [drawn(512, 6), drawn(8, 6), drawn(8), *parameters(8)], dynamic=True)
    assert rewrite(gm.graph, LABELS) == []


def test_factors_in_training() -> None:
    x, w, b = drawn(512, 6), drawn(8, 6), drawn(8)
    check_training(lambda x, w, b: F.linear(x, w, b) * 0.5, x, w, b, rule="scale_into_weight")


UNUSUAL = [math.inf, -math.inf, math.nan]
SPOILT = {
    **{f"triangles, {name}": (fn, ((50, 50), (50, 50))) for name, fn in TRIANGLES.items()},
    "mirrored": (lambda a: a @ a.t(), ((40, 40),)),
    "half": (lambda a, b: torch.tril(a @ b), ((40, 40), (40, 40))),
    "upper half": (lambda a, b: torch.triu(a @ b, 1), ((40, 40), (40, 40))),
    "norm": (LINEAR["norm"], ((512, 6), (8, 6), (8,), (8,), (8,), (8,), (8,))),
    "factor of zero": (lambda x, w, s: F.linear(x, w) * (s * 0), ((512, 6), (8, 6), (8,))),
}


@pytest.mark.parametrize("name", slow_but([*SPOILT][::3], SPOILT))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_what_is_not_finite_stays_so(name: str, data: st.DataObject) -> None:
    fn, shapes = SPOILT[name]
    inputs = [drawn(*shape, seed=i) for i, shape in enumerate(shapes)]
    gm, fired = rewritten(fn, *inputs, labels={"exact", "reassociates"})
    assert fired
    spoilt = inputs[data.draw(st.integers(0, len(inputs) - 1))].view(-1)
    spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(
        st.sampled_from([math.inf, -math.inf, math.nan])
    )
    assert torch.equal(gm(*inputs).isfinite(), fn(*inputs).isfinite())
