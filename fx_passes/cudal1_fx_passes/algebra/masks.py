"""Masks over the entries of matrices, as Inductor writes out torch.diag, torch.tril and torch.triu."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from cudal1_fx_passes.algebra.nodes import aten, constant_of, prims, sizes, value

_LOWER = {aten.le.Scalar: 0, aten.lt.Scalar: -1}  # what the diagonal is then more than the number
_UPPER = {aten.ge.Scalar: 0, aten.gt.Scalar: 1}


class Triangle(NamedTuple):
    """Where a matrix may differ from 0: column - row <= diagonal, or >= for an upper one."""

    is_lower: bool
    diagonal: int

    def columns(self, first: int, last: int, count: int) -> tuple[int, int]:
        """Outside these, of `count`, the rows from `first` to before `last` are 0."""
        if self.is_lower:
            return 0, min(count, max(0, last + self.diagonal))
        return min(count, max(0, first + self.diagonal)), count

    def transposed(self) -> Triangle:
        return Triangle(not self.is_lower, -self.diagonal)


def keeps_matrices(node: fx.Node) -> bool:
    """Whether only the dims before the last two change."""
    if node.target not in (aten.expand.default, aten.reshape.default):
        return False
    old, new = sizes(node.args[0]) or (), sizes(node) or ()
    return len(old) > 1 and old[-2:] == new[-2:]


def triangle(node: object) -> Triangle | None:
    """Of where(column - row <= diagonal, x, 0), and of a batch of these."""
    if not isinstance(node, fx.Node) or (shape := sizes(node)) is None or len(shape) < 2:
        return None
    if keeps_matrices(node):
        return triangle(node.args[0])
    if node.target is not aten.where.self:
        return None
    mask, x, rest = node.args
    if constant_of(rest) != 0 or sizes(x) != shape or value(x).dtype != value(node).dtype:  # type: ignore[arg-type]
        return None
    return _triangle_of_mask(mask, shape[-2:])


def _triangle_of_mask(mask: Any, shape: tuple[int, ...]) -> Triangle | None:
    if not isinstance(mask, fx.Node) or mask.target not in _LOWER | _UPPER or value(mask).shape != shape:
        return None
    difference, diagonal = mask.args
    if not isinstance(difference, fx.Node) or difference.target is not aten.sub.Tensor or difference.kwargs:
        return None
    column, row = difference.args
    if type(diagonal) is not int or counted(column, shape[1]) != "column" or counted(row, shape[0]) != "row":
        return None
    return Triangle(mask.target in _LOWER, diagonal + (_LOWER | _UPPER)[mask.target])


def counted(node: Any, n: int) -> str:
    """Whether it is the number of each entry's row or of its column; empty for neither."""
    dim = "column"
    if isinstance(node, fx.Node) and node.target is aten.unsqueeze.default:
        node, at = node.args
        dim = "row" if at in (-1, 1) else "column" if at in (-2, 0) else ""
    if not isinstance(node, fx.Node) or node.target is not prims.iota.default:
        return ""
    is_whole = node.args == (n,) and node.kwargs == node.kwargs | {"start": 0, "step": 1, "dtype": torch.int64}
    return dim if is_whole else ""
