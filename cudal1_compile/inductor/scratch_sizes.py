"""Sizes of scratch buffers as Inductor's expressions: launch-plan text over dims -> sympy over graph symbols.

// scratch: s0 f32[cdiv(d0, 256)]   with d0 = s77   ->   float32, ceiling division of s77 by 256
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping

import sympy
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Min, Mod

from cudal1_compile.inductor.fused_lowering import ScratchSpec
from cudal1_compile.kernel.candidate import Arithmetic, Candidate, Expr
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Program


def _at_least_one(value: sympy.Expr) -> sympy.Expr:
    """What cannot be is no error of the call: the plan refuses such sizes, and the call is aten's."""
    return value if value.is_positive else Max(1, value)  # type: ignore[no-untyped-call]


SYMBOLS = Arithmetic(
    sympy.Integer,
    {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: FloorDiv,
        ast.FloorDiv: FloorDiv,
        ast.Mod: Mod,
    },
    {"cdiv": CeilDiv, "min": Min, "max": Max},
    _at_least_one,
)


def scratch_specs(
    candidate: Candidate, program: Program, symbols: tuple[sympy.Expr, ...]
) -> tuple[ScratchSpec, ...]:
    """One spec a scratch buffer. symbols: sizes of the program's symbolic axes, in axis order."""
    named = iter(symbols)
    dims = {a.name: next(named) if a.symbolic else sympy.Integer(a.size) for a in program.axes}
    return tuple(ScratchSpec(TORCH_DTYPE[s.dtype], _count(s.shape, dims)) for s in candidate.scratch)


def symbolic_size(expression: Expr, dims: Mapping[str, sympy.Expr]) -> sympy.Expr:
    """The value of an expression over symbolic dims. Raises CandidateError as Expr.evaluate does."""
    return expression.fold(dims, SYMBOLS)


def _count(shape: tuple[Expr, ...], dims: Mapping[str, sympy.Expr]) -> sympy.Expr:
    total: sympy.Expr = sympy.Integer(1)
    for extent in shape:
        total = total * symbolic_size(extent, dims)
    return _at_least_one(total)
