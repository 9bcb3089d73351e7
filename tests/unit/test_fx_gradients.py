"""A convolution's two gradients are regions of their own, and one node again where no kernel took one."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from cudal1_compile.inductor.library import LibraryCall, run_by_library
from cudal1_fx_passes.fusion.anchors import partition_with_products
from cudal1_fx_passes.fusion.gradients import BACKWARD, MASK, gradients_apart
from cudal1_fx_passes.importer.capture import capture_graphs
from cudal1_fx_passes.program.ir import Program


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, stride=2, groups=8)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(F.relu(self.norm(self.first(x))))
        return y


def backward_graph() -> fx.GraphModule:
    found = capture_graphs(Net(), (torch.randn(2, 3, 12, 12),), train=True)
    return next(g.gm for g in found if g.kind == "backward")


def products_of(program: Program) -> int:
    return sum(o.fn.startswith("dot") for o in program.ops)


def masks(graph: fx.Graph) -> list[list[bool]]:
    return [list(n.args[MASK]) for n in graph.nodes if n.target is BACKWARD]  # type: ignore[call-overload]


def test_each_gradient_is_a_region_of_its_own() -> None:
    gm = backward_graph()
    before = masks(gm.graph)
    assert [True, True] in [m[:2] for m in before]
    assert max(products_of(r.program) for r in partition_with_products(gm.graph).regions) == 2
    with gradients_apart(gm.graph):
        gm.graph.lint()
        assert not any(m[0] and m[1] for m in masks(gm.graph))
        found = partition_with_products(gm.graph)
        regions = [*found.regions, *(r for a in found.anchors for c in a.cuts for r in c)]
        assert max(products_of(r.program) for r in regions) == 1
        # the gradient of the image goes on into the norm's backward
        assert any(products_of(r.program) and len(r.program.ops) > 8 for r in regions)
    assert masks(gm.graph) == before
    gm.graph.lint()


def test_the_graph_computes_the_same_within_and_after() -> None:
    found = capture_graphs(Net(), (torch.randn(2, 3, 12, 12),), train=True)
    graph = next(g for g in found if g.kind == "backward")
    gm, inputs = graph.gm, graph.inputs
    expected = gm(*inputs)
    with gradients_apart(gm.graph):
        gm.recompile()
        torch.testing.assert_close(gm(*inputs), expected)
    gm.recompile()
    torch.testing.assert_close(gm(*inputs), expected)


def test_what_lost_one_gradient_stays_apart() -> None:
    gm = backward_graph()
    with gradients_apart(gm.graph):
        node = next(n for n in gm.graph.nodes if n.target is BACKWARD and list(n.args[MASK])[:2] == [True, False])
        (item,) = node.users
        assert item.target is operator.getitem
        with gm.graph.inserting_before(item):
            stand_in = gm.graph.call_function(torch.ops.aten.zeros_like.default, (node.args[1],))
        stand_in.meta = dict(item.meta)
        item.replace_all_uses_with(stand_in)
        gm.graph.erase_node(item)
        gm.graph.erase_node(node)
    assert [m[:2] for m in masks(gm.graph)].count([False, True]) == 2  # and the first layer's, which has no other
    gm.graph.lint()


def test_what_was_given_to_the_library_stays_apart() -> None:
    gm = backward_graph()
    with gradients_apart(gm.graph):
        run_by_library(next(n for n in gm.graph.nodes if n.target is BACKWARD and n.args[MASK][0]))
    assert [m[:2] for m in masks(gm.graph)].count([False, True]) == 2
    assert sum(isinstance(n.target, LibraryCall) for n in gm.graph.nodes) == 1
