"""Products with a diagonal matrix."""

from __future__ import annotations

from typing import Any

from torch import fx

from cudal1_fx_passes.algebra.masks import counted
from cudal1_fx_passes.algebra.nodes import Maker, aten, constant_of, sizes, value


def product_of_diagonal(node: fx.Node) -> fx.Node | None:
    """diag(s) b  ->  s_m b_mn, and a diag(s)  ->  a_mn s_n.

    Proof: all other terms have a factor 0; they are 0, or NaN where the other factor is not finite, and so is the
    sum of 0 times a column of b (a row of a), which is added.
    """
    if node.target is not aten.mm.default or node.kwargs:
        return None
    given: Any = node.args
    a, b = given
    if sizes(a) is None or sizes(b) is None:
        return None
    make = Maker(node)
    if (entries := _diagonal(a)) is not None:
        column = make(aten.reshape.default, entries, [-1, 1])
        return make.unless_finite(make(aten.mul.Tensor, column, b), b, 0)
    if (entries := _diagonal(b)) is not None:
        row = make(aten.reshape.default, entries, [1, -1])
        return make.unless_finite(make(aten.mul.Tensor, a, row), a, 1)
    return None


def _diagonal(node: Any) -> fx.Node | None:
    """Of where(row == column, s, 0), as torch.diag and torch.diag_embed are written out: s, a value a column."""
    if node.target is not aten.where.self:
        return None
    mask, entries, rest = node.args
    n = value(node).shape[0]
    if mask.target is aten.reshape.default:  # to its own shape
        mask = mask.args[0]
    if mask.target is not aten.eq.Tensor or value(node).shape != (n, n) or value(entries).numel() != n:
        return None
    if value(entries).dtype != value(node).dtype or constant_of(rest) != 0:
        return None
    sides = [counted(side, n) for side in mask.args]
    by_column = value(entries).shape[-1] == n
    return entries if sorted(sides) == ["column", "row"] and by_column else None
