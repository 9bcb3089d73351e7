"""In what a right kernel's results may differ from eager mode's, told from its program and its words.

exact         nowhere: nothing is rounded. Values are moved, compared, selected, or integers, which wrap around
              whatever the order of work. The native reference and the oracle are then equal and the judge's
              tolerance is 0: it takes no kernel that differs (but in the sign of a zero, and in a NaN's bits)
reassociates  sums in another order, fewer or other roundings, within the budget of the dtype
f32_split     float32 products on tensor cores, each factor cut in two (a word of the header), within that budget
"""

from __future__ import annotations

import re

import torch

from cudal1_compile.judge.oracle.error_budget import roundings
from cudal1_compile.judge.verdict import NumericsLabel
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Literal, Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Result

# binary digits of the integers that a dtype holds; a cast to as many loses nothing
_DIGITS = {
    "bool": 1,
    "u8": 8,
    "i8": 8,
    "i16": 16,
    "i32": 32,
    "i64": 64,
    "bf16": 8,
    "f16": 11,
    "f32": 24,
    "f64": 53,
}
_SPLIT = re.compile(r"\bf32_split\b")
_RING = ("add", "sub", "mul", "fma", "sum", "prod", "cumsum", "cumprod", "dot")


def numerics_of(program: Program, code: str = "") -> NumericsLabel:
    """The label of a kernel that the judge accepts; without its code the narrowest that the program allows."""
    if all(_is_exact(program, op) for op in program.ops):
        return "exact"
    return "f32_split" if _SPLIT.search(code) else "reassociates"


def _is_exact(program: Program, op: Op) -> bool:
    dtypes = {program.value_dtype[x.name] for x in op.operands if isinstance(x, Ref)} or {op.dtype}
    if op.fn == "cast":
        return all(_keeps(dtype, op.dtype) for dtype in dtypes)
    literals = [x.value for x in op.operands if isinstance(x, Literal)]
    if not all(_holds(dtype, x) for dtype in dtypes.intersection(FLOAT_DTYPES) for x in literals):
        return False
    if OPS[op.fn].result in (Result.BOOL, Result.INDEX) or roundings(op.fn) == 0.0:
        return True
    return op.fn in _RING and dtypes.isdisjoint(FLOAT_DTYPES)


def _keeps(source: str, target: str) -> bool:
    """Whether a cast rounds nothing: to an integer it truncates, as torch does."""
    if target not in FLOAT_DTYPES:
        return True
    return _DIGITS[source] <= _DIGITS[target] and (source, target) != ("bf16", "f16")


def _holds(dtype: str, value: float) -> bool:
    return bool(torch.tensor(value, dtype=TORCH_DTYPE[dtype]).item() == value)
