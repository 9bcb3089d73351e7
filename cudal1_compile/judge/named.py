"""Numbers that a candidate names and its region does not: one more case lies on, next to and between them.

    code -> foreign_numbers() -> on_numbers(ordinary inputs): a path chosen by such a value is taken

Ordinary kernels name sizes of blocks and tiles beside their region's numbers, so they have no such case. It knows
literals only, also as the bits of a float; what is computed from several of them it does not.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from cudal1_compile.judge.budget import UNIT
from cudal1_compile.judge.extremes import lines, reaches_integers
from cudal1_fx_passes.program import Input, Literal, Program

NAMED = "named"
MAX_NUMBERS = 256
_LARGEST = {"f16": 6e4, "bf16": 3e38, "f32": 3e38, "f64": 1e300}
_NUMBER = re.compile(r"(?<![\w.])(0[xX][0-9a-fA-F']+|(?:\d[\d']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFuUlL]*")
# sizes of blocks, tiles, warps and their masks
_SIZES = {*range(65), *range(0, 4097, 32), *(2**k - 1 for k in range(33))}


def foreign_numbers(program: Program, code: str) -> tuple[float, ...]:
    """Absolute values, sorted."""
    known = {_single(abs(o.value)) for op in program.ops for o in op.operands if isinstance(o, Literal)}
    found: set[float] = set()
    for line in code.splitlines():
        for text in _NUMBER.findall("" if line.startswith("//") else line):
            found |= _meanings(text.replace("'", ""))
    return tuple(sorted(v for v in found if _single(v) not in known | {0.0, 0.5, 1.0, 2.0}))[:MAX_NUMBERS]


def _meanings(text: str) -> set[float]:
    if text[:2] in ("0x", "0X"):
        bits = int(text, 16)
        as_float: float = struct.unpack("f", struct.pack("I", bits & 0xFFFFFFFF))[0]
        normal = math.isfinite(as_float) and abs(as_float) >= 2.0**-126
        return ({float(bits)} - _SIZES) | ({abs(as_float)} if normal else set())
    return {float(text)} - (_SIZES if text.isdigit() else set())


def _single(value: float) -> float:
    return float(torch.tensor(float(value), dtype=torch.float32))


def on_numbers(program: Program, item: Input, x: Tensor, numbers: Sequence[float]) -> Tensor:
    """Half of the elements, and every second whole line, at the numbers, next to them and between two of them."""
    own = {abs(float(o.value)) for op in program.ops for o in op.operands if isinstance(o, Literal)}
    ends = sorted({0.0, *(v for v in own if math.isfinite(v)), *numbers, 2.0 * numbers[-1] + 1.0})
    unit = UNIT.get(item.dtype, 0.0)
    pool = [*numbers, *((a + b) / 2 for a, b in zip(ends, ends[1:], strict=False))]
    pool += [v * (1 + s * 2 * unit) for v in numbers for s in (1, -1)]
    limit = 1e4 if reaches_integers(program) else _LARGEST.get(item.dtype, 2.0**62)
    values = torch.tensor([s * min(v, limit) for v in pool for s in (1, -1)], device=x.device, dtype=torch.float64)
    place = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    single = torch.where(place % 2 == 0, x.double(), values[place // 2 % len(values)])
    line = lines(program, item, x)
    if not 1 < line.numel() < x.numel():
        return single
    return torch.where(line % 2 == 1, values[line // 2 % len(values)], single)
