"""Whole numbers so wide that no half type holds what few of them add up to; float32 holds all of it, in any order.

    input of a sum or product that rounds nothing else -> widened(): every third of its lines of `integers`

Partial sums in a half type average out in long sums of ordinary values, within the budget of float32, and the
store hides the rest. Sums of whole numbers must be exact (error_rules.py), and these are small: each number stands
in its line once more with the other sign, anywhere, so that a store rounds little and no error is taken back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cudal1_compile.judge.inputs.extremes import summed_degree
from cudal1_compile.judge.inputs.lines import lines, reduced_dims
from cudal1_fx_passes.program.ir import ANY, Input, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

_KEEPS_SIGN = {"cast", "add", "sub", "mul", "neg"}
_KEEPS_WHOLE = _KEEPS_SIGN | {"abs", "relu", "maximum", "minimum", "where"}
_OVERFLOWS = {"exp", "exp2", "expm1", "pow", "prod", "cumprod"}
_EXACT = 1 << 22  # of magnitudes, added up: float32 has multiples of a quarter of such sums in any order
_LARGEST = {"f16": 2047, "bf16": 255}
_LARGEST_OTHER = 4095
# of products: how many, and the largest factor; where f16 could overflow, and where sums do not cancel
_PRODUCTS, _PRODUCTS_F16, _ONE_WAY_F16 = (512, 128), (256, 64), (32, 40)


def with_wide_integers(program: Program, item: Input, x: Tensor, generator: torch.Generator) -> Tensor:
    """`x` with wide numbers in every third line, in the only one where there is one; not in more than is exact."""
    summed, cancels = _summed(program)
    dims, degree = reduced_dims(program, item), summed_degree(program)
    if item.name not in summed or not dims or degree > 2:
        return x
    few, largest = _width(program, item, cancels)
    terms = max(program.size(op.over) for op in program.ops if op.over)
    few = min(few, terms)
    wide = torch.randint(-largest, largest, x.shape, generator=generator, device=x.device).double()
    wide = torch.where(wide < 0, wide, wide + 1.0)  # a zero that is left out is not missed
    sign = 1.0 if degree == 2 and item.name != summed[0] else -1.0  # of two factors one changes it
    wide = _in_pairs(wide, dims[-1], max(2, x.shape[dims[-1]] * few // terms), sign)
    line = lines(program, item, x)
    return torch.where(((line % 3 == 1) | (line.numel() == 1)) & (wide != 0), wide, x)


def _width(program: Program, item: Input, cancels: bool) -> tuple[int, int]:
    """How many such numbers a line may have, and the largest."""
    largest = _LARGEST.get(item.dtype, _LARGEST_OTHER)
    half = "f16" in program.value_dtype.values()
    if summed_degree(program) == 2:
        few, factor = _PRODUCTS if not half else _PRODUCTS_F16 if cancels else _ONE_WAY_F16
        return few, min(largest, factor)
    return _EXACT * 3 // 2 // largest if cancels or not half else _ONE_WAY_F16[0], largest


def _in_pairs(x: Tensor, dim: int, count: int, sign: float) -> Tensor:
    """So many places in a row along a dim: half, anywhere, repeat the others with a sign. Zeros elsewhere."""
    extent = x.shape[dim]
    places = torch.randperm(count, generator=torch.Generator().manual_seed(extent)) + (extent - count) // 2
    first, second = places[: count // 2], places[count // 2 : count // 2 * 2]
    source, factor = torch.arange(extent), torch.zeros(extent, dtype=torch.float64)
    source[second] = first
    factor[first], factor[second] = 1.0, sign
    factor = factor.reshape([-1 if d == dim else 1 for d in range(x.dim())])
    return x.index_select(dim, source.to(x.device)) * factor.to(x.device)


def _summed(program: Program) -> tuple[list[str], bool]:
    """Inputs that are summed up before anything is rounded, and whether sums of both signs stay so."""
    if any(op.fn in _OVERFLOWS for op in program.ops) and not any(op.fn == "amax" for op in program.ops):
        return [], True
    sources = {i.name: {i.name: None} for i in program.inputs if i.domain == ANY}
    found: dict[str, None] = {}
    cancels = True
    for op in program.ops:
        names = [x.name for x in op.operands if isinstance(x, Ref)]
        if not all(name in sources for name in names):
            continue
        together = {source: None for name in names for source in sources[name]}
        multiplies = op.fn == "mul" or OPS[op.fn].kind is Kind.DOT
        if multiplies and len(together) < sum(len(sources[name]) for name in names):
            cancels = False  # a square
        if op.fn == "sum" or OPS[op.fn].kind is Kind.DOT:
            found |= together
        elif op.fn in _KEEPS_WHOLE:
            sources[op.name] = together
            cancels &= op.fn in _KEEPS_SIGN
    return list(found), cancels
