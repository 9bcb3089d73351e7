"""Two cuts around products: what each holds, and which is taken; torch's TF32 flags decide what a region says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from cudal1_fx_passes.fusion import anchors
from cudal1_fx_passes.fusion.anchors import cut, free_regions, only_in, partition_with_products
from cudal1_fx_passes.fusion.partition import Partition, Region, partition
from cudal1_fx_passes.importer.capture import capture_graphs, take_for_cuda
from cudal1_fx_passes.program.precision import (
    convolutions_in_f32,
    convolutions_may_use_tf32,
    products_may_use_tf32,
)
from cudal1_fx_passes.program.text import print_program


def graph_of(fn: Callable[..., Tensor], *shapes: tuple[int, ...], train: bool = False) -> list[fx.Graph]:
    inputs = tuple(torch.randn(s, requires_grad=train) for s in shapes)
    return [g.gm.graph for g in capture_graphs(fn, inputs, train=train)]


def names(regions: Sequence[Region]) -> list[list[str]]:
    return [[str(n.target).split(".")[-2] for n in r.nodes] for r in regions]


def every_fingerprint(found: Partition) -> set[str]:
    return {f for a in found.anchors for c in a.fingerprints for f in c}


def block(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Two products whose chains meet, and a softmax that no product touches."""
    y = F.relu(F.conv2d(x, v, None, 1, 1) * 2)
    z = torch.sigmoid(F.conv2d(y, w) + x)
    return torch.softmax(z.sum((2, 3)).sin(), 1)


SHAPES = ((2, 3, 8, 8), (6, 3, 3, 3), (3, 6, 1, 1))


@pytest.fixture
def found() -> Partition:
    (graph,) = graph_of(block, *SHAPES)
    return partition_with_products(graph)


def test_whole_has_the_chain_and_apart_is_what_there_is_without_products(found: Partition) -> None:
    first, second = (a.cuts for a in found.anchors)
    assert names(first[0]) == [["convolution", "mul", "relu"]]
    assert names(first[1]) == [["convolution"], ["mul", "relu"]]
    assert names(second[0])[0][:3] == ["convolution", "add", "sigmoid"]
    assert names(second[1])[0] == ["convolution"]
    plain = {r.fingerprint for r in partition(found.graph).regions}
    apart = {r.fingerprint for a in found.anchors for r in a.cuts[-1]}
    assert plain <= apart | {r.fingerprint for r in free_regions(found)}


def test_what_is_chosen_decides_the_cut(found: Partition) -> None:
    first, second = found.anchors
    everything = every_fingerprint(found)
    assert cut(found, everything) == [*first.cuts[0], *second.cuts[0]]
    assert cut(found, everything - only_in(first.fingerprints, 0)) == [*first.cuts[1], *second.cuts[0]]
    assert cut(found, {first.cuts[1][1].fingerprint}) == [first.cuts[1][1]]
    assert cut(found, set()) == []


def pre_activated(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(F.relu(x * y + 1), w).exp().sin()


FED = ((2, 3, 8, 8), (2, 3, 8, 8), (6, 3, 3, 3))


def test_what_feeds_a_product_alone_is_one_region_with_it() -> None:
    (graph,) = graph_of(pre_activated, *FED)
    found = partition_with_products(graph)
    (anchor,) = found.anchors
    before, product, behind = ["mul", "add", "relu"], ["convolution"], ["exp", "sin"]
    fed, whole, apart = ({tuple(n) for n in names(c)} for c in anchor.cuts)
    assert fed == {(*before, *product, *behind)}
    assert whole == {tuple(before), (*product, *behind)} and apart == {
        tuple(before),
        tuple(product),
        tuple(behind),
    }
    everything = every_fingerprint(found)
    for at in range(3):
        assert {r.fingerprint for r in cut(found, everything)} == {r.fingerprint for r in anchor.cuts[at]}
        everything -= only_in(anchor.fingerprints, at)
    assert not free_regions(found)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y, w: (lambda z: F.conv2d(z, w).exp() + z.sin().cumsum(1).sum())(F.relu(x * y + 1)),
        lambda x, y, w: F.conv2d((x * y).softmax(1), w),
        lambda x, y, w: F.conv2d(x, w[:, :, 1:2, 1:2] * 1).exp() + F.relu(x * y + 1).sum(1, keepdim=True),
    ],
    ids=["read elsewhere too", "no pointwise region", "read behind the product"],
)
def test_what_does_not_feed_a_product_alone_stays_a_region(fn: Callable[..., Tensor]) -> None:
    (graph,) = graph_of(fn, *FED)
    found = partition_with_products(graph)
    assert all(len(a.cuts) == 2 for a in found.anchors)


