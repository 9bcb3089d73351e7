"""What the rules share: looking at nodes, and making new ones with their fake values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

aten, prims = torch.ops.aten, torch.ops.prims
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Factors(NamedTuple):
    """What a sum's terms are multiplied by on their way from a product: a number, and a vector of its columns."""

    number: float
    vector: fx.Node | None


class Reduction(NamedTuple):
    """A sum or a mean. dims: of the source, from 0."""

    source: fx.Node
    dims: tuple[int, ...]
    is_mean: bool


class Maker:
    """Makes nodes in front of one."""

    def __init__(self, before: fx.Node) -> None:
        self.before = before

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.before.graph.inserting_before(self.before):
            node = self.before.graph.call_function(target, args, kwargs)
        given, named = map_arg((args, kwargs), lambda n: n.meta["val"])
        with value(self.before).fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = target(*given, **named)
        return node

    def full(self, number: float, shape: Sequence[int], dtype: torch.dtype | None = None) -> fx.Node:
        """On the device of what stands behind, and of its dtype unless one is given."""
        of = value(self.before)
        named = {"dtype": dtype or of.dtype, "layout": torch.strided, "device": of.device, "pin_memory": False}
        return self(aten.full.default, list(shape), number, **named)

    def wide(self, node: fx.Node) -> fx.Node:
        """In float32, where it is of half precision."""
        if value(node).dtype not in (torch.float16, torch.bfloat16):
            return node
        return self(prims.convert_element_type.default, node, torch.float32)

    def sum(self, node: fx.Node, dim: int, keepdim: bool = True) -> fx.Node:
        return self(aten.sum.dim_IntList, self.wide(node), [dim], keepdim)

    def unless_finite(self, result: fx.Node, operand: fx.Node, dim: int) -> fx.Node:
        """The result of a product, plus the sum over a dim of 0 times an operand: 0, or NaN.

        Stands for terms that were left out because their other factor is 0.
        """
        zero = self.sum(self(aten.mul.Tensor, operand, 0.0), dim)
        if value(zero).dtype != value(result).dtype:
            zero = self(prims.convert_element_type.default, zero, value(result).dtype)
        return self(aten.add.Tensor, result, zero)

    def swapped(self, node: fx.Node) -> fx.Node:
        """The last two dims."""
        dims = list(range(value(node).dim()))
        return self(aten.permute.default, node, [*dims[:-2], dims[-1], dims[-2]])

    def scaled(self, node: fx.Node, factor: float) -> fx.Node:
        return node if factor == 1.0 else self(aten.mul.Tensor, node, factor)

    def like(self, node: fx.Node, old: fx.Node) -> fx.Node:
        """Of the dtype and the shape of another one."""
        if value(node).dtype != value(old).dtype:
            node = self(prims.convert_element_type.default, node, value(old).dtype)
        return node if sizes(node) == sizes(old) else self(aten.reshape.default, node, list(sizes(old) or ()))


def value(node: fx.Node) -> Tensor:
    found = node.meta["val"]
    assert isinstance(found, Tensor)
    return found


def sizes(node: object) -> tuple[int, ...] | None:
    """None for what is no floating-point tensor of static sizes."""
    val = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(val, Tensor) or val.dtype not in FLOATS or not all(type(n) is int for n in val.shape):
        return None
    return tuple(val.shape)


def is_only(node: fx.Node) -> bool:
    """Whether what is computed here is read once."""
    return len(node.users) == 1


def may_be_aliased(node: fx.Node) -> bool:
    """Whether another tensor may stand in its place: neither it nor a view of it leaves the graph."""
    results = [n.meta.get("val") for n in node.graph.output_node().all_input_nodes]
    strided = [r for r in results if isinstance(r, Tensor) and r.layout is torch.strided]
    storage = value(node).untyped_storage()._cdata
    return all(r.untyped_storage()._cdata != storage for r in strided)


def keeps_columns(node: fx.Node) -> bool:
    """Whether a reshape leaves the last dim."""
    old, new = sizes(node.args[0]) or (), sizes(node) or ()
    return bool(old) and old[-1:] == new[-1:]


def constant_of(node: object) -> float | None:
    """The number that it is, or that all its entries are."""
    if isinstance(node, fx.Node) and node.target is aten.full.default:
        node = node.args[1]
    elif isinstance(node, fx.Node) and node.target is aten.scalar_tensor.default:
        node = node.args[0]
    return float(node) if isinstance(node, int | float) and not isinstance(node, bool) else None


def reduction(node: fx.Node) -> Reduction | None:
    """None for everything else, and for one that accumulates in another dtype than it was given."""
    if node.target not in (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default):
        return None
    source: Any = node.args[0]
    shape = sizes(source)
    if shape is None or node.kwargs or len(node.args) > 3 or sizes(node) is None:
        return None
    given: Any = node.args[1] if len(node.args) > 1 else None
    dims = tuple(sorted({d % len(shape) for d in given or range(len(shape))})) if shape else ()
    return Reduction(source, dims, node.target in (aten.mean.dim, aten.mean.default)) if dims else None


def number_of(node: fx.Node) -> tuple[fx.Node, float] | None:
    """Of a product or a quotient with a number: the tensor, and what it is multiplied by."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor) or len(node.args) != 2 or node.kwargs:
        return None
    source, number = node.args
    if not isinstance(source, fx.Node) or isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if node.target is aten.mul.Tensor:
        return source, float(number)
    return (source, 1.0 / number) if number else None
