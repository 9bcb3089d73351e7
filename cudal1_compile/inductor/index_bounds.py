"""An index outside of its tensor ends the call, as it does in Inductor's code: the graph asserts it for a kernel.

    gather(%x, 1, %i)   ->   _assert_async(not any((%i < 0) | (%i >= 64))), and the kernel

A kernel reads wherever an index says. Inductor asserts every index that it reads at, unless its option
`assert_indirect_indexing` is off; so does this. Not asserted are indices that a region makes of positions alone,
or by more than pointwise work (an argmax lies within its axis).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from cudal1_fx_passes.fusion.partition import Region
from cudal1_fx_passes.importer.boundary import lowering_of

aten = torch.ops.aten
MESSAGE = "index out of bounds"

Bound = tuple[fx.Node, fx.Node, int, bool]  # an index, the tensor and its dim, whether places below 0 count back


def index_bounds(region: Region) -> tuple[Bound, ...]:
    """What is to be asserted for a region's kernel, each once."""
    if not inductor_config.assert_indirect_indexing:
        return ()
    inside = set(region.nodes)
    return tuple(dict.fromkeys(b for n in region.nodes for b in _bounds(n) if _is_given(b[0], inside)))


def assert_bounds(graph: fx.Graph, bounds: Iterable[Bound]) -> None:
    """Puts an assertion behind each index."""
    for index, value, dim, wraps in bounds:
        with graph.inserting_before(_behind(graph, index, value)):
            low, high = _limits(graph, value, dim, wraps)
            below, above = _call(graph, aten.lt.Scalar, index, low), _call(graph, aten.ge.Scalar, index, high)
            is_any = _call(graph, aten.any.default, _call(graph, aten.logical_or.default, below, above))
            _call(graph, aten._assert_async.msg, _call(graph, aten.logical_not.default, is_any), MESSAGE)


def _bounds(node: fx.Node) -> Iterator[Bound]:
    if node.target is aten.embedding.default:
        yield from _within(node.args[0], 0, node.args[1], False)
    elif node.target is aten.gather.default:
        yield from _within(node.args[0], node.args[1], node.args[2], False)
    elif node.target is aten.index.Tensor:
        indices: Any = node.args[1]
        for dim, index in enumerate(indices):
            yield from _within(node.args[0], dim, index, True)


def _within(value: Any, dim: Any, index: Any, wraps: bool) -> Iterator[Bound]:
    if isinstance(index, fx.Node):
        yield index, value, dim, wraps


def _limits(graph: fx.Graph, value: fx.Node, dim: int, wraps: bool) -> tuple[Any, Any]:
    """The least place, and the first that is too large: numbers, or nodes of a symbolic size."""
    size = value.meta["val"].shape[dim]
    if isinstance(size, int):
        return -size * wraps, size
    high = _call(graph, aten.sym_size.int, value, dim)
    return _call(graph, operator.neg, high) if wraps else 0, high


def _behind(graph: fx.Graph, *nodes: fx.Node) -> fx.Node:
    """The first place behind some nodes at which something may be computed."""
    node: fx.Node = next(n for n in reversed(graph.nodes) if n in nodes).next
    while node.op == "placeholder":
        node = node.next
    return node


def _is_given(index: fx.Node, inside: Collection[fx.Node]) -> bool:
    """Whether it is pointwise work of the region's on what the region reads."""
    ahead, seen, reads = [index], set[fx.Node](), False
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if node not in inside:
            reads = reads or isinstance(node.meta.get("val"), torch.Tensor)
            continue
        found = lowering_of(node)
        if found is None or found.role not in ("pointwise", "view"):
            return False
        ahead += node.all_input_nodes
    return reads


def _call(graph: fx.Graph, function: Any, *args: Any) -> fx.Node:
    node = graph.call_function(function, args)
    fakes = fx.map_arg(args, lambda n: n.meta["val"])
    with V.fake_mode:
        node.meta["val"] = function(*fakes)
    return node
