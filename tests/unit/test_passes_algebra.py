"""Algebra: each rule's result against float64, what must stay, and that nothing turns finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_cases import slow_but
from torch import Tensor, fx

from cudal1_compile.backend import cudal1
from cudal1_compile.inductor.collect import collect
from cudal1_compile.inductor.splice import Splice
from cudal1_compile.pipeline.explanation import explain
from cudal1_fx_passes.algebra import averages, rewrite
from tests.algebra_checks import LABELS, Function, check, drawn, rewritten, targets, traced


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fires at large sizes does so at small ones."""
    monkeypatch.setattr(averages, "LEAST", 1 << 12)
    monkeypatch.setattr(averages, "LESS", 4)


SUMS: dict[str, Function] = {
    "columns": lambda x, w, b: F.linear(x, w, b).sum(1, keepdim=True),
    "mean": lambda x, w, b: F.linear(x, w, b).mean(-1),
    "rows": lambda x, w, b: F.linear(x, w, b).sum(0),
    "all": lambda x, w, b: F.linear(x, w, b).sum(),
    "mean of all": lambda x, w, b: F.linear(x, w, b).mean(),
    "scaled": lambda x, w, b: (F.linear(x, w, b) * 0.5 / 3).sum(1),
    "without bias": lambda x, w, b: (x @ w.t()).sum(1),
    "weighted": lambda x, w, b: (F.linear(x, w, b) * b).sum(-1),
    "reshaped": lambda x, w, b: F.linear(x.view(4, -1, x.shape[1]), w, b).mean(-1, keepdim=True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_a_linear_layer(name: str, dtype: torch.dtype) -> None:
    x, w, b = drawn(32, 64, dtype=dtype), drawn(48, 64, dtype=dtype), drawn(48, dtype=dtype)
    gm = check(SUMS[name], x, w, b, rule="sum_of_product")
    assert not targets(gm) & {"aten.mm.default", "aten.addmm.default"}


BATCHES: dict[str, Function] = {
    "columns": lambda a, b: torch.bmm(a, b).sum(-1),
    "rows": lambda a, b: torch.bmm(a, b).mean(1),
    "both": lambda a, b: torch.bmm(a, b).sum((1, 2)),
    "batch and columns": lambda a, b: torch.bmm(a, b).sum((0, 2), keepdim=True),
}


@pytest.mark.parametrize("name", BATCHES)
def test_sums_of_batched_products(name: str) -> None:
    gm = check(BATCHES[name], drawn(3, 32, 40), drawn(3, 40, 48), rule="sum_of_product")
    assert "aten.bmm.default" not in targets(gm)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: torch.relu(x @ w).sum(1),  # not linear
        lambda x, w: (x @ w).amax(1),
        lambda x, w: torch.stack([(y := x @ w).sum(1), y.amax(1)]),  # the product is read elsewhere
        lambda x, w: (x @ w).reshape(8, -1, 16).sum(-1),  # columns cut
        lambda x, w: (x @ w).sum(1, dtype=torch.float64),
    ],
)
def test_what_is_no_sum_of_a_product_stays(fn: Function) -> None:
    assert rewritten(fn, drawn(32, 64), drawn(64, 48))[1] == []


def test_small_products_and_sizes_that_change_stay() -> None:
    fn = SUMS["columns"]
    assert rewritten(fn, drawn(2, 4), drawn(6, 4), drawn(6))[1] == []
    gm = traced(fn, [drawn(32, 64), drawn(48, 64), drawn(48)], dynamic=True)
    assert rewrite(gm.graph, LABELS) == []


def gradients(x: Tensor, w: Tensor) -> Tensor:
    """Both gradients of a sum, as AOTAutograd writes them."""
    g = x.sum(1, keepdim=True).expand(x.shape[0], w.shape[0])
    return torch.cat([g @ w, g.t() @ x])


