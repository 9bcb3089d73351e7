"""Between which numbers the values of pointwise chains lie, as far as their text says.

Nothing rests on rounding: all functions here are monotone or have bounds that are exact in every precision.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

import torch
from torch import fx

from cudal1_fx_passes.algebra.nodes import aten, constant_of, prims, sizes, value

MOST = 16  # operators that are looked through


class Bounds(NamedTuple):
    """Each value is NaN, or lies between these, ends included."""

    low: float
    high: float


ALL, POSITIVE, ONE = Bounds(-inf, inf), Bounds(0.0, inf), Bounds(1.0, 1.0)
_PRECISE = (0.0, 1.0, -1.0)  # in every dtype


def _abs(x: Bounds) -> Bounds:
    return Bounds(max(0.0, x.low, -x.high), max(-x.low, x.high))


def _mul(x: Bounds, y: Bounds) -> Bounds:
    if (0, 0) in (x, y):  # 0 times inf is NaN
        return Bounds(0.0, 0.0)
    return POSITIVE if x.low >= 0 and y.low >= 0 else ALL


def _div(x: Bounds, y: Bounds) -> Bounds:
    if x == y == ONE:
        return ONE
    return POSITIVE if x.low >= 0 and y.low >= 0 else ALL


_FUNCTIONS: dict[Any, Callable[..., Bounds]] = {
    aten.relu.default: lambda x: Bounds(max(0.0, x.low), max(0.0, x.high)),
    aten.abs.default: _abs,
    aten.neg.default: lambda x: Bounds(-x.high, -x.low),
    aten.sigmoid.default: lambda x: Bounds(0.0, 1.0),
    aten.tanh.default: lambda x: Bounds(-1.0, 1.0),
    aten.sqrt.default: lambda x: POSITIVE,
    aten.sum.dim_IntList: lambda x: POSITIVE if x.low >= 0 else ALL,
    aten.exp.default: lambda x: Bounds(1.0 if x.low >= 0 else 0.0, 1.0 if x.high <= 0 else inf),
    aten.log.default: lambda x: Bounds(0.0 if x.low >= 1 else -inf, 0.0 if x.high <= 1 else inf),
    aten.mul.Tensor: _mul,
    aten.div.Tensor: _div,
    aten.sub.Tensor: lambda x, y: ALL,
    aten.where.self: lambda x, y: Bounds(min(x.low, y.low), max(x.high, y.high)),
    **dict.fromkeys(
        (aten.clamp_min.default, aten.maximum.default), lambda x, y: Bounds(max(x.low, y.low), max(x.high, y.high))
    ),
    **dict.fromkeys(
        (aten.clamp_max.default, aten.minimum.default), lambda x, y: Bounds(min(x.low, y.low), min(x.high, y.high))
    ),
}
_VIEWS = (
    aten.reshape.default,
    aten.permute.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dims,
    aten.clone.default,
)
CHAINED = (*_FUNCTIONS, prims.convert_element_type.default)


def bounds(node: object, dtype: torch.dtype) -> Bounds:
    """dtype: that numbers are rounded to."""
    return _bounds(node, dtype, {})


def _bounds(node: object, dtype: torch.dtype, seen: dict[object, Bounds]) -> Bounds:
    if (number := constant_of(node)) is not None:
        return Bounds(number, number) if number in _PRECISE else _rounded(number, dtype)
    if not isinstance(node, fx.Node) or sizes(node) is None:
        return ALL
    if node not in seen:
        if len(seen) == MOST:
            return ALL
        seen[node] = ALL  # until it is known
        seen[node] = _of_operator(node, seen)
    return seen[node]


def _rounded(number: float, dtype: torch.dtype) -> Bounds:
    rounded = torch.tensor(number, dtype=dtype).item()
    return Bounds(rounded, rounded) if rounded == rounded else ALL


def _of_operator(node: fx.Node, seen: dict[object, Bounds]) -> Bounds:
    if node.target in _VIEWS:
        return _bounds(node.args[0], value(node).dtype, seen)
    if node.target is prims.convert_element_type.default:
        return _converted(node, seen)
    if node.target not in _FUNCTIONS or node.kwargs:
        return ALL
    given = node.args[1:] if node.target is aten.where.self else node.args
    if node.target is aten.sub.Tensor:  # of use where both are the same alone
        return Bounds(0.0, 0.0) if isinstance(given[0], fx.Node) and given[0] is given[1] else ALL
    if node.target is aten.sum.dim_IntList:
        given = given[:1]
    return _FUNCTIONS[node.target](*(_bounds(x, value(node).dtype, seen) for x in given[:2]))


def _converted(node: fx.Node, seen: dict[object, Bounds]) -> Bounds:
    """Rounded or not: kernels need not round between two operators."""
    source: Any = node.args[0]
    if sizes(source) is None:
        return ALL
    found = _bounds(source, value(source).dtype, seen)
    ends = [_rounded(end, value(node).dtype).low for end in found]
    return Bounds(min(found.low, ends[0]), max(found.high, ends[1]))
