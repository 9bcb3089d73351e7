"""Values of integer and bool inputs; make.py tells what each distribution uncovers.

integers() -> within an input's domain, inside of what it indexes, at what it is compared with, or of any size
booleans() -> masks of which lines hold no element, all of them, or one
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.extremes import MAGNITUDES, ZEROS
from cudal1_compile.judge.inputs.floats import MIXED, block_mask
from cudal1_compile.judge.inputs.indices import (
    IndexRange,
    compared_axes,
    compared_literals,
    index_range,
    markers,
    reads_inside,
)
from cudal1_compile.judge.inputs.lines import lines, one_a_line, reduced_dims
from cudal1_compile.judge.inputs.names import TIED_VALUES
from cudal1_compile.judge.inputs.sizes import OWN_SIZES
from cudal1_compile.judge.inputs.tied_values import masks
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import ANY, INT_DTYPES, Input, Program

FEW_INTEGERS = ("integers", "offset")  # of which equal ones are often met, whatever the domain
_FAR = 1 << 20  # an integer that nothing but the literal itself is near
# bits of large integers: beyond the exact ones of f64 and f32
_WIDE_BITS = {"i64": 54, "i32": 26, "i16": 15, "i8": 7}  # of narrow ones all
_FEWER_BITS = 14  # of every second large one: no double's, but a float's


def booleans(
    program: Program, item: Input, shape: list[int], distribution: str, generator: torch.Generator
) -> Tensor:
    if distribution == TIED_VALUES:
        return masks(shape, generator.device)
    share = {"blocks": 0.04, "heavy": 0.95, "scaled": 0.75}.get(distribution, 0.5)
    x = torch.rand(shape, generator=generator, device=generator.device) < share
    rows = x.view(-1, shape[-1]) if len(shape) > 1 else x.new_empty([0, 1])
    if distribution == MIXED:
        rows[2::3] = masks(list(rows.shape), generator.device)[2::3]
    if reduced_dims(program, item):
        return _of_few(program, item, x, distribution, generator)
    if distribution in ("edges", MIXED):
        rows[:1], rows[1:2] = False, True  # a mask may be all that or all this
    return x


def integers(
    program: Program,
    item: Input,
    shape: list[int],
    extent: Mapping[str, int],
    distribution: str,
    generator: torch.Generator,
) -> Tensor:
    bounds = integer_bounds(program, item, extent)
    lo, hi = bounds.lo, bounds.hi
    if distribution in FEW_INTEGERS:
        lo = max(lo, min(0, hi))
        hi = min(hi, lo + 4)
    x = torch.randint(lo, hi + 1, shape, generator=generator, device=generator.device)
    if distribution == OWN_SIZES and x.numel():
        x.view(-1)[0] = hi  # of a long axis few others are that large
    if distribution == ZEROS and (ignored := markers(program, item.name)):
        return torch.full_like(x, ignored[0])
    if distribution == TIED_VALUES:
        return lo + torch.arange(x.numel(), device=x.device).reshape(shape) % (hi - lo + 1)
    if distribution in ("edges", "heavy", MIXED) and x.numel() and (found := _met(program, item, extent)):
        marked = torch.rand(shape, generator=generator, device=generator.device) < 0.3
        marked.view(-1)[0] = True
        values = torch.tensor(found, device=generator.device)
        pick = torch.randint(len(found), shape, generator=generator, device=generator.device)
        return torch.where(marked, values[pick], x)
    if distribution == "edges":
        ends = torch.tensor([lo, hi], device=generator.device)
        pick = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        return torch.where(torch.rand(shape, generator=generator, device=generator.device) < 0.3, ends[pick], x)
    if distribution in (MAGNITUDES, MIXED):
        return _wide(program, item, x, extent, distribution, generator)
    if distribution == "blocks" and shape:
        first = torch.randint(lo, hi + 1, [1] * len(shape), generator=generator, device=generator.device)
        return torch.where(block_mask(shape, generator), x, first)
    return x


def _wide(
    program: Program,
    item: Input,
    x: Tensor,
    extent: Mapping[str, int],
    distribution: str,
    generator: torch.Generator,
) -> Tensor:
    """Integers of any size, as far as they may be; some lines need all of their dtype to be summed up."""
    bounds = integer_bounds(program, item, extent)
    if bounds.lo_open or bounds.hi_open:
        x = _wide_integers(item.dtype, list(x.shape), generator)
    if bounds.is_open and not _may_trap(program) and index_range(program, item.name, extent) is None:
        x = _at_limits(item, x, generator)
    if bounds.is_open:
        x = _of_one_sign(program, item, x, distribution)
    elif bounds.lo_open or bounds.hi_open:
        x = bounds.lo + x.abs() if bounds.hi_open else bounds.hi - x.abs()
    elif item.dtype == "u8":
        x = _at_ends_of_range(program, item, x)
    limits = torch.iinfo(TORCH_DTYPE[item.dtype])
    return x.clamp(limits.min, limits.max)


def _may_trap(program: Program) -> bool:
    """Whether integers are divided: the least of them by -1 ends a process."""
    divided = (op for op in program.ops if op.fn in ("div", "fmod", "remainder"))
    return any(op.dtype in INT_DTYPES for op in divided)


def _at_limits(item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """A quarter at or near the ends of the dtype: sentinels, and differences that do not fit into it.

    Those of narrower ones are such ends of i64 too.
    """
    if item.dtype not in ("i64", "i32"):
        return x
    limits = torch.iinfo(TORCH_DTYPE[item.dtype])
    least, most = limits.min, limits.max
    found = [least, least + 1, most, most - 1, least // 2 - 5, most // 2 + 7]
    if item.dtype == "i64":  # also those of a half, by which a kernel may compare, or add up, half by half
        found += [side + d for side in (-(1 << 31), 1 << 31, 1 << 32) for d in (-1, 0, 3)]
    ends = torch.tensor(found, device=x.device)
    pick = torch.randint(len(ends), x.shape, generator=generator, device=x.device)
    at = torch.rand(x.shape, generator=generator, device=x.device) < 0.25
    return torch.where(at, ends[pick], x)


def _met(program: Program, item: Input, extent: Mapping[str, int]) -> list[int]:
    """Values that an integer input is compared with and those beside them, as far as they may be.

    Where the input indexes, also beyond what it is drawn from: what the region itself keeps out reads nothing.
    """
    found = markers(program, item.name)
    indexed = index_range(program, item.name, extent)
    limits = torch.iinfo(TORCH_DTYPE[item.dtype])
    met = {*found, *compared_literals(program, item.name)}
    met |= {at for axis in compared_axes(program, item.name) for at in (0, extent[axis] - 1)}
    beside = {v + d for v in met for d in (-1, 0, 1) if limits.min <= v + d <= limits.max}
    if item.domain != ANY:
        declared = _declared(program, item, extent)
        beside = {
            v for v in beside if (declared.lo_open or v >= declared.lo) and (declared.hi_open or v <= declared.hi)
        }
    if indexed is not None and not indexed.is_open:
        beside = {v for v in beside if reads_inside(program, item.name, v, extent)}
    return sorted({*found, *beside})


def integer_bounds(program: Program, item: Input, extent: Mapping[str, int]) -> IndexRange:
    """What integers are drawn from; beyond an open end there are others."""
    indexed = index_range(program, item.name, extent)
    declared = _declared(program, item, extent)
    if item.domain == ANY and indexed is not None:
        found = declared & indexed if indexed.is_open else indexed
    else:
        found = declared & indexed if indexed is not None else declared
        found = found if found.lo <= found.hi else declared
    limits = torch.iinfo(TORCH_DTYPE[item.dtype])
    found = replace(found, lo=max(found.lo, limits.min), hi=min(found.hi, limits.max))
    return replace(found, lo_open=False, hi_open=False) if item.dtype == "u8" else found


def _declared(program: Program, item: Input, extent: Mapping[str, int]) -> IndexRange:
    """By an input's domain and by what it is compared with."""
    domain = item.domain
    if domain.below is not None:
        return IndexRange(0, max(0, extent[domain.below] - 1))
    lo = 0 if item.dtype == "u8" else -8
    hi = 255 if item.dtype == "u8" else 8
    if domain == ANY and item.dtype in ("i64", "i32"):
        if axes := compared_axes(program, item.name):  # a length, or a place along an axis
            lo, hi = -1, max(extent[a] for a in axes)
        else:
            near = [v for v in compared_literals(program, item.name) if abs(v) < _FAR]
            lo, hi = min([lo, *(v - 2 for v in near)]), max([hi, *(v + 2 for v in near)])
    if domain.lo is not None:
        lo = int(domain.lo) + int(domain.lo_open)
        hi = max(hi, lo + 16)
    if domain.hi is not None:
        hi = int(domain.hi)
        lo = lo if domain.lo is not None else min(lo, hi - 16)
    return IndexRange(lo, hi, domain.lo is None, domain.hi is None)


