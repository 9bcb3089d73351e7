"""Reductions over one element."""

from __future__ import annotations

import operator
from math import inf, prod
from typing import Any

from torch import fx

from cudal1_fx_passes.algebra.nodes import Maker, aten, constant_of, may_be_aliased, reduction, sizes, value

_EXTREMES = (aten.amax.default, aten.amin.default)
_EXTREMES_AND_PLACES = (aten.max.dim, aten.min.dim)


def reduction_of_one(node: fx.Node) -> fx.Node | None:
    """The sum, mean, maximum or minimum over dims of size one  ->  the element.

    Proof: each is its one term's value, NaN too; only the sign of a zero may differ.
    """
    found = _reduced(node)
    if found is None or sizes(node) is None:
        return None
    source, dims = found
    shape = sizes(source)
    if shape is None or value(source).dtype != value(node).dtype or prod(shape[d] for d in dims) != 1:
        return None
    return Maker(node).like(source, node) if may_be_aliased(node) else None


def _reduced(node: fx.Node) -> tuple[fx.Node, list[int]] | None:
    """The source and the dims of it that are reduced."""
    if (found := reduction(node)) is not None:
        return found.source, list(found.dims)
    pair: Any = node.args[0] if node.args else None
    if node.target is operator.getitem and pair.target in _EXTREMES_AND_PLACES and node.args[1] == 0:
        return pair.args[0], [pair.args[1]]
    if node.target not in _EXTREMES or node.kwargs:
        return None
    given: Any = node.args[1:2]
    return (pair, list(given[0])) if given and given[0] and sizes(pair) else None


def logsumexp_of_one(node: fx.Node) -> fx.Node | None:
    """log(exp(x - m)) + m  ->  x, where m is x, but 0 for an infinite x: logsumexp over a dim of size one.

    The sum of one was left out before. Proof: exp(0) is 1, log(1) is 0 and 0 + x is x; for infinities log(exp(x))
    is x; NaN stays.
    """
    if node.target is not aten.add.Tensor or node.kwargs or sizes(node) is None:
        return None
    log, most = node.args
    most = _unshaped(most)
    x = _finite_or_zero(most)
    if x is None or prod(sizes(x) or ()) != prod(sizes(node) or ()) or not may_be_aliased(node):
        return None
    for target in (aten.log.default, aten.exp.default):
        log = _unshaped(log)
        if not isinstance(log, fx.Node) or log.target is not target:
            return None
        log = log.args[0]
    is_shifted = isinstance(log, fx.Node) and log.target is aten.sub.Tensor and not log.kwargs
    return Maker(node).like(x, node) if is_shifted and log.args == (x, most) else None  # type: ignore[union-attr]


def _unshaped(node: Any) -> Any:
    """What it is another shape of."""
    while isinstance(node, fx.Node) and node.target in (aten.reshape.default, aten.squeeze.dims):
        node = node.args[0]
    return node


def _finite_or_zero(node: Any) -> fx.Node | None:
    """Of where(|x| == inf, 0, x): x."""
    if not isinstance(node, fx.Node) or node.target is not aten.where.self:
        return None
    mask, zero, x = node.args
    if constant_of(zero) != 0 or not isinstance(mask, fx.Node) or mask.target is not aten.eq.Scalar:
        return None
    size, most = mask.args
    is_size = isinstance(size, fx.Node) and size.target is aten.abs.default and size.args == (x,)
    return x if is_size and most == inf and isinstance(x, fx.Node) else None
