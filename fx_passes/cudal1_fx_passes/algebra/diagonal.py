"""Products with a diagonal matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from cudal1_fx_passes.algebra.nodes import Maker, aten, prims, sizes, value


def product_of_diagonal(node: fx.Node) -> fx.Node | None:
    """diag(s) b  ->  s_m b_mn, and a diag(s)  ->  a_mn s_n.

    Proof: all other terms have a factor 0, which gives 0 for finite factors.
    """
    if node.target is not aten.mm.default or node.kwargs:
        return None
    a, b = node.args
    if sizes(a) is None or sizes(b) is None:
        return None
    make = Maker(node)
    if (entries := _diagonal(a)) is not None:
        column = make(aten.reshape.default, entries, [-1, 1])
        return make(aten.mul.Tensor, column, b)
    if (entries := _diagonal(b)) is not None:
        return make(aten.mul.Tensor, a, make(aten.reshape.default, entries, [1, -1]))
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
    if value(entries).dtype != value(node).dtype or not _is_zero(rest):
        return None
    sides = [_counted(side, n) for side in mask.args]
    by_column = value(entries).shape[-1] == n
    return entries if sorted(sides) == ["column", "row"] and by_column else None


def _is_zero(node: fx.Node) -> bool:
    number = node.args[1] if node.target is aten.full.default else node.args[0]
    return node.target in (aten.full.default, aten.scalar_tensor.default) and number in (0, 0.0)


def _counted(node: Any, n: int) -> str:
    """Whether it is the number of each entry's row or of its column; empty for neither."""
    dim = "column"
    if isinstance(node, fx.Node) and node.target is aten.unsqueeze.default:
        node, at = node.args
        dim = "row" if at in (-1, 1) else "column" if at in (-2, 0) else ""
    if not isinstance(node, fx.Node) or node.target is not prims.iota.default:
        return ""
    is_whole = node.args == (n,) and node.kwargs == node.kwargs | {"start": 0, "step": 1, "dtype": torch.int64}
    return dim if is_whole else ""