def test_products_of_what_is_expanded() -> None:
    gm = check(gradients, drawn(32, 64), drawn(48, 64), rule="product_of_equals")
    assert sum("aten.mm" in name for name in targets(gm)) <= 1  # of one row
    for fn in (
        lambda a, b: a[:, :1].expand(40, 48) @ b,
        lambda a, b: a @ b[:1].expand(48, 56),
        lambda a, b: a[:1].expand(40, 48) @ b,
        lambda a, b: a @ b[:, :1].expand(48, 56),
    ):
        check(fn, drawn(40, 48), drawn(48, 56), rule="product_of_equals")


def test_the_shorter_order_of_a_chain() -> None:
    a, b, c = drawn(64, 64), drawn(64, 64), drawn(64, 2)
    gm = check(lambda a, b, c: (a @ b) @ c, a, b, c, rule="chain_of_products")
    shapes = [tuple(n.meta["val"].shape) for n in gm.graph.nodes if "mm" in str(n.target)]
    assert shapes == [(64, 2), (64, 2)]
    check(lambda a, b, c: c.t() @ (a @ b), a, b, c, rule="chain_of_products")
    assert rewritten(lambda a, b, c: a @ (b @ c), a, b, c)[1] == []


CONVOLUTIONS = [
    (F.conv2d, (2, 8, 14, 15), (16, 8, 3, 3), {"padding": 1}),
    (F.conv2d, (2, 8, 14, 15), (64, 8, 3, 2), {"padding": (0, 1), "stride": 2, "dilation": (2, 1)}),
    (F.conv1d, (2, 8, 40), (24, 8, 5), {"padding": 2}),
    (F.conv3d, (1, 4, 7, 8, 9), (32, 4, 3, 3, 3), {"padding": 1}),
    (F.conv_transpose2d, (2, 8, 9, 10), (8, 16, 4, 4), {"stride": 2, "padding": 1}),
    (F.conv_transpose2d, (2, 8, 9, 10), (8, 16, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    (F.conv_transpose1d, (2, 8, 30), (8, 16, 3), {"dilation": 2}),
    (F.conv_transpose3d, (1, 4, 5, 6, 7), (4, 16, 3, 3, 3), {"stride": (2, 1, 2)}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{c[0].__name__} {c[3]}")
def test_averages_of_convolutions(
    case: tuple[Function, tuple[int, ...], tuple[int, ...], dict[str, int]], dtype: torch.dtype
) -> None:
    function, image, taps, options = case
    channels = taps[1] if "transpose" in function.__name__ else taps[0]
    x, w, b = drawn(*image, dtype=dtype), drawn(*taps, dtype=dtype), drawn(channels, dtype=dtype)
    dims = tuple(range(2, len(image)))
    for fn in (
        lambda x, w, b: function(x, w, b, **options).mean(dims, keepdim=True),
        lambda x, w, b: (function(x, w, None, **options) * 3).sum(dims),
    ):
        gm = check(fn, x, w, b, rule="average_of_convolution")
        assert "aten.convolution.default" not in targets(gm)


def test_what_all_taps_read_is_summed_once() -> None:
    def run(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).mean((2, 3))

    gm = check(run, drawn(2, 8, 64, 64), drawn(16, 8, 3, 3), rule="average_of_convolution")
    sums = [n for n in gm.graph.nodes if n.target is torch.ops.aten.sum.dim_IntList]
    read = [n.args[0].meta["val"].numel() for n in sums]
    assert sum(read) < 1.2 * 2 * 8 * 64 * 64


def test_averages_that_stay() -> None:
    x, w = drawn(2, 8, 14, 14), drawn(16, 8, 3, 3)
    for fn in (
        lambda x, w: torch.relu(F.conv2d(x, w)).mean((2, 3)),
        lambda x, w: F.conv2d(x, w).mean((1, 2, 3)),
        lambda x, w: F.conv2d(x, w[:, :2], groups=4).mean((2, 3)),
        lambda x, w: F.conv2d(x[:1, :1, :4, :4], w[:4, :1]).mean((2, 3)),  # few multiplications
        lambda x, w: F.conv2d(x, w[:1, :, :1, :1]).mean((2, 3)),  # as many as elements
        lambda x, w: F.conv2d(x[..., :1, :], w, padding=1).mean((2, 3)),  # two rows of taps read padding alone
    ):
        assert rewritten(fn, x, w)[1] == []


def test_diagonals_are_not_multiplied_out() -> None:
    s, b = drawn(40), drawn(40, 48)
    for fn, x in ((lambda s, b: torch.diag(s) @ b, b), (lambda s, b: b @ torch.diag(s), b.t().contiguous())):
        gm = check(fn, s, x, rule="product_of_diagonal")
        assert "aten.mm.default" not in targets(gm)
        assert rewritten(fn, s, x, labels={"exact", "assumes_finite"})[1] == []
    for fn in (lambda s, b: torch.diag(s, 1)[:40, :40] @ b, lambda s, b: torch.tril(torch.diag(s) + 1) @ b):
        assert rewritten(fn, s, b)[1] == []


SPOILT = {
    **{f"sum, {name}": (fn, ((32, 64), (48, 64), (48,))) for name, fn in SUMS.items()},
    "chain": (lambda a, b, c: (a @ b) @ c, ((64, 64), (64, 64), (64, 2))),
    "equals": (lambda x, w, b: gradients(x, w) + b.sum(), ((32, 64), (48, 64), (48,))),
    "average": (lambda x, w, b: F.conv2d(x, w, b, padding=1).mean((2, 3)), ((2, 8, 14, 14), (16, 8, 3, 3), (16,))),
    "diagonal": (lambda s, b: torch.diag(s) @ b, ((40,), (40, 48))),
    "diagonal behind": (lambda s, b: b @ torch.diag(s), ((40,), (48, 40))),
    "transposed average": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1).mean((2, 3)),
        ((2, 8, 9, 9), (8, 16, 4, 4), (16,)),
    ),
}


@pytest.mark.parametrize("name", slow_but([*SPOILT][::3], SPOILT))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_what_is_not_finite_stays_so(name: str, data: st.DataObject) -> None:
    """With one entry of one input infinite or NaN, exactly the same results are finite."""
    fn, shapes = SPOILT[name]
    inputs = [drawn(*shape) for shape in shapes]
    gm, fired = rewritten(fn, *inputs, labels={"exact", "reassociates"})
    assert fired
    spoilt = inputs[data.draw(st.integers(0, len(inputs) - 1))].view(-1)
    spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(
        st.sampled_from([float("inf"), float("-inf"), float("nan")])
    )
    assert torch.equal(gm(*inputs).isfinite(), fn(*inputs).isfinite())


@pytest.mark.host
def test_the_backend_rewrites_what_its_numerics_allow() -> None:
    x, w, b = drawn(32, 64), drawn(48, 64), drawn(48)
    codes: dict[tuple[str, ...], str] = {}

    def backend(gm: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        for labels in ((), ("exact",), ("exact", "reassociates")):
            (graph,) = collect(gm, inputs, {}, None, labels=labels)
            codes[labels] = graph.code
        return gm.forward

    torch.compile(lambda x, w, b: F.linear(x, w, b).sum(1), backend=backend)(x, w, b)
    plain, exact, reassociated = codes.values()
    assert "addmm" in plain and plain == exact and "addmm" not in reassociated
    found = explain(SUMS["columns"], x, w, b, options={"target": "host"})
    assert "algebra: sum_of_product x1" in str(found)
    assert Splice(None, {}).uuid() != Splice(None, {}, labels=("reassociates",)).uuid()

    def compiled(numerics: str) -> Tensor:
        options = {"target": "host", "on_miss": "fallback", "numerics": numerics}
        return torch.compile(lambda x, w, b: F.linear(x, w, b).sum(1), backend=cudal1, options=options)(x, w, b)

    for numerics in ("f32_split", "exact"):
        torch.testing.assert_close(
            compiled(numerics).double(), SUMS["columns"](*(t.double() for t in (x, w, b)))[:, 0], rtol=0, atol=1e-4
        )
