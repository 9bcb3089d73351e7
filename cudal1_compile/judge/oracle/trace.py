"""One run of the oracle: its program and rules, and how values move and differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.error_budget import ACCUMULATOR, UNIT, Rule
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE, read_terms, run_op
from cudal1_fx_passes.program.ir import Op, Program, Ref


@dataclass(frozen=True, slots=True)
class Trace:
    program: Program
    sizes: Mapping[str, int]
    device: torch.device
    coherent: Rule
    integral: Rule
    magnify: float

    def unit(self, dtype: str) -> float:
        return UNIT[dtype] * self.magnify if dtype in UNIT else 0.0

    def accumulator(self, dtype: str) -> float:
        return ACCUMULATOR[dtype] * self.magnify if dtype in ACCUMULATOR else 0.0

    def run(self, op: Op, values: Mapping[str, Tensor]) -> Tensor:
        return run_op(self.program, op, values, self.device, self.sizes, float64=True)

    def terms(self, op: Op, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None, tuple[int, ...]]:
        return read_terms(self.program, op, values, self.device, self.sizes)


def operands_of(op: Op) -> list[str]:
    """Names of the values that an operation reads, index values included, each once."""
    names: dict[str, None] = {}
    for x in op.operands:
        if isinstance(x, Ref):
            names[x.name] = None
            names |= dict.fromkeys(x.index_values)
    return list(names)


def move(value: Tensor, error: Tensor, sign: float) -> Tensor:
    if value.dtype == torch.bool:
        return value ^ (error > 0)
    if value.is_floating_point():
        return torch.add(value, error, alpha=sign)
    step = error.clamp(0, 2.0**30).ceil().to(value.dtype)
    return value + step if sign > 0 else value - step


def distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b| in float64; 0 where both are the same infinity, NaN where either is. A new tensor."""
    if a.dtype == torch.bool:
        return (a ^ b).double()
    if not a.is_floating_point():
        return (a - b).abs().double()
    return (a - b).abs_().masked_fill_(a == b, 0.0)


def is_representable(value: Tensor, dtype: str) -> Tensor:
    return value == value.to(TORCH_DTYPE[dtype]).double()
