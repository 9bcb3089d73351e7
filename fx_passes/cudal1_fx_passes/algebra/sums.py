"""Sums of products without the product."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import fx

from cudal1_fx_passes.algebra.nodes import (
    Factors,
    Maker,
    aten,
    is_only,
    keeps_columns,
    number_of,
    reduction,
    sizes,
    value,
)

LEAST = 1 << 16  # multiplications, below which nothing is won
LESS = 4  # times as many multiplications are left out, at least


def sum_of_product(node: fx.Node) -> fx.Node | None:
    """sum_n v_n (sum_k a_mk b_kn + c_n)  ->  sum_k a_mk (sum_n v_n b_kn) + sum_n v_n c_n; over m likewise.

    Proof: both sum the terms v_n a_mk b_kn and v_n c_n; the common factor a_mk (b_kn over m) is taken out.
    An a_mk that is not finite makes its term so, and a b_kn makes the inner sum so, hence each term of its k.
    """
    found = reduction(node)
    if found is None:
        return None
    source, factors, is_reshaped = _behind_factors(found.source)
    if source.target not in (aten.mm.default, aten.addmm.default, aten.bmm.default) or source.kwargs:
        return None
    if not is_only(source):
        return None
    given: Any = source.args
    bias, (a, b) = (given[0], given[1:]) if source.target is aten.addmm.default else (None, given)
    shape, of_a = sizes(source), sizes(a)
    if shape is None or of_a is None or sizes(b) is None:
        return None
    rank, (m, n), k = len(shape), shape[-2:], of_a[-1]
    if is_reshaped:  # rows are not these rows any more
        if found.dims != (len(sizes(found.source) or ()) - 1,):
            return None
        dims = {rank - 1}
    else:
        dims = set(found.dims)
    by_rows, by_columns = rank - 2 in dims, rank - 1 in dims
    left_out = n if by_columns else m if by_rows else 0
    if left_out < LESS or prod(shape) * k < LEAST or (bias is not None and sizes(bias) != (n,)):
        return None
    if factors.vector is not None and not by_columns:
        return None
    make = Maker(node)
    a, b = make.wide(a), make.wide(b)
    vector = factors.vector
    if vector is not None:
        b = make(aten.mul.Tensor, b, vector)
        bias = make(aten.mul.Tensor, bias, make(aten.reshape.default, vector, [n])) if bias is not None else None
    if by_columns:
        rows = make.sum(a, -2) if by_rows else a
        part = make.sum(make(aten.mul.Tensor, rows, make.swapped(make.sum(b, -1))), -1)
    else:
        part = make.sum(make(aten.mul.Tensor, make.swapped(make.sum(a, -2)), b), -2)
    if bias is not None:
        added = make.sum(bias, 0) if by_columns else make.wide(bias)
        part = make(aten.add.Tensor, part, make.scaled(added, float(m if by_rows else 1)))
    for dim in sorted(dims - {rank - 1, rank - 2}):
        part = make.sum(part, dim)
    count = prod([(sizes(found.source) or ())[d] for d in found.dims]) if found.is_mean else 1
    return make.like(make.scaled(part, factors.number / count), node)


def _behind_factors(node: fx.Node) -> tuple[fx.Node, Factors, bool]:
    """Where the sum's terms come from, what they were multiplied by, whether their rows were reshaped."""
    number, vector, is_reshaped = 1.0, None, False
    while is_only(node):
        if (scaled := number_of(node)) is not None:
            node, number = scaled[0], number * scaled[1]
        elif node.target is aten.reshape.default and keeps_columns(node):
            node, is_reshaped = node.args[0], True  # type: ignore[assignment]
        elif vector is None and node.target is aten.mul.Tensor and (pair := _vector_of(node)) is not None:
            node, vector = pair
        else:
            break
    return node, Factors(number, vector), is_reshaped


def _vector_of(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Of a matrix times a vector of its columns: both."""
    shape = sizes(node) or ()
    for a, b in (node.args, node.args[::-1]) if len(node.args) == 2 and not node.kwargs else ():
        other = sizes(b)
        if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or sizes(a) != shape or other is None:
            continue
        same = value(a).dtype == value(b).dtype == value(node).dtype
        if same and len(other) <= len(shape) and other[-1:] == shape[-1:] == (prod(other),):
            return a, b
    return None


def product_of_equals(node: fx.Node) -> fx.Node | None:
    """a_mk = s_m for all k: sum_k a_mk b_kn  ->  s_m (sum_k b_kn); a_mk = s_k for all m: one row for all.

    Likewise for b. Gradients of sums are such operands. Proof: the common factor s_m is taken out; equal rows have
    equal products.
    """
    if node.target not in (aten.mm.default, aten.bmm.default) or node.kwargs:
        return None
    a, b = node.args
    shape, of_a = sizes(node), sizes(a)
    if not isinstance(a, fx.Node) or not isinstance(b, fx.Node) or shape is None or of_a is None:
        return None
    if sizes(b) is None or prod(shape) * of_a[-1] < LEAST:
        return None
    make, (m, n), k = Maker(node), shape[-2:], of_a[-1]
    if k >= LESS and _is_repeated(a, -1):
        return make.like(make(aten.mul.Tensor, _one(make, a, -1), make.sum(b, -2)), node)
    if k >= LESS and _is_repeated(b, -2):
        return make.like(make(aten.mul.Tensor, make.sum(a, -1), _one(make, b, -2)), node)
    if m >= LESS and _is_repeated(a, -2):
        return make(aten.expand.default, make(node.target, _one(make, a, -2), b), list(shape))
    if n >= LESS and _is_repeated(b, -1):
        return make(aten.expand.default, make(node.target, a, _one(make, b, -1)), list(shape))
    return None


def _is_repeated(node: fx.Node, dim: int) -> bool:
    """Whether all entries along a dim are one and the same in memory."""
    return value(node).stride(dim) == 0 and value(node).shape[dim] > 1


def _one(make: Maker, node: fx.Node, dim: int) -> fx.Node:
    return make(aten.slice.Tensor, node, dim, 0, 1)


def chain_of_products(node: fx.Node) -> fx.Node | None:
    """(a b) c  ->  a (b c), and back, whichever takes half as many multiplications, or fewer.

    Proof: both are the sums of a_ij b_jk c_kl over j and k.
    """
    if node.target is not aten.mm.default or node.kwargs:
        return None
    left, right = node.args
    for inner, is_left in ((left, True), (right, False)):
        if not isinstance(inner, fx.Node) or inner.target is not aten.mm.default or inner.kwargs:
            continue
        if not is_only(inner) or value(inner).dtype == torch.float16:  # b c may overflow where a b does not
            continue
        parts: Any = (*inner.args, right) if is_left else (left, *inner.args)
        shapes = [s for part in parts if (s := sizes(part)) is not None]
        if len(shapes) < 3:
            continue
        (m, k), (_, p), (_, n) = shapes
        by_left, by_right = m * k * p + m * p * n, k * p * n + m * k * n
        old, new = (by_left, by_right) if is_left else (by_right, by_left)
        if 2 * new > old or old - new < LEAST:
            continue
        make, (a, b, c) = Maker(node), parts
        if is_left:
            return make(aten.mm.default, a, make(aten.mm.default, b, c))
        return make(aten.mm.default, make(aten.mm.default, a, b), c)
    return None
