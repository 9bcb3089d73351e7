"""Sizes of scratch buffers as Inductor's expressions: launch-plan text over dims -> sympy over graph symbols.

// scratch: s0 f32[cdiv(d0, 256)]   with d0 = s77   ->   float32, ceiling division of s77 by 256
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from torch.utils._sympy.functions import CeilDiv, FloorDiv, Max, Min, Mod

from cudal1_compile.candidate import Candidate, Expr
from cudal1_compile.errors import CandidateError
from cudal1_compile.lowering import ScratchSpec
from cudal1_fx_passes.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program import Program

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: FloorDiv,
    ast.FloorDiv: FloorDiv,
    ast.Mod: Mod,
}
_CALLS: dict[str, Callable[[Any, Any], Any]] = {"cdiv": CeilDiv, "min": Min, "max": Max}


def scratch_specs(
    candidate: Candidate, program: Program, symbols: tuple[sympy.Expr, ...]
) -> tuple[ScratchSpec, ...]:
    """One spec a scratch buffer. symbols: sizes of the program's symbolic axes, in axis order."""
    named = iter(symbols)
    dims = {a.name: next(named) if a.symbolic else sympy.Integer(a.size) for a in program.axes}
    return tuple(ScratchSpec(TORCH_DTYPE[s.dtype], _count(s.shape, dims)) for s in candidate.scratch)


def symbolic_size(expression: Expr, dims: Mapping[str, sympy.Expr]) -> sympy.Expr:
    """The value of an expression over symbolic dims. Raises CandidateError as Expr.evaluate does."""
    return _evaluate(ast.parse(expression.text.strip(), mode="eval").body, dims, expression.text)


def _count(shape: tuple[Expr, ...], dims: Mapping[str, sympy.Expr]) -> sympy.Expr:
    total: sympy.Expr = sympy.Integer(1)
    for extent in shape:
        total = total * symbolic_size(extent, dims)
    return total


def _evaluate(node: ast.expr, dims: Mapping[str, sympy.Expr], text: str) -> Any:
    match node:
        case ast.Constant(value=int(value)):
            return sympy.Integer(value)
        case ast.Name(id=name) if name in dims:
            return dims[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_evaluate(left, dims, text), _evaluate(right, dims, text))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, dims, text)
        case ast.Call(func=ast.Name(id=name), args=[first, *rest], keywords=[]) if name in _CALLS and rest:
            value = _evaluate(first, dims, text)
            for item in rest:
                value = _CALLS[name](value, _evaluate(item, dims, text))
            return value
    raise CandidateError(f"expression {text!r}: only integers, {', '.join(dims)}, + - * / %, cdiv, min and max")
