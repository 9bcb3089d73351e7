"""Values that cannot matter: what a chain of pointwise operators always gives."""

from __future__ import annotations

from math import inf, isinf

from torch import fx

from cudal1_fx_passes.algebra.nodes import Maker, aten, constant_of, may_be_aliased, sizes, value
from cudal1_fx_passes.algebra.ranges import CHAINED, Bounds, bounds

_AT_LEAST = (aten.clamp_min.default, aten.maximum.default)
_AT_MOST = (aten.clamp_max.default, aten.minimum.default)


def constant_result(node: fx.Node) -> fx.Node | None:
    """clamp(min(x, 0), 0, 1)  ->  0;  x - x  ->  0;  softmax of one  ->  1.

    Proof: all bounds of a value (ranges.py) are one number; only NaN, for a NaN or an infinity before it, is lost.
    What computed x then goes, as far as nothing else reads it.
    """
    shape = sizes(node)
    if node.target not in CHAINED or shape is None:
        return None
    found = bounds(node, value(node).dtype)
    if found.low != found.high or isinf(found.low):
        return None
    return Maker(node).full(found.low, shape)


def clamp_within_range(node: fx.Node) -> fx.Node | None:
    """relu(sigmoid(x))  ->  sigmoid(x): what lies within bounds already is not clamped to them.

    Proof: then each value is its own result, NaN too; only the sign of a zero may differ.
    """
    if sizes(node) is None or node.kwargs:
        return None
    for x, limit in _clamped(node):
        if not isinstance(x, fx.Node) or sizes(x) != sizes(node) or value(x).dtype != value(node).dtype:
            continue
        found = bounds(x, value(node).dtype)
        if found.low >= limit.low and found.high <= limit.high and may_be_aliased(node):
            return x
    return None


def _clamped(node: fx.Node) -> list[tuple[object, Bounds]]:
    """What may stand in the node's place, where it lies within these bounds."""
    if node.target in (aten.relu.default, aten.abs.default):
        return [(node.args[0], Bounds(0.0, inf))]
    if node.target not in (*_AT_LEAST, *_AT_MOST):
        return []
    found: list[tuple[object, Bounds]] = []
    for x, limit in (node.args, node.args[::-1]):
        if constant_of(limit) is not None:  # a tensor's NaN would be lost
            low, high = bounds(limit, value(node).dtype)
            found.append((x, Bounds(low, inf) if node.target in _AT_LEAST else Bounds(-inf, high)))
    return found