def _wide_integers(dtype: str, shape: list[int], generator: torch.Generator) -> Tensor:
    """Half of any size, half hardly different ones, which only narrower arithmetic takes for equal."""
    bits = _WIDE_BITS[dtype]

    def draw(low: int, high: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, device=generator.device)

    sign = 1 - 2 * draw(0, 2)
    large = torch.where(draw(0, 2) == 0, 1 << bits, 1 << max(0, bits - _FEWER_BITS))
    found = torch.where(draw(0, 2) == 0, sign * large + draw(-4, 5), draw(-(1 << bits), (1 << bits) + 1))
    return found.clamp(-(1 << bits), (1 << bits) - 1) if dtype in ("i8", "i16") else found


def _of_one_sign(program: Program, item: Input, x: Tensor, distribution: str) -> Tensor:
    """Lines of integers in turn as they are, of either sign, and at either end.

    A sum in a narrower integer overflows, a largest or smallest element that begins with a number is one.
    """
    dims = reduced_dims(program, item)
    if not dims or not x.numel():
        return x
    line = lines(program, item, x)
    turn = line % 5 if line.numel() > 1 else line + (1 if distribution == MAGNITUDES else 3)
    # a sum of none is beyond 64 bits
    size = (x >> (math.prod(x.shape[d] for d in dims).bit_length() if item.dtype == "i64" else 0)).abs()
    x = torch.where(turn == 1, size, torch.where(turn == 3, -size, x))
    return torch.where(turn == 2, size.amax(), torch.where(turn == 4, -size.amax(), x))


def _at_ends_of_range(program: Program, item: Input, x: Tensor) -> Tensor:
    """Every fifth line of integers at their largest value, or a single one: a narrow sum of them overflows."""
    line = lines(program, item, x)
    return torch.where(line % 5 == 0, x.amax(), x) if reduced_dims(program, item) and x.numel() else x


def _of_few(program: Program, item: Input, x: Tensor, distribution: str, generator: torch.Generator) -> Tensor:
    """Lines of a mask in turn without any element, with all, with one, without one, and as they were."""
    line = lines(program, item, x)
    if line.numel() == 1:
        return x & (distribution != ZEROS) | (distribution == "coherent")
    one, turn = one_a_line(program, item, x, generator), line % 8
    if distribution in ("edges", MIXED, MAGNITUDES):
        x = torch.where(turn == 2, one, torch.where(turn == 3, ~one, x))
    if distribution in (MIXED, MAGNITUDES):  # of others few results may be other than finite
        x = x & (turn != 0) | (turn == 1)
    return x
