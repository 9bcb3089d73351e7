"""Tied values, which few tensors hold by chance: sorted rows, ramps, exact zeros, whole numbers, equal values.

with_ties(), masks() -> values of the case in which inputs of one kind share memory (make.as_one)
at_rest() -> other inputs at 0 or 1, so that what is computed from one is its own value
together() -> numbers in all inputs at once
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.extremes import PRODUCTS, summed_degree
from cudal1_compile.judge.inputs.lines import coordinate, lines, reduced_dims
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Input, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

_KINDS = 7
_WHOLE = 3000.0
_FACTORS = {"mul", "div", "pow"}
_APART = 4  # places from one at rest to the next


def with_ties(program: Program, item: Input, x: Tensor) -> Tensor:
    """Lines in turn: as they were, ramps, zeros, whole numbers, rising, falling, of sum zero; a lone one is zero.

    The first holds ones and zeros too: it is what shorter inputs share.
    """
    if x.dim() == 0:
        return x
    dims = reduced_dims(program, item)
    dim = dims[-1] if dims else x.dim() - 1
    line = lines(program, item, x) if dims else _rows(x)
    if line.numel() == 1 and all(set(reduced_dims(program, i)) == set(range(len(i.axes))) for i in program.inputs):
        return torch.zeros_like(x)
    rising = x.sort(dim).values
    whole = (x * _WHOLE ** (2 / max(2, summed_degree(program)))).round()
    even = (2.0 * x).round()
    ramp = coordinate(x, dim).expand_as(x).double()
    if any(op.fn in PRODUCTS for op in program.ops):  # of which no part may overflow before its zero is met
        ramp = ramp * (2.0 / x.shape[dim])
    x = torch.where(rests(x, 3), 0.0, torch.where(rests(x), 1.0, x))
    x = torch.where(rests(x, 2), _between_halves(program, x), x)
    kinds = (x, ramp, _zeros(program, x, dim, line), whole, rising, rising.flip(dim), even - even.flip(dim))
    for i, kind in enumerate(kinds[1:], 1):
        x = torch.where(line % _KINDS == i, kind, x)
    return x


def _zeros(program: Program, x: Tensor, dim: int, line: Tensor) -> Tensor:
    """Of both signs where the first of equals is asked for: they are equal."""
    if not any(op.fn in ("argmax", "argmin") for op in program.ops):
        return torch.zeros_like(x)
    return torch.where((coordinate(x, dim) + line // _KINDS) % 2 == 0, -0.0, torch.zeros_like(x))


def _between_halves(program: Program, x: Tensor) -> Tensor:
    """The same values, exactly between two numbers of the half type that the region computes in, if it does."""
    digits = {"bf16": 16, "f16": 13}
    found = [digits[op.dtype] for op in program.ops if op.dtype in digits]
    if not found:
        return x
    bits = x.float().view(torch.int32)
    return ((bits >> found[0] << found[0]) | (1 << (found[0] - 1))).view(torch.float32).double()


def masks(shape: list[int], device: torch.device) -> Tensor:
    """Rows in turn: every second element, the first half, all up to the row's number, the others of the first."""
    if not shape:
        return torch.ones(shape, dtype=torch.bool, device=device)
    x = torch.empty(shape, device=device)
    row, place = _rows(x), coordinate(x, x.dim() - 1).expand_as(x)
    kinds = (place % 2 == 0, place < shape[-1] // 2, place <= row, place % 2 == 1)
    return torch.where(row % 4 < 2, torch.where(row % 4 == 0, *kinds[:2]), torch.where(row % 4 == 2, *kinds[2:]))


def _rows(x: Tensor) -> Tensor:
    rows = torch.arange(x.shape[:-1].numel(), device=x.device)
    return rows.reshape([*x.shape[:-1], 1])


def rests(x: Tensor, first: int = 1) -> Tensor:
    """True at the places at rest, which agree for inputs that share their last axis."""
    place = coordinate(x, x.dim() - 1) if x.dim() else torch.zeros([], device=x.device)
    return (place % _APART == min(first, place.numel() - 1)).expand_as(x)


def at_rest(program: Program, item: Input, x: Tensor) -> Tensor:
    """Zeros or ones, as its first reader asks for, at the places at rest of all but the largest float input.

    Also at the first place: what begins with the numbers that change nothing need not go on so.
    """
    still = rests(x) | (coordinate(x, x.dim() - 1) == 0) if x.dim() else rests(x)
    return x if _is_largest(program, item) else torch.where(still, _neutral(program, item.name), x)


def together(program: Program, item: Input, x: Tensor, numbers: Sequence[float]) -> Tensor:
    """Each pair of the numbers, of either sign, in the largest input and another, at one place in four."""
    values = torch.tensor([s * v for v in numbers for s in (1, -1)], device=x.device, dtype=torch.float64)
    place = (
        coordinate(x, x.dim() - 1) // _APART if x.dim() else torch.zeros([], dtype=torch.int64, device=x.device)
    )
    turn = place + place // len(values) + _rows(x) if _is_largest(program, item) and x.dim() else place
    return torch.where(rests(x, 3), values[turn % len(values)].expand_as(x), x)


def _is_largest(program: Program, item: Input) -> bool:
    """Of the float inputs."""
    floats = [i for i in program.inputs if i.dtype in FLOAT_DTYPES]
    return item == max(floats, key=lambda i: program.size(i.axes))


def _neutral(program: Program, name: str) -> float:
    for op in program.ops:
        if any(isinstance(o, Ref) and o.name == name for o in op.operands):
            if op.fn != "cast":
                return 1.0 if op.fn in _FACTORS or OPS[op.fn].kind is Kind.DOT else 0.0
            name = op.name
    return 0.0
