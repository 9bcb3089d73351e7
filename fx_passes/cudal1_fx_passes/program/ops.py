"""The operator table: every operation of Region text V1, one row each.

The compiler, the judge's oracle, the trainer's task generator and the templates all read this one table.
A row says how torch computes the operation over aligned operands (same rank, broadcastable) and which
algebra the canonical form may use. How an operation is spelled in CUDA is not told here: generators write it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor


class Kind(Enum):
    POINTWISE = "pointwise"
    REDUCE = "reduce"  # removes the axes `over`; further operands are literals (var: the correction)
    SCAN = "scan"  # runs along one axis and keeps it
    IOTA = "iota"  # the index along one axis, as i64
    DOT = "dot"  # sum over axes of the product of two operands


class Result(Enum):
    """How the result's dtype follows from the operands'."""

    SAME = "same"
    BOOL = "bool"
    INDEX = "index"  # an integer dtype, stated by the operation
    STATED = "stated"  # a cast


@dataclass(frozen=True, slots=True)
class OpSpec:
    kind: Kind
    arity: int
    run: Callable[..., Tensor]  # pointwise: (*operands); reduce and scan: (x, dim, *literals)
    result: Result = Result.SAME
    commutative: bool = False
    identity: float | None = None  # what an out-of-bounds access contributes to a reduction


def _pointwise(
    arity: int, run: Callable[..., Tensor], result: Result = Result.SAME, commutative: bool = False
) -> OpSpec:
    return OpSpec(Kind.POINTWISE, arity, run, result, commutative)


def _each(run: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """Applies a one-axis reduction to several axes, last first."""

    def over(x: Tensor, dims: tuple[int, ...]) -> Tensor:
        for d in sorted(dims, reverse=True):
            x = run(x, d)
        return x

    return over


def _flat_index(find: Callable[[Tensor, int], Tensor]) -> Callable[..., Tensor]:
    """argmax and argmin over several axes: the row-major index within them, the first of equals."""

    def over(x: Tensor, dims: tuple[int, ...]) -> Tensor:
        kept = [d for d in range(x.dim()) if d not in dims]
        flat = x.permute(*kept, *dims).flatten(len(kept))
        return find(flat, -1)

    return over


def _var(x: Tensor, dims: tuple[int, ...], correction: float) -> Tensor:
    return torch.var(x, dim=dims, correction=correction)


def _mean(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return torch.mean(x, dim=dims)


OPS: dict[str, OpSpec] = {
    # one operand
    "neg": _pointwise(1, torch.neg),
    "abs": _pointwise(1, torch.abs),
    "sign": _pointwise(1, torch.sign),
    "exp": _pointwise(1, torch.exp),
    "exp2": _pointwise(1, torch.exp2),
    "expm1": _pointwise(1, torch.expm1),
    "log": _pointwise(1, torch.log),
    "log2": _pointwise(1, torch.log2),
    "log1p": _pointwise(1, torch.log1p),
    "sqrt": _pointwise(1, torch.sqrt),
    "rsqrt": _pointwise(1, torch.rsqrt),
    "reciprocal": _pointwise(1, torch.reciprocal),
    "sin": _pointwise(1, torch.sin),
    "cos": _pointwise(1, torch.cos),
    "tanh": _pointwise(1, torch.tanh),
    "sigmoid": _pointwise(1, torch.sigmoid),
    "erf": _pointwise(1, torch.erf),
    "relu": _pointwise(1, torch.relu),
    "floor": _pointwise(1, torch.floor),
    "ceil": _pointwise(1, torch.ceil),
    "round": _pointwise(1, torch.round),
    "trunc": _pointwise(1, torch.trunc),
    "isnan": _pointwise(1, torch.isnan, Result.BOOL),
    "logical_not": _pointwise(1, torch.logical_not, Result.BOOL),
    "cast": _pointwise(1, lambda x: x, Result.STATED),  # the result's dtype does the work
    # two operands
    "add": _pointwise(2, torch.add, commutative=True),
    "sub": _pointwise(2, torch.sub),
    "mul": _pointwise(2, torch.mul, commutative=True),
    "div": _pointwise(2, torch.div),
    "pow": _pointwise(2, torch.pow),
    "fmod": _pointwise(2, torch.fmod),
    "remainder": _pointwise(2, torch.remainder),
    "maximum": _pointwise(2, torch.maximum, commutative=True),
    "minimum": _pointwise(2, torch.minimum, commutative=True),
    "eq": _pointwise(2, torch.eq, Result.BOOL, commutative=True),
    "ne": _pointwise(2, torch.ne, Result.BOOL, commutative=True),
    "lt": _pointwise(2, torch.lt, Result.BOOL),
    "le": _pointwise(2, torch.le, Result.BOOL),
    "gt": _pointwise(2, torch.gt, Result.BOOL),
    "ge": _pointwise(2, torch.ge, Result.BOOL),
    "logical_and": _pointwise(2, torch.logical_and, Result.BOOL, commutative=True),
    "logical_or": _pointwise(2, torch.logical_or, Result.BOOL, commutative=True),
    "logical_xor": _pointwise(2, torch.logical_xor, Result.BOOL, commutative=True),
    # three operands
    "where": _pointwise(3, torch.where),  # condition, then, else
    "fma": _pointwise(3, lambda a, b, c: a * b + c),
    # reductions
    "sum": OpSpec(Kind.REDUCE, 1, lambda x, dims: torch.sum(x, dim=dims), identity=0.0),
    "mean": OpSpec(Kind.REDUCE, 1, _mean),
    "amax": OpSpec(Kind.REDUCE, 1, lambda x, dims: torch.amax(x, dim=dims), identity=float("-inf")),
    "amin": OpSpec(Kind.REDUCE, 1, lambda x, dims: torch.amin(x, dim=dims), identity=float("inf")),
    "prod": OpSpec(Kind.REDUCE, 1, _each(lambda x, d: torch.prod(x, dim=d)), identity=1.0),
    "var": OpSpec(Kind.REDUCE, 2, _var),
    "logsumexp": OpSpec(Kind.REDUCE, 1, lambda x, dims: torch.logsumexp(x, dim=dims), identity=float("-inf")),
    "argmax": OpSpec(Kind.REDUCE, 1, _flat_index(torch.argmax), Result.INDEX, identity=float("-inf")),
    "argmin": OpSpec(Kind.REDUCE, 1, _flat_index(torch.argmin), Result.INDEX, identity=float("inf")),
    "any": OpSpec(Kind.REDUCE, 1, _each(lambda x, d: torch.any(x, dim=d)), Result.BOOL, identity=0.0),
    "all": OpSpec(Kind.REDUCE, 1, _each(lambda x, d: torch.all(x, dim=d)), Result.BOOL, identity=1.0),
    # scans
    "cumsum": OpSpec(Kind.SCAN, 1, lambda x, dim: torch.cumsum(x, dim=dim)),
    "cumprod": OpSpec(Kind.SCAN, 1, lambda x, dim: torch.cumprod(x, dim=dim)),
    # others
    "iota": OpSpec(Kind.IOTA, 0, torch.arange, Result.INDEX),
    "dot": OpSpec(Kind.DOT, 2, torch.mul, commutative=True, identity=0.0),
    # of float32 operands that may be rounded to TF32, where torch's flags allow it to the library
    "dot_tf32": OpSpec(Kind.DOT, 2, torch.mul, commutative=True, identity=0.0),
}
