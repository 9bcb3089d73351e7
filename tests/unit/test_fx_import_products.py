"""Convolutions and matrix products become programs, with what stands around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fx_check import check_graph
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.fusion.partition import PartitionConfig, partition
from cudal1_fx_passes.importer.capture import capture_graphs
from cudal1_fx_passes.program.ir import Ref
from cudal1_fx_passes.program.products import match_convolution

PRODUCTS = PartitionConfig(products=True)
Run = Callable[..., Tensor]
CASES: dict[str, tuple[Run, list[tuple[int, ...]]]] = {
    "convolution, bias, relu": (
        lambda x, w, b: F.conv2d(x, w, b, 2, 1).relu(),
        [(2, 3, 9, 8), (5, 3, 3, 3), (5,)],
    ),
    "of size 1": (lambda x, w: F.conv2d(x, w).sigmoid() + 1, [(2, 3, 9, 8), (5, 3, 1, 1)]),
    "of size 1, strided": (lambda x, w: F.conv2d(x, w, None, 2).sigmoid() + 1, [(2, 3, 9, 8), (5, 3, 1, 1)]),
    "groups, dilation": (
        lambda x, w: F.conv2d(x, w, None, 1, 2, 2, 2) * 2 + 1,
        [(2, 6, 9, 8), (4, 3, 3, 3)],
    ),
    "depthwise": (lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 6).relu(), [(2, 6, 9, 8), (6, 1, 3, 3)]),
    "one dimension, channels to softmax": (
        lambda x, w: F.conv1d(x, w, None, 1, 1).softmax(1),
        [(2, 6, 20), (8, 6, 3)],
    ),
    "three dimensions": (lambda x, w: F.conv3d(x, w, None, 1, 1).relu(), [(1, 3, 5, 6, 7), (4, 3, 3, 3, 3)]),
    "transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1).tanh(),
        [(2, 4, 5, 6), (4, 3, 3, 3), (3,)],
    ),
    "transposed, one wide, more than it reads": (
        lambda x, w: F.conv_transpose2d(x, w, None, 1, 0, 1, 1, 2).tanh() * 2,
        [(2, 4, 5, 6), (4, 3, 1, 1)],
    ),
    "transposed, of one element": (
        lambda x, w: F.conv_transpose2d(x, w, None, 3).tanh() * 2,
        [(2, 8, 1, 1), (8, 6, 4, 4)],
    ),
    "transposed, of one row": (
        lambda x, w: F.conv_transpose2d(x, w, None, 2).tanh() * 2,
        [(2, 8, 1, 5), (8, 6, 3, 4)],
    ),
    "strided, of one element": (lambda x, w: F.conv2d(x, w, None, 2).tanh() * 2, [(5, 8, 1, 1), (32, 8, 1, 1)]),
    "groups in three dimensions": (
        lambda x, w: F.conv3d(x, w, None, 1, 1, 1, 2).relu(),
        [(2, 4, 5, 6, 7), (6, 2, 3, 3, 3)],
    ),
    "transposed groups": (
        lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 0, 2).relu(),
        [(2, 4, 9), (4, 3, 4)],
    ),
    "instance norm behind": (
        lambda x, w: F.instance_norm(F.conv2d(x, w, None, 1, 1)),
        [(2, 3, 9, 8), (5, 3, 3, 3)],
    ),
    "residual of two": (
        lambda x, v, w: (F.conv2d(x, v, None, 1, 1) + F.conv2d(x, w)).relu(),
        [(2, 3, 9, 8), (3, 3, 3, 3), (3, 3, 1, 1)],
    ),
    "residual of what it reads": (
        lambda x, w: torch.sigmoid(F.conv2d(x, w, None, 1, 1)) * x + x.cos(),
        [(2, 3, 9, 8), (3, 3, 3, 3)],
    ),
    "linear, residual of what it reads": (lambda x, w: F.linear(x, w) + x, [(2, 5, 24), (24, 24)]),
    "linear, gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [(10, 24), (16, 24), (16,)]),
    "factors": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=3).relu(), [(10, 16), (10, 12), (12, 16)]),
    "factor of nothing": (
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0, alpha=0.25).softmax(-1),
        [(3, 10, 16), (3, 10, 12), (3, 12, 16)],
    ),
    "expanded": (lambda a, b: torch.bmm(a, b.expand(3, -1, -1)).relu() * 2, [(3, 10, 12), (1, 12, 16)]),
    "batched": (lambda a, b: (a @ b).softmax(-1), [(3, 10, 16), (3, 16, 12)]),
}


@pytest.mark.parametrize("name", CASES)
def test_products_become_regions(name: str) -> None:
    run, shapes = CASES[name]
    g = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=g) for s in shapes]
    (graph,) = capture_graphs(run, inputs, False, None)
    found = check_graph(graph, PRODUCTS)
    dots = [(r.program, op) for r in found.regions for op in r.program.ops if op.fn == "dot"]
    assert len(dots) == (2 if name == "residual of two" else 1)
    assert len(found.regions) == len(dots), found.refused
    is_moved = any(x.access for _, op in dots for x in op.operands if isinstance(x, Ref))
    if is_moved and name != "transposed, one wide, more than it reads":  # which no library call is made for
        assert match_convolution(*dots[0]) is not None
    without = partition(graph.gm.graph)
    assert not any(op.fn == "dot" for r in without.regions for op in r.program.ops)
    assert any("left to the library" in reason for reason in without.refused.values())


VECTORS: dict[str, tuple[Run, list[tuple[int, ...]], list[str]]] = {
    "one token": (lambda x, w, b: F.linear(x, w, b).relu(), [(1, 24), (16, 24), (16,)], ["mul", "sum"]),
    "one output": (lambda x, w, b: F.linear(x, w, b).relu(), [(10, 24), (1, 24), (1,)], ["mul", "sum"]),
    "batched dot": (lambda a, b: (a @ b).relu(), [(6, 1, 24), (6, 24, 1)], ["mul", "sum"]),
    "outer": (lambda a, b: (a @ b).relu() * 2, [(10, 1), (1, 24)], ["mul"]),
    "one filter of size 1": (lambda x, w: F.conv2d(x, w).relu(), [(2, 3, 9, 8), (1, 3, 1, 1)], ["mul", "sum"]),
    "one channel, of size 1": (lambda x, w: F.conv2d(x, w).relu(), [(2, 1, 9, 8), (5, 1, 1, 1)], ["mul"]),
    "one filter over all": (lambda x, w: F.conv2d(x, w).sigmoid(), [(5, 6, 4, 3), (1, 6, 4, 3)], ["mul", "sum"]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", VECTORS)
def test_an_operand_that_varies_along_all_axes_makes_no_sum_of_products(name: str, dtype: torch.dtype) -> None:
    run, shapes, written = VECTORS[name]
    inputs = [torch.randn(s, dtype=dtype) for s in shapes]
    (graph,) = capture_graphs(run, inputs, False, None)
    (region,) = check_graph(graph, PRODUCTS).regions
    found = [op.fn for op in region.program.ops if op.fn != "cast"]
    assert found[: len(written)] == written and "dot" not in found
    assert all(op.dtype == ("f64" if dtype is torch.float64 else "f32") for op in region.program.ops[:1])


@pytest.mark.parametrize("train", [False, True])
def test_a_window_over_all_that_is_read_is_a_plain_contraction(train: bool) -> None:
    inputs = [torch.randn(5, 6, 4, 3).requires_grad_(train), torch.randn(7, 6, 4, 3).requires_grad_(train)]
    graphs = capture_graphs(lambda x, w: F.conv2d(x, w, None, 2).square(), inputs, train, None)
    dots = [o for g in graphs for r in check_graph(g, PRODUCTS).regions for o in r.program.ops if o.fn == "dot"]
    assert len(dots) == (3 if train else 1)
    assert not any(x.access for o in dots for x in o.operands if isinstance(x, Ref))
    forward = dots[0]
    assert (len(forward.axes), len(forward.over)) == (2, 1)  # 72 terms along one axis


def test_a_convolution_in_channels_last() -> None:
    x = torch.randn(2, 4, 9, 8).to(memory_format=torch.channels_last)
    w = torch.randn(5, 4, 3, 3).to(memory_format=torch.channels_last)
    (graph,) = capture_graphs(lambda a, b: F.conv2d(a, b, None, 1, 1).relu(), [x, w], False, None)
    (region,) = check_graph(graph, PRODUCTS).regions
    assert region.program.inputs[0].axes[-1] in region.program.inputs[1].axes


@pytest.mark.parametrize(
    ("transposed", "stride", "padding", "groups", "window"),
    [(False, 1, 1, 1, 3), (False, 2, 1, 2, 3), (False, 1, 0, 1, 1), (True, 2, 1, 1, 4), (True, 2, 0, 2, 2)],
)
def test_gradients_of_convolutions(transposed: bool, stride: int, padding: int, groups: int, window: int) -> None:
    x, w = torch.randn(2, 4, 9, 8), torch.randn(4, 4 // groups, window, window)
    convolve = F.conv_transpose2d if transposed else F.conv2d
    bias = torch.randn(4)

    def run(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return convolve(a, b, c, stride, padding, groups=groups).square()

    inputs = [t.requires_grad_() for t in (x, w, bias)]
    _, backward = capture_graphs(run, inputs, True, None)
    found = check_graph(backward, PRODUCTS)
    dots = [op for r in found.regions for op in r.program.ops if op.fn == "dot"]
    assert len(dots) == 2, found.refused


def test_the_first_layer_has_no_gradient_of_its_input() -> None:
    w = torch.randn(4, 3, 3, 3).requires_grad_()
    x = torch.randn(2, 3, 9, 8)
    _, backward = capture_graphs(lambda b: F.conv2d(x, b, None, 2, 1).square(), [w], True, None)
    (region,) = [r for r in check_graph(backward, PRODUCTS).regions if any(o.fn == "dot" for o in r.program.ops)]
    assert len(region.outputs) == 1
