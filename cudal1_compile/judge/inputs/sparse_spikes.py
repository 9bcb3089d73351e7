"""Sparse spikes: inputs of which one element alone decides, the last, so that a search without its tail is seen.

    program + inputs of other cases -> sparse_spikes() -> the same along the searched axes but for the last place

Of what any(), all(), a maximum or its place is looked for in, the best element of a row is put last and the worst
one everywhere before it: whatever an element is computed of is moved along all inputs alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from cudal1_fx_passes.program.evaluate import run_values
from cudal1_fx_passes.program.ir import Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

BASES = ("edges", "integers", "normal", "nonfinite")  # distributions whose inputs are moved
_LARGEST = ("any", "amax", "argmax")
_SMALLEST = ("all", "amin", "argmin")
_RELATIVE = {"exp", "exp2", "logsumexp"}  # to an extreme, of which what is left out is not missed
_EACH = 2  # cases of one search


def sparse_spikes(program: Program, bases: Sequence[Sequence[Tensor]]) -> Iterator[list[Tensor]]:
    """Dense inputs, dims in memory order; none where nothing is looked for."""
    for op in _searches(program):
        made = (_one_at_end(program, op, inputs) for inputs in bases)
        yield from islice((inputs for inputs in made if inputs is not None), _EACH)


def _searches(program: Program) -> list[Op]:
    """Those over axes along which every value is computed alike, wherever it lies."""
    tied: set[str] = set()
    for op in program.ops:
        if OPS[op.fn].kind in (Kind.IOTA, Kind.SCAN):
            tied |= set(op.over)
        for x in op.operands:
            for axis, index in x.access if isinstance(x, Ref) else ():
                tied |= {axis, *(a for _, a in index.terms)}
    searched = {*_LARGEST, *_SMALLEST}
    if any(op.fn in _RELATIVE for op in program.ops):
        searched -= {"amax", "amin"}
    return [op for op in program.ops if op.fn in searched and not tied & set(op.over)]


def _one_at_end(program: Program, op: Op, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """None where no element of any row is better than another, or it does not decide alone once it is moved."""
    rows, shape = _ranked(program, op, inputs)
    apart = (rows.amax(1) > rows.amin(1)).nonzero()[:, 0].tolist() if rows.numel() else []
    if not apart:
        return None
    row = apart[len(apart) // 2]
    grid = rows[row].reshape(shape)
    last = torch.unravel_index(grid.argmax(), shape)
    worse = _beside(grid, last)
    if not bool(worse.any()):
        return None
    others = torch.unravel_index(torch.where(worse, grid, torch.inf).argmin(), shape)
    made = list(inputs)
    for axis, at, other in zip(_in_order(program, op), last, others, strict=True):
        for n, item in enumerate(program.inputs):
            if axis in item.axes:
                dim = item.axes.index(axis)
                places = other.repeat(made[n].shape[dim])
                places[-1] = at
                made[n] = made[n].index_select(dim, places)
    moved = _ranked(program, op, made)[0][row]
    return made if moved.numel() > 1 and bool((moved[-1] > moved[:-1]).all()) else None


def _beside(grid: Tensor, best: Sequence[Tensor]) -> Tensor:
    """Which elements are worse than the best one and meet it in none as good, on either axis."""
    top = grid[tuple(best)]
    found = grid < top
    for dim in range(grid.dim()):
        line = grid[tuple(slice(None) if d == dim else at for d, at in enumerate(best))]
        found = found & (line < top).reshape([-1 if d == dim else 1 for d in range(grid.dim())])
    return found


def _ranked(program: Program, op: Op, inputs: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
    """What is looked through, a search a row, the best the largest; and the sizes of the axes looked through."""
    source = op.operands[0]
    assert isinstance(source, Ref)
    axes, over = program.value_axes[source.name], _in_order(program, op)
    x = run_values(program, inputs)[source.name].double()
    missing = [a for a in over if a not in axes]
    x = x[(..., *[None] * len(missing))]
    axes = (*axes, *missing)
    x = x.permute([*(d for d, a in enumerate(axes) if a not in over), *(axes.index(a) for a in over)])
    shape = list(x.shape[x.dim() - len(over) :])
    ranked = (x if op.fn in _LARGEST else -x).nan_to_num(torch.inf, torch.inf, -torch.inf)
    return ranked.reshape(-1, max(1, torch.Size(shape).numel())), shape


def _in_order(program: Program, op: Op) -> list[str]:
    return [a.name for a in program.axes if a.name in op.over]
