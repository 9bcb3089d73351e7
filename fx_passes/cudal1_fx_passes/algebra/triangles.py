"""Products of triangular matrices, in panels that leave out most of what is zero or not kept."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx

from cudal1_fx_passes.algebra.masks import Triangle, keeps_matrices, triangle
from cudal1_fx_passes.algebra.nodes import Maker, aten, is_only, prims, sizes, value

LEAST_PANEL = 1 << 21  # elements, below which it does not keep a large GPU busy: about 132 tiles
MOST_PANELS = 8
LEAST_SIDE, LEAST_SIDE_OF_HALVES = 1024, 8192  # of all three sizes; 0.73x at 4096 of bfloat16
LEAST_MIRRORED = 4096  # of all three sizes; never for halves, whose products take no longer than the copies
SAVED = 0.3  # of the multiplications, at least


class Block(NamedTuple):
    """A block of the result, from the first to before the last, and the terms that it sums."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    terms: tuple[int, int]


def product_of_triangles(node: fx.Node) -> fx.Node | None:
    """tril(a) b  ->  a panel of rows at a time, up to the last column where tril(a) is not 0.

    Of b, if it is triangular too, and of a result of which a triangle is read, only those columns are computed
    that may differ from 0 or are read. a tril(b) goes by panels of columns. Upper ones likewise, any diagonal.
    Proof: the terms left out have a factor 0; they are 0, or NaN where the other factor is not finite. So is the
    sum of 0 times a row of a, or a column of b, which is added. It spoils no finite result: no product with an
    entry that is not finite is. The results left out are sums of such terms alone, or are not read.
    """
    if node.target not in (aten.mm.default, aten.bmm.default) or node.kwargs:
        return None
    a, b = node.args
    left, right = triangle(a), triangle(b)
    return _in_panels(node, left, right, _kept(node)) if left or right else None


def kept_half_of_product(node: fx.Node) -> fx.Node | None:
    """tril(a b)  ->  tril of panels of a b that end at the last column that is read.

    Proof: what is not computed was replaced by 0, whatever it was.
    """
    if node.target not in (aten.mm.default, aten.bmm.default) or node.kwargs or (kept := _kept(node)) is None:
        return None
    return _in_panels(node, None, None, kept)


def product_with_own_transpose(node: fx.Node) -> fx.Node | None:
    """a a^T  ->  panels of its lower half, mirrored; a^T a likewise.

    Proof: the terms a_mk a_nk and a_nk a_mk are the same. It writes the result twice and reads it twice, at 4 TB/s
    60 us of the 2700 that 4096 rows of 4096 float32 take at 50 TFLOPS, and leaves out 44% of these.
    """
    if node.target is not aten.mm.default or node.kwargs or not _is_mirrored(*node.args):
        return None
    given: Any = node.args
    if _is_half(node) or min(sizes(given[0]) or (0,)) < LEAST_MIRRORED:
        return None
    lower = _in_panels(node, None, None, Triangle(True, 0))
    if lower is None:
        return None
    make, n = Maker(node), value(node).shape[0]
    named = {"start": 0, "step": 1, "dtype": torch.int64, "device": value(node).device, "requires_grad": False}
    column = make(prims.iota.default, n, **named)
    below = make(aten.le.Tensor, column, make(aten.unsqueeze.default, column, -1))
    return make(aten.where.self, below, lower, make.swapped(lower))


def _is_mirrored(a: Any, b: Any) -> bool:
    """Whether one is the other's transpose."""
    return any(
        isinstance(y, fx.Node) and y.target is aten.permute.default and y.args == (x, [1, 0]) and sizes(x)
        for x, y in ((a, b), (b, a))
    )


def _kept(node: fx.Node) -> Triangle | None:
    """The triangle of a product that is read."""
    user = next(iter(node.users))
    if not is_only(node) or user.op != "call_function":
        return None
    if keeps_matrices(user):
        return _kept(user)
    return triangle(user) if user.args[1:2] == (node,) else None


def _in_panels(node: fx.Node, a: Triangle | None, b: Triangle | None, kept: Triangle | None) -> fx.Node | None:
    given: Any = node.args
    shape, of_a = sizes(node), sizes(given[0])
    if shape is None or of_a is None or sizes(given[1]) is None:
        return None
    if min(shape[-2:] + of_a[-1:]) < (LEAST_SIDE_OF_HALVES if _is_half(node) else LEAST_SIDE):
        return None
    m, n, k = *shape[-2:], of_a[-1]
    count = max(1, min(MOST_PANELS, prod(shape) // LEAST_PANEL))
    is_by_rows = a is not None or kept is not None
    if is_by_rows:
        blocks = [_of_rows(rows, n, k, a, b, kept) for rows in _panels(m, count)]
    else:
        assert b is not None
        turned = b.transposed()
        blocks = [Block((0, m), columns, turned.columns(*columns, k)) for columns in _panels(n, count)]
    done = sum(prod(last - first for first, last in block) for block in blocks)
    if done > (1 - SAVED) * m * n * k or any(first >= last for block in blocks for first, last in block):
        return None
    make = Maker(node)
    parts = [_block(make, node, block, (m, n)) for block in blocks]
    result = make(aten.cat.default, parts, len(shape) - (2 if is_by_rows else 1))
    result = make.unless_finite(result, given[1], -2) if a else result
    return make.unless_finite(result, given[0], -1) if b else result


def _is_half(node: fx.Node) -> bool:
    return value(node).dtype.itemsize == 2


def _panels(size: int, count: int) -> list[tuple[int, int]]:
    return list(pairwise(size * i // count for i in range(count + 1)))


def _of_rows(
    rows: tuple[int, int], n: int, k: int, a: Triangle | None, b: Triangle | None, kept: Triangle | None
) -> Block:
    terms = a.columns(*rows, k) if a else (0, k)
    first, last = b.columns(*terms, n) if b else (0, n)
    if kept:
        least, most = kept.columns(*rows, n)
        first, last = max(first, least), min(last, most)
    return Block(rows, (first, last), terms)


def _block(make: Maker, node: fx.Node, block: Block, shape: tuple[int, int]) -> fx.Node:
    """The product of the block, with zeros beside it."""
    a, b = node.args
    rank = len(sizes(node) or ())
    left = _cut(make, _cut(make, a, rank - 2, block.rows), rank - 1, block.terms)
    right = _cut(make, _cut(make, b, rank - 2, block.terms), rank - 1, block.columns)
    part = make(node.target, left, right)
    before, behind = block.columns[0], shape[1] - block.columns[1]
    if block.rows == (0, shape[0]):  # a panel of columns
        return part
    return make(aten.constant_pad_nd.default, part, [before, behind], 0.0) if before or behind else part


def _cut(make: Maker, node: Any, dim: int, part: tuple[int, int]) -> fx.Node:
    return make(aten.slice.Tensor, node, dim, *part) if part != (0, (sizes(node) or ())[dim]) else node
