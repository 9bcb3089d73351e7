"""Takes a convolution's two gradients apart, which one node gives, and puts those together that stayed so.

    %b = convolution_backward(g, x, w, ..)   ->   %i = convolution_backward(.., mask of the input)
    %b[0], %b[1]                                  %w = convolution_backward(.., mask of the weight)
                                                  %i[0], %w[1]

As one node they would be one region, in which the gradient that a library computes faster costs the other one its
kernel, and the norm's backward behind it. A library computes them in two kernels either way.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

BACKWARD = torch.ops.aten.convolution_backward.default
MASK = 10  # the argument that says which gradients are wanted


@contextmanager
def gradients_apart(graph: fx.Graph) -> Iterator[None]:
    """Within the block each gradient has a node; afterwards both have one, where both are still there."""
    pairs = [pair for node in list(graph.nodes) if (pair := _split(graph, node)) is not None]
    try:
        yield
    finally:
        there = set(graph.nodes)
        for pair in pairs:
            if there.issuperset(pair):
                _join(graph, *pair)


def _split(graph: fx.Graph, node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    if node.target is not BACKWARD or len(node.args) <= MASK or node.kwargs:
        return None
    mask: Any = node.args[MASK]
    items = list(node.users)
    if not (mask[0] and mask[1]) or any(u.target is not operator.getitem for u in items):
        return None
    made = [_one(graph, node, (True, False, False)), _one(graph, node, (False, True, mask[2]))]
    for item in items:
        item.args = (made[item.args[1] != 0], item.args[1])
    graph.erase_node(node)
    return made[0], made[1]


def _one(graph: fx.Graph, node: fx.Node, mask: tuple[bool, bool, bool]) -> fx.Node:
    args = (*node.args[:MASK], list(mask), *node.args[MASK + 1 :])
    with graph.inserting_before(node):
        made = graph.call_function(BACKWARD, args)
    made.meta = copy.copy(node.meta)
    made.meta["val"] = tuple(x if wanted else None for x, wanted in zip(node.meta["val"], mask, strict=True))
    return made


def _join(graph: fx.Graph, of_input: fx.Node, of_weight: fx.Node) -> None:
    """Where neither was replaced or given to another target, and both still read the same."""
    pair = (of_input, of_weight)
    if not all(n.users and n.target is BACKWARD for n in pair) or of_input.args[:MASK] != of_weight.args[:MASK]:
        return
    mask: Any = of_weight.args[MASK]
    with graph.inserting_before(of_input):
        node = graph.call_function(BACKWARD, (*of_input.args[:MASK], [True, True, mask[2]]))
    node.meta = copy.copy(of_weight.meta)
    node.meta["val"] = (of_input.meta["val"][0], *of_weight.meta["val"][1:])
    for half in pair:
        for item in list(half.users):
            item.args = (node, item.args[1])
        graph.erase_node(half)
