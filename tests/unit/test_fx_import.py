"""Operators of aten and prims, one by one, against torch; then axes, layouts, promotion and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fx_trace import canonical_text, check_import, compute_nodes, import_all, tensor, trace
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.errors import ImportRefused
from cudal1_fx_passes.fusion.partition import partition
from cudal1_fx_passes.importer.from_fx import import_region
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Domain
from cudal1_fx_passes.program.text import parse_program, print_program

aten, prims = torch.ops.aten, torch.ops.prims


def positive(*sizes: int) -> Tensor:
    return tensor(*sizes).abs() + 0.1


X, Y, ROW, ONE = tensor(4, 6), tensor(4, 6, seed=1), tensor(6, seed=2), tensor(4, 1, seed=3)
IMAGE, MASK, IDS = tensor(2, 3, 8, 8), tensor(4, 6) > 0, torch.tensor([3, 0, 5, 1])

UNARY = [
    "neg",
    "abs",
    "sign",
    "exp",
    "exp2",
    "expm1",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "relu",
    "floor",
    "ceil",
    "round",
    "trunc",
    "isnan",
    "isinf",
    "isfinite",
]
POSITIVE = ["log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"]


@pytest.mark.parametrize("name", UNARY + POSITIVE)
def test_unary(name: str) -> None:
    x = positive(4, 6) if name in POSITIVE else X
    check_import(getattr(aten, name).default, x)


@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid", "rsqrt"])
def test_unary_of_integers_is_computed_in_float(name: str) -> None:
    imported = check_import(getattr(aten, name).default, torch.arange(1, 7))
    assert [op.fn for op in imported.program.ops] == ["cast", name]


BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "fmod",
    "remainder",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("other", [Y, ROW, ONE], ids=["same", "row", "column"])
def test_binary_with_broadcasting(name: str, other: Tensor) -> None:
    overload = "default" if name in ("maximum", "minimum") else "Tensor"
    check_import(getattr(getattr(aten, name), overload), X, other)


POINTWISE: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "add alpha": (lambda x, y: aten.add.Tensor(x, y, alpha=2), (X, Y)),
    "sub alpha": (lambda x, y: aten.sub.Tensor(x, y, alpha=0.5), (X, Y)),
    "rsub": (lambda x: aten.rsub.Scalar(x, 3.0), (X,)),
    "add scalar": (lambda x: x + 1, (X,)),
    "scalar div": (lambda x: 2.0 / x, (X,)),
    "pow 2": (lambda x: x.pow(2), (X,)),
    "pow 3": (lambda x: x.pow(3), (X,)),
    "pow -1": (lambda x: x.pow(-1), (X,)),
    "pow 0.5": (lambda x: x.pow(0.5), (positive(4, 6),)),
    "pow -0.5": (lambda x: x.pow(-0.5), (positive(4, 6),)),
    "pow 1.7": (lambda x: x.pow(1.7), (positive(4, 6),)),
    "pow tensor": (lambda x, y: x.pow(y), (positive(4, 6), Y)),
    "pow of scalar": (lambda x: aten.pow.Scalar(2.0, x), (X,)),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, Y)),
    "where": (torch.where, (MASK, X, Y)),
    "where scalar": (lambda m, x: torch.where(m, x, 0.0), (MASK, X)),
    "masked_fill": (lambda x, m: x.masked_fill(m, -math.inf), (X, MASK)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (X,)),
    "clamp min": (lambda x: x.clamp(min=0.1), (X,)),
    "clamp max": (lambda x: x.clamp(max=0.1), (X,)),
    "clamp tensors": (lambda x, y: x.clamp(y, y + 1), (X, Y)),
    "hardtanh": (lambda x: aten.hardtanh.default(x, -0.3, 0.7), (X,)),
    "leaky_relu": (lambda x: aten.leaky_relu.default(x, 0.2), (X,)),
    "addcmul": (lambda x, y, r: torch.addcmul(x, y, r, value=0.5), (X, Y, ROW)),
    "addcdiv": (lambda x, y, r: torch.addcdiv(x, y, r, value=0.5), (X, Y, ROW)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (X, Y)),
    "gelu": (lambda x: aten.gelu.default(x), (X,)),
    "gelu tanh": (lambda x: aten.gelu.default(x, approximate="tanh"), (X,)),
    "silu": (lambda x: aten.silu.default(x), (X,)),
    "sigmoid backward": (lambda g, y: aten.sigmoid_backward.default(g, y), (X, Y)),
    "tanh backward": (lambda g, y: aten.tanh_backward.default(g, y), (X, Y)),
    "threshold backward": (lambda g, y: aten.threshold_backward.default(g, y, 0), (X, Y)),
    "fma": (lambda x, y, r: prims.fma.default(x, y, r.expand(4, 6) + 0), (X, Y, ROW)),
    "logical": (lambda m, x: m & (x > 0) | ~m ^ (x < -1), (MASK, X)),
    "logical of floats": (lambda x, y: torch.logical_and(x, y) | torch.logical_not(x), (X, Y)),
    "bool product": (lambda m, x: m * (x > 0), (MASK, X)),
    "bool sum": (lambda m, x: m + (x > 0), (MASK, X)),
    "equal bools": (lambda m, x: m == (x > 0), (MASK, X)),
    "cast": (lambda x: x.to(torch.float16).float() + x.int(), (X,)),
    "cast to bool": (lambda x: x.round().to(torch.bool), (X,)),
    "clone": (lambda x: x.clone() * 2, (X,)),
    "full": (lambda x: x + torch.full((4, 6), 2.5), (X,)),
    "full_like": (lambda x: torch.full_like(x, 1.5) - x, (X,)),
    "zeros and ones": (lambda x: x * torch.ones_like(x) + torch.zeros(6), (X,)),
    "arange": (lambda x: x + torch.arange(1, 13, 2), (X,)),
    "copy": (lambda x, y: aten.copy.default(x, y.double()) + 1, (X, Y)),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name: str) -> None:
    run, inputs = POINTWISE[name]
    check_import(run, *inputs)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(2, 2, 3, 2).sum(2) + 1,
    "reshape back": lambda x: (x.reshape(24) * 2).reshape(4, 6).sum(0),
    "transpose": lambda x: (x.t() + 1).sum(0),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1).softmax(0),
    "unsqueeze": lambda x: x.unsqueeze(1) * x.unsqueeze(2).abs()[:, :1],
    "squeeze": lambda x: x.view(4, 1, 6).squeeze(1).sum(1),
    "expand": lambda x: x[:, None].expand(4, 3, 6) * torch.arange(3.0)[:, None],
    "select": lambda x: x.exp()[:, 2] + x.exp()[:, -1],
    "select of a grouped dim": lambda x: x.view(2, 2, 6).exp().reshape(4, 6)[3] * 2,
    "slice": lambda x: x.exp()[:, 1:5] + 1,
    "slice with a step": lambda x: x.exp()[:, 1::2] * 2,
    "halves": lambda x: x.exp()[:, :3] * x.exp()[:, 3:],
    "split": lambda x: torch.cat([t * 2 for t in x.exp().split(2, 1)], 1),
    "uneven split": lambda x: x.exp().split([1, 5], 1)[1] + x.exp().split([5, 1], 1)[0],
    "unbind": lambda x: x.exp().unbind(0)[1] + x.exp().unbind(0)[3],
    "flip": lambda x: x.exp().flip(0, 1) + x,
    "cat": lambda x: torch.cat([x.exp(), x.sin()[:, :2], x.cos()], 1) * 2,
    "cat of rows": lambda x: torch.cat([x.exp(), x], 0).sum(1),
    "rotate halves": lambda x: torch.cat([-x[:, 3:], x[:, :3]], 1) * x,
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=0.5) * 2,
    "negative pad": lambda x: F.pad(x, (-1, 2)) + 1,
    "glu": lambda x: aten.glu.default(x.exp(), 1),
    "glu of a dim that is needed whole": lambda x: (
        aten.glu.default(x.exp(), -1).sum(0) + x.exp().flip(1)[:, 0].sum()
    ),
    "select_scatter": lambda x: aten.select_scatter.default(x * 2, x[1], 0, 2) + 1,
    "slice_scatter": lambda x: aten.slice_scatter.default(x * 2, x[:2], 0, 1, 3) + 1,
    "slice_scatter of a half": lambda x: aten.slice_scatter.default(x * 2, x[:2], 0, 2, 4) + 1,
    "repeat": lambda x: x.view(2, 12).repeat(3, 2).sum(1) if x.dim() > 9 else x.repeat(1, 2).exp().sum(1),
    "as_strided": lambda x: torch.as_strided(x * 2, (2, 12), (12, 1)).sum(1),
    "two views of one tensor": lambda x: (x.exp().view(24) + 1).view(4, 6) * x.exp(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_inside_a_region(name: str) -> None:
    check_import(VIEWS[name], X)


REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: x.sum(),
    "sum of a dim": lambda x: x.sum(1),
    "sum keepdim": lambda x: x - x.sum(0, keepdim=True),
    "sum of bools": lambda x: (x > 0).sum(1),
    "mean": lambda x: x.mean((0, 1)),
    "mean of halfs in float": lambda x: x.half().mean(1, dtype=torch.float32),
    "prod": lambda x: x.prod(1),
    "amax and amin": lambda x: x.amax(1) - x.amin(1),
    "max with indices": lambda x: x.max(1),
    "max without indices": lambda x: x.max(1)[0] + 1,
    "argmax": lambda x: x.argmax(1),
    "argmin of all": lambda x: x.argmin(),
    "argmax of a view": lambda x: x.view(2, 2, 6).exp().reshape(4, 6).argmax(0),
    "any and all": lambda x: ((x > 1).any(1), (x > -9).all()),
    "any of floats": lambda x: x.round().any(0),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(0, correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "logsumexp": lambda x: x.logsumexp(1),
    "softmax": lambda x: aten._softmax.default(x, 1, False),
    "log_softmax": lambda x: aten._log_softmax.default(x, 0, False),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(0),
    "sum over an expanded dim": lambda x: x[:, None].expand(4, 3, 6).sum(1) + 1,
    "amax over an expanded dim": lambda x: x.sum(1, keepdim=True).expand(4, 6).amax(1),
    "layer_norm": lambda x: aten.native_layer_norm.default(x, [6], x[0].abs(), x[1], 1e-5),
    "layer_norm without scale": lambda x: aten.native_layer_norm.default(x, [6], None, None, 1e-5),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    check_import(REDUCTIONS[name], X)


IMAGES: dict[str, Callable[[Tensor], Any]] = {
    "group_norm": lambda x: aten.native_group_norm.default(x, x[0, :, 0, 0] + 0, None, 2, 3, 64, 3, 1e-5),
    "batch_norm": lambda x: aten._native_batch_norm_legit_no_training.default(
        x, x[0, :, 0, 0], x[1, :, 0, 0], x[0, :, 1, 1], x[1, :, 1, 1].abs(), 0.1, 1e-5
    )[0],
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    check_import(IMAGES[name], IMAGE)


GATHERS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "gather": (lambda x, i: x.exp().gather(1, i[:, None]), (X, IDS)),
    "gather of a matrix": (lambda x, i: x.gather(1, i.view(4, 1).repeat(1, 2)[:, :1]) * 2, (X, IDS)),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, (IDS, tensor(6, 5))),
    "embedding and norm": (lambda i, w: F.embedding(i.view(2, 2), w).softmax(-1), (IDS, tensor(6, 5))),
    "index": (lambda x, i: x[i % 4] + 1, (X, IDS)),
    "negative index": (lambda x, i: x[i - 4] + 1, (tensor(9, 3), IDS)),
    "index of two dims": (lambda x, i, j: x[i[:, None] % 4, j[None, :]] + 1, (X, IDS, IDS[:3])),
    "index of the second dim": (lambda x, i: x[:, i] * 2, (X, IDS)),
    "scatter": (lambda x, i: aten.scatter.src(x * 2, 1, i[:, None], x[:, :1]), (X, IDS)),
    "scatter into zeros": (lambda x, i: aten.scatter.src(torch.zeros(4, 6), 1, i[:, None], x[:, 1:2]), (X, IDS)),
    "scatter of a number": (lambda x, i: aten.scatter.value(x.exp(), 1, i[:, None], 3), (X, IDS)),
}


@pytest.mark.parametrize("name", GATHERS)
def test_gathers(name: str) -> None:
    run, inputs = GATHERS[name]
    check_import(run, *inputs)


def test_indices_are_bounded_by_what_they_index() -> None:
    program = import_all(lambda i, w: F.embedding(i, w) + 1, IDS, tensor(6, 5)).program
    (index,) = [i for i in program.inputs if i.dtype == "i64"]
    assert index.domain.below is not None and program.axis[index.domain.below].size == 6


def test_places_that_are_scattered_to_are_bounded() -> None:
    """Or no test would ever write one."""
    program = import_all(lambda x, i: aten.scatter.value(x.exp(), 1, i[:, None], 3), X, IDS).program
    (index,) = [i for i in program.inputs if i.dtype == "i64"]
    assert index.domain.below is not None and program.axis[index.domain.below].size == 6


def test_targets_of_a_loss_are_bounded_behind_a_where() -> None:
    def loss(x: Tensor, i: Tensor) -> Tensor:
        return x.log_softmax(1).gather(1, torch.where(i != -100, i, 0)[:, None])

    program = import_all(loss, X, IDS).program
    (index,) = [i for i in program.inputs if i.dtype == "i64"]
    assert index.domain.below is not None and program.axis[index.domain.below].size == 6


def test_indices_that_may_be_negative_have_both_bounds() -> None:
    program = import_all(lambda x, i: x[i] + 1, X, IDS).program
    (index,) = [i for i in program.inputs if i.dtype == "i64"]
    assert index.domain == Domain(-4, 3)


# golden texts


def test_layer_norm_text() -> None:
    text = canonical_text(lambda x, w: F.layer_norm(x, (6,), w), X.view(2, 2, 6), ROW)
    assert text == (
        "region v1\ndims d0=4 d1=6\nin0 f32[d0,d1]\nin1 f32[d1]\n"
        "t0 f32[d0] = mean(in0) over d1\nt1 f32[d0,d1] = sub(in0, t0)\nt2 f32[d0] = var(in0, 0.0) over d1\n"
        "t3 f32[d0] = add(t2, 1e-05)\nt4 f32[d0] = rsqrt(t3)\nt5 f32[d0,d1] = mul(t1, t4)\n"
        "t6 f32[d0,d1] = mul(t5, in1)\nout0 f32[d0,d1] = t6\n"
    )


def test_rotary_halves_become_an_axis() -> None:
    text = canonical_text(lambda x, c: torch.cat([-x[:, 3:], x[:, :3]], 1) * c + x, X, Y)
    assert "dims d0=4 d1=2 d2=3" in text
    assert "= neg(in0[d1=1])" in text or "= neg(in1[d1=1])" in text
    assert "iota() along d1" in text and "[d1=0])" in text


# layouts


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensor(6, 4).t(),
        lambda: tensor(4, 12)[:, ::2],
        lambda: tensor(4, 9)[:, 2:8],
        lambda: tensor(1, 6).expand(4, 6),
        lambda: tensor(4, 1).expand(4, 6),
        lambda: tensor(24).as_strided((4, 6), (2, 3)),
    ],
    ids=["transposed", "step", "padded rows", "expanded rows", "expanded columns", "overlapping"],
)
def test_inputs_of_any_strides(make: Callable[[], Tensor]) -> None:
    check_import(lambda x, y: (x * 2 + y).sum(1), make(), Y)
    check_import(lambda x, y: x.exp() + y, make(), Y)


def test_memory_order_and_strides_in_the_text() -> None:
    program = import_all(lambda x, y: x + y, tensor(6, 4).t(), tensor(4, 9)[:, 2:8]).program
    first, second = program.inputs
    assert first.axes == second.axes[::-1] and first.strides is None
    assert second.strides == (9, 1)


def test_an_expanded_dim_is_no_axis() -> None:
    program = import_all(lambda x, y: x + y, tensor(4, 1).expand(4, 6), Y).program
    assert sorted(len(i.axes) for i in program.inputs) == [1, 2]


def test_channels_last_outputs_keep_their_memory_order() -> None:
    x = IMAGE.contiguous(memory_format=torch.channels_last)
    imported = check_import(lambda x, w: F.relu(x * w), x, tensor(3, 1, 1))
    assert imported.program.outputs[0].axes == imported.program.inputs[0].axes
    assert len(imported.program.axes) == 2  # N*H*W and C


# promotion


def test_types_are_promoted_as_torch_does() -> None:
    half, ints, doubles = X.half(), torch.arange(6), Y.double()
    check_import(lambda a, b: a + b, half, X, tolerance=1e-3)
    check_import(lambda a, b: a * b, half, ints, tolerance=1e-3)
    check_import(lambda a, b: a - b, doubles, X)
    check_import(lambda a: a / 2, ints)
    check_import(lambda a: a + 1.5, ints)
    check_import(lambda a, b: a > b, ints, X[0])
    check_import(lambda a: a > 0.5, ints)
    check_import(lambda m, b: m + b, MASK, ints)
    check_import(lambda m, a, b: torch.where(m, a, b), MASK, half, X)
    check_import(lambda a, s: a * s, half, torch.tensor(1.5), tolerance=1e-3)


BEYOND_F16 = {  # on large and small: finite results of steps over 65,504
    "padded average": lambda x, y: aten.avg_pool2d.default(x, [3, 3], [1, 1], [1, 1]) * y,
    "average by a divisor": lambda x, y: aten.avg_pool2d.default(x, [2, 2], [1, 1], [0, 0], False, True, 5) + 1,
    "addcmul": lambda x, y: torch.addcmul(y, x, y, value=100) * y,
    "addcdiv": lambda x, y: torch.addcdiv(y, x, y, value=-0.001) * y,
    "add": lambda x, y: torch.add(-x, x, alpha=2.5) * y,
    "sub": lambda x, y: torch.sub(x, x, alpha=2.5) * y,
    "rsub": lambda x, y: torch.rsub(x, x, alpha=2.5) * y,
    "lerp": lambda x, y: torch.lerp(-x, x, 0.5) * y,
    "lerp by weights": lambda x, y: torch.lerp(-x, x, y) * y,
    "a scale": lambda x, y: y * 1e6 * y,
    "a divisor": lambda x, y: x / 1e6 * y,
}


@pytest.mark.parametrize("name", BEYOND_F16)
def test_half_types_are_float32_within_one_operator(name: str) -> None:
    large, small = (
        torch.linspace(29e3, 4e4, 64),
        torch.linspace(0.01, 0.03, 64),
    )  # aten's loops round in what is no vector
    check_import(BEYOND_F16[name], *(x.reshape(1, 2, 4, 8).half() for x in (large, small)), tolerance=2e-3)


def test_no_operation_mixes_dtypes() -> None:
    program = import_all(lambda a, b, i: (a * b + i) > b, X.half(), Y, torch.arange(6)).program
    for op in program.ops:
        dtypes = {program.value_dtype[x.name] for x in op.operands if hasattr(x, "name")}
        assert len(dtypes) == 1, op


# dynamic shapes


def test_symbolic_sizes_become_symbolic_axes() -> None:
    imported = check_import(lambda x, w: (x * w).softmax(-1), tensor(5, 7, 6), ROW, dynamic=True)
    symbolic = [a for a in imported.program.axes if a.symbolic]
    assert len(symbolic) == len(imported.symbols) == 3  # nothing is merged
    assert all(s.is_Symbol for s in imported.symbols)


def test_views_of_symbolic_sizes() -> None:
    check_import(lambda x: x.view(x.shape[0] * x.shape[1], 6).softmax(-1), tensor(5, 7, 6), dynamic=True)
    check_import(lambda x: x.reshape(x.shape[0], 2, 3).sum(1), tensor(5, 6), dynamic=True)


# refusals


REFUSALS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "no lowering": (lambda x: x.exp().sort(1)[0], (X,), "no lowering"),
    "an axis twice": (lambda x: x.exp() + x.exp().t(), (tensor(4, 4),), "twice"),
    "complex numbers": (lambda x: torch.complex(x, x).exp(), (X,), "complex|lowering"),
    "an empty tensor": (lambda x: x.exp()[:0] * 2, (X,), "empty"),
    "integer division": (lambda x: x // 2, (torch.arange(6),), "lowering|rounding"),
    "a remainder by integers": (lambda x, y: x % y, (torch.arange(6), torch.arange(1, 7)), "may be zero"),
    "bits of integers": (lambda x: x & 3, (torch.arange(6),), "bool only|lowering"),
    "a view that does not divide": (
        lambda x: x.exp().view(3, 8) + x.view(24).flip(0).view(3, 8),
        (X,),
        "divide|whole",
    ),
    "scatter to several places": (
        lambda x, i: aten.scatter.src(x.exp(), 1, i.view(4, 1).repeat(1, 2), x), (X, IDS), "more than one place"
    ),
    "a sum at computed places": (lambda x, i: x.exp().scatter_add(1, i[:, None], x), (X, IDS), "computed places"),
    "a copy of an expanded value": (lambda x: x.exp()[:, None].expand(4, 3, 6).clone(), (X,), "expanded"),
    "places of a window of 1": (
        lambda o: 1
        + prims._low_memory_max_pool_offsets_to_indices.default(o, [1, 1], [8, 8], [2, 2], [0, 0], [1, 1]),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int8),), "window of 1",
    ),
    "an average of integers": (lambda x: F.avg_pool2d(x, 2) * 2, (IMAGE.long(),), "of integers"),
    "a number that bytes cannot hold": (lambda x: (x < 300) | (x == 2), (IDS.byte(),), "no u8"),
    "too many equal values": (lambda x: x[None].expand(70000, 4).sum(0) + 1, (X[0, :4].half(),), "equal values"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_a_node_and_a_reason(name: str) -> None:
    run, inputs, says = REFUSALS[name]
    gm = trace(run, *inputs)
    nodes = compute_nodes(gm)
    with pytest.raises(ImportRefused, match=says) as caught:
        import_region(nodes)
    assert caught.value.node in {n.name for n in nodes}


def test_one_iota_may_count_rows_and_columns() -> None:
    def causal(x: Tensor) -> Tensor:
        steps = torch.arange(5)
        return x.masked_fill(steps[None, :] > steps[:, None], -9.0).softmax(-1)

    check_import(causal, tensor(2, 5, 5))


def test_too_many_operations_are_refused() -> None:
    def long(x: Tensor) -> Tensor:
        for _ in range(10):
            x = x.sin()
        return x

    with pytest.raises(ImportRefused, match="more than 8 operations"):
        import_region(compute_nodes(trace(long, X)), max_ops=8)


FOUND_BY_FUZZING: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "zeros of both signs": (
        lambda x: torch.maximum(1 / torch.where(x > -9, 0.0, x), 1 / torch.where(x > -9, -0.0, x)),
        (X,),
    ),
    "a zero is taken away": (lambda x: 1 / (x + 0.0) - 1 / (x + (-0.0)), (X,)),
    "integers are finite": (lambda x: torch.where(torch.isfinite(x), x * 2, torch.isinf(x)), (IDS,)),
    "any of bytes": (lambda x: torch.any(x, 1) * 2, (torch.tensor([[0, 3], [0, 0]], dtype=torch.uint8),)),
    "a chunk of joined pieces": (
        lambda x: aten.slice_scatter.default(torch.cat([x, x, x], 1), x[:, :2], 1, 4, 6) * 2,
        (tensor(3, 4, 9),),
    ),
}


@pytest.mark.parametrize("name", FOUND_BY_FUZZING)
def test_what_fuzzing_found(name: str) -> None:
    run, inputs = FOUND_BY_FUZZING[name]
    check_import(run, *inputs)


def test_a_part_of_no_elements_that_is_written() -> None:
    gm = trace(lambda x: aten.slice_scatter.default(x * 2, torch.ones(40, 0), 1, 3, 3) * 3 + 1, tensor(40, 6))
    assert partition(gm.graph).regions


def test_a_bound_along_an_axis_that_is_gone() -> None:
    text = "region v1\ndims d0=4 d1=8\nin0 i64[d0] in [0,d1)\nt0 i64[d0] = add(in0, 1)\nout0 i64[d0] = t0\n"
    program = canonicalise(parse_program(text))
    assert (
        program.inputs[0].domain.below == "d1" and canonicalise(parse_program(print_program(program))) == program
    )


def test_bounds_are_hashed_as_they_are_read_again() -> None:
    program = import_all(lambda x, i: x[i - 4] + 1, tensor(9, 3), IDS).program
    assert canonicalise(program) == canonicalise(parse_program(print_program(program)))
