"""Factors and shifts of a product's columns, or a convolution's channels, put into its weight and bias."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._inductor import inductor_prims

from cudal1_fx_passes.algebra.nodes import (
    FLOATS,
    Maker,
    aten,
    constant_of,
    is_only,
    keeps_columns,
    prims,
    sizes,
    value,
)

LEAST = 1 << 16  # elements of the result, below which nothing is won
LESS = 16  # times as many as the weight has, at least
_MULTIPLIES = (aten.mul.Tensor, aten.div.Tensor)
_LINKS = (*_MULTIPLIES, aten.add.Tensor, aten.sub.Tensor)
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.convolution.default)
_VIEWS = (aten.reshape.default, aten.permute.default, aten.expand.default)
_POOLING = inductor_prims._low_memory_max_pool_with_offsets
# what reads a result from memory, whatever came before; Inductor's pooling does, too
_READERS = (*_PRODUCTS, aten.bmm.default, _POOLING, aten.avg_pool2d.default)


class Link(NamedTuple):
    """One operator behind the product: y op other. other: a number, or a value a channel."""

    target: Any
    other: fx.Node | float


def scale_into_weight(node: fx.Node) -> fx.Node | None:
    """(x w + b) s + t  ->  x (w s) + (b s + t), s and t a value a column: linear layer, BatchNorm in eval.

    Proof: the common factor s_n is taken into each term x_mk w_kn and b_n; t is added last in both.
    It leaves out one pass over the result, so it pays only where nothing else passes over it: where it is
    returned, or read by a product, a convolution or a pooling. On a GPU Inductor adds a convolution's bias in such
    a pass, hence a convolution has its factor put in only where nothing is added. A float16 might overflow.
    """
    if node.target not in (*_LINKS, prims.convert_element_type.default) or sizes(node) is None:
        return None
    source, links = behind_links(node)
    if source.kwargs or not is_only(source) or not scales(links):
        return None
    dtype = value(source).dtype
    if dtype == torch.float16 or value(node).dtype != dtype or not _is_read_whole(node):
        return None
    given: Any = source.args
    is_convolution = source.target is aten.convolution.default
    bias, x, weight = given[:3] if source.target is aten.addmm.default else (None, *given[:2])
    rest: Any = ()
    if is_convolution:
        bias, *rest = given[2:]
    if not _pays(node, weight, bias, is_convolution):
        return None
    adds = bias is not None or any(link.target in _LINKS[2:] for link in links)
    if is_convolution and ((adds and value(node).device.type != "cpu") or (rest[3] and rest[5] != 1)):
        return None
    make = Maker(node)
    factor, shift = folded(make, bias, links, _channels(source))
    weight = scaled(make, weight, factor, (1 if rest[3] else 0) if is_convolution else -1)
    if shift is not None and value(shift).dtype != dtype:
        shift = make(prims.convert_element_type.default, shift, dtype)
    if is_convolution:
        return make(source.target, x, weight, shift, *rest)
    part = make(aten.mm.default, x, weight) if shift is None else make(aten.addmm.default, shift, x, weight)
    return make.like(part, node)


def _pays(node: fx.Node, weight: Any, bias: Any, is_convolution: bool) -> bool:
    count, of_weight = prod(sizes(node) or ()), sizes(weight)
    if of_weight is None or (bias is not None and len(sizes(bias) or ()) != 1):
        return False
    if bias is not None and not is_convolution and sizes(bias) != of_weight[-1:]:
        return False
    return count >= LEAST and count >= LESS * prod(of_weight)


def _is_read_whole(node: fx.Node) -> bool:
    """Whether all that reads it, or a view of it, reads it from memory."""
    return all(
        user.op == "output" or user.target in _READERS or (user.target in _VIEWS and _is_read_whole(user))
        for user in node.users
    )


def _channels(source: fx.Node) -> int:
    return (sizes(source) or ())[1 if source.target is aten.convolution.default else -1]


def behind_links(node: fx.Node) -> tuple[fx.Node, list[Link]]:
    """Where the values come from, and what was done to them, the first first."""
    links: list[Link] = []
    while node.target not in _PRODUCTS and (not links or is_only(node)):
        source: Any = node.args[0] if node.args else None
        if _is_only_moved(node, source):
            links.insert(0, Link(node.target, 1.0))
        elif (pair := _link(node)) is not None:
            source = pair[0]
            links.insert(0, Link(node.target, pair[1]))
        else:
            break
        node = source
    return node, links if _fit(node, links) else []


def _is_only_moved(node: fx.Node, source: Any) -> bool:
    """A conversion between floats, or a reshape that leaves the columns."""
    if node.target is prims.convert_element_type.default:
        return value(source).dtype in FLOATS
    return node.target is aten.reshape.default and keeps_columns(node)


def _link(node: fx.Node) -> tuple[fx.Node, fx.Node | float] | None:
    """Of y op other: both, where `other` has fewer entries."""
    if node.target not in _LINKS or node.kwargs:
        return None
    swaps = node.target in (aten.mul.Tensor, aten.add.Tensor)
    for y, other in (node.args, node.args[::-1]) if swaps else (node.args,):
        if not isinstance(y, fx.Node) or sizes(y) != sizes(node):
            continue
        if (number := constant_of(other)) is not None:
            return y, number
        of_other = sizes(other)
        if isinstance(other, fx.Node) and of_other is not None and max(of_other, default=1) == prod(of_other):
            return y, other
    return None


def _fit(source: fx.Node, links: list[Link]) -> bool:
    """Whether each `other` has a value a channel: its only axis longer than one is the channels'."""
    is_convolution = source.target is aten.convolution.default
    if source.target not in _PRODUCTS or (is_convolution and any(k.target is aten.reshape.default for k in links)):
        return False
    axis = 1 - len(sizes(source) or ()) if is_convolution else -1
    vectors = [sizes(k.other) or () for k in links if isinstance(k.other, fx.Node)]
    return all(prod(v) == 1 or (len(v) >= -axis and v[axis] == prod(v) == _channels(source)) for v in vectors)


def scales(links: Sequence[Link]) -> bool:
    return any(link.target in _MULTIPLIES for link in links)


def scaled(make: Maker, weight: fx.Node, factor: fx.Node, dim: int) -> fx.Node:
    """A weight times a factor along one of its dims, in its own dtype."""
    sides = [1] * value(weight).dim()
    sides[dim] = -1
    return make.like(make(aten.mul.Tensor, make.wide(weight), make(aten.reshape.default, factor, sides)), weight)


def folded(make: Maker, bias: fx.Node | None, links: list[Link], count: int) -> tuple[fx.Node, fx.Node | None]:
    """The factor and the shift of all links, each a value a channel."""
    wide = torch.promote_types(value(make.before).dtype, torch.float32)
    factor = make.full(1.0, [count], wide)
    shift = None if bias is None else make.wide(bias)
    for target, other in links:
        if target not in _LINKS:
            continue
        if isinstance(other, fx.Node):
            other = make.wide(make(aten.reshape.default, other, [-1]))
        if target in _MULTIPLIES:
            factor = make(target, factor, other)
            shift = None if shift is None else make(target, shift, other)
        else:
            shift = make(target, make.full(0.0, [count], wide) if shift is None else shift, other)
    return factor, shift