def test_what_feeds_is_bound_where_nothing_follows() -> None:
    """The cuts with and without what follows are one then."""
    (graph,) = graph_of(lambda x, y, w: F.conv2d(F.relu(x * y + 1), w), *FED)
    found = partition_with_products(graph)
    (anchor,) = found.anchors
    assert [len(c) for c in anchor.cuts] == [1, 2] and not free_regions(found)
    assert len(cut(found, every_fingerprint(found))) == 1


def test_a_weight_is_fed_through_views() -> None:
    (graph,) = graph_of(lambda x, w, s: F.linear(x, torch.tanh(w * s)).exp().sin(), (8, 16), (12, 16), (12, 1))
    (anchor,) = partition_with_products(graph).anchors
    assert [len(c) for c in anchor.cuts] == [1, 2, 3]


def test_regions_that_cannot_be_ordered_are_cut_apart(found: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    order, calls = anchors.in_order, []

    def first_fails(graph: fx.Graph, regions: list[Region]) -> tuple[Region, ...]:
        calls.append(regions)
        if len(calls) == 1:
            raise networkx.NetworkXUnfeasible
        return order(graph, regions)

    monkeypatch.setattr(anchors, "in_order", first_fails)
    assert cut(found, every_fingerprint(found)) == [r for a in found.anchors for r in a.cuts[-1]]


def test_a_product_with_nothing_behind_it_needs_no_choice() -> None:
    (graph,) = graph_of(lambda x, w: F.conv2d(x, w), (2, 3, 8, 8), (6, 3, 3, 3))
    found = partition_with_products(graph)
    assert not found.anchors and len(found.regions) == len(cut(found, {found.regions[0].fingerprint})) == 1


def test_gradients_of_input_and_weight_are_one_product() -> None:
    backward = graph_of(lambda x, w: F.relu(F.conv2d(torch.sin(x), w)), (2, 3, 8, 8), (6, 3, 3, 3), train=True)[1]
    found = partition_with_products(backward)
    (anchor,) = found.anchors
    alone = next(r for r in anchor.cuts[-1] if " = dot" in print_program(r.program))
    assert [n.name.split("_")[0] for n in alone.nodes] == ["convolution", "getitem", "getitem"]
    assert print_program(alone.program).count(" = dot") == 2


@pytest.fixture
def flags() -> Iterator[Any]:
    cudnn: Any = torch.backends.cudnn
    kept = (cudnn.conv, cudnn.rnn, torch.backends.cuda.matmul)
    before = [flag.fp32_precision for flag in kept]
    yield cudnn
    for flag, value in zip(kept, before, strict=True):
        flag.fp32_precision = value


def test_flags_are_read_however_they_were_set(flags: Any) -> None:
    (graph,) = graph_of(block, *SHAPES)
    take_for_cuda(graph)

    def says() -> set[str]:
        texts = [print_program(r.program) for r in partition_with_products(graph).regions]
        return {word for text in texts for word in ("dot(", "dot_tf32(") if f" = {word}" in text}

    torch.backends.cudnn.allow_tf32 = True
    assert convolutions_may_use_tf32() and says() == {"dot_tf32("}
    with convolutions_in_f32():
        assert not convolutions_may_use_tf32()
    assert convolutions_may_use_tf32() and torch.backends.cudnn.allow_tf32
    first, second = convolutions_in_f32(), convolutions_in_f32()  # of two threads
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not convolutions_may_use_tf32()
    second.__exit__(None, None, None)
    assert convolutions_may_use_tf32()
    torch.backends.cudnn.allow_tf32 = False
    assert says() == {"dot("}
    flags.conv.fp32_precision = "tf32"  # allow_tf32 cannot be read now
    assert says() == {"dot_tf32("}
    torch.backends.cuda.matmul.allow_tf32 = True
    assert products_may_use_tf32()
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert not products_may_use_tf32()
