"""Lines: all elements of an input that share their place along the axes that nothing reduces.

lines(program, item, x) -> each element's line, by number; kinds of value go by these numbers
"nonfinite from line 3" -> the same kinds from another number on, for programs with fewer lines than kinds
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from cudal1_fx_passes.program.ir import Input, Program

FROM = " from line "
FIRST_LINE: ContextVar[int] = ContextVar("the number of the first line", default=0)


def base_of(distribution: str) -> str:
    """Its name without the line that it begins with."""
    return distribution.partition(FROM)[0]


@contextmanager
def first_line(distribution: str) -> Iterator[None]:
    """In it lines are numbered from the one that the name of the distribution says: kinds go by these numbers."""
    token = FIRST_LINE.set(int(distribution.partition(FROM)[2] or 0))
    try:
        yield
    finally:
        FIRST_LINE.reset(token)


def reduced_dims(program: Program, item: Input) -> list[int]:
    """Dims of an input along which its lines run."""
    return [d for d, axis in enumerate(item.axes) if axis in program.reduced_axes]


def lines(program: Program, item: Input, x: Tensor) -> Tensor:
    """The number of each element's line, of size one along reduced dims."""
    dims = reduced_dims(program, item)
    shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
    return FIRST_LINE.get() + torch.arange(math.prod(shape), device=x.device).reshape(shape)


def one_a_line(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """True at one place of each line: a random one, in every second line one of the last third."""
    score = torch.rand(x.shape, generator=generator, device=x.device)
    late = place_along(program, item, x) >= 2 / 3
    score = score + late * (lines(program, item, x) % 2)
    return score == score.amax(reduced_dims(program, item), keepdim=True)


def from_start(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """True from the first element of each line to a random one."""
    cut = torch.rand(lines(program, item, x).shape, generator=generator, device=x.device)
    return place_along(program, item, x) <= cut * (1 - 1 / x.shape[reduced_dims(program, item)[-1]])


def place_along(program: Program, item: Input, x: Tensor) -> Tensor:
    """The place along the last reduced dim, from 0 to 1."""
    dim = reduced_dims(program, item)[-1]
    return coordinate(x, dim) / x.shape[dim]


def coordinate(x: Tensor, dim: int) -> Tensor:
    """The place along a dim, from 0, of size one along the others."""
    return torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.dim())])
