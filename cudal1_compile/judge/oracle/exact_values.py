"""What no order of work moves: numbers that every kernel hits, and terms that every kernel makes alike.

    ExactValues(program) -> note() after every operation -> sure: which elements; marks: equal ones of like ones

SURE are elements of a computed float that its dtype holds at every step from the inputs on, by operations that
are rounded correctly wherever they run, or where every formula of a function gives the same: sigmoid(0) is 0.5,
and x / 0.25 is exact. A decision on them is no matter of rounding. Elements of equal MARKS are made of the same
numbers by the same operations: of them the first is the largest, however they are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.error_budget import TINY
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Literal, Op, Operand, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

STEPS = {"floor", "ceil", "round", "trunc", "sign"}
_KEEPS = {"add", "sub", "mul", "fma", "neg", "abs", "relu", "maximum", "minimum", "where", "cast"}
_QUOTIENTS = {"div", "reciprocal"}
_AT_ZERO = {"sigmoid", "exp", "exp2", "cos"}  # of which the results there are not zero, which is exact anyway
_FACTORS = (0x9E3779B97F4A7C15 - (1 << 64), 0xC2B2AE3D27D4EB4F - (1 << 64))  # odd, for a hash of 64 bits

Run = Callable[[Op, Mapping[str, Tensor]], Tensor]  # one operation over values by name


class ExactValues:
    """Of the values so far; nothing is kept of what no decision, and no place of an extreme, is made of."""

    def __init__(self, program: Program) -> None:
        decisions = (op for op in program.ops if op.dtype not in FLOAT_DTYPES or op.fn in STEPS)
        self._decided = behind(program, decisions)
        self._ranked = behind(program, (op for op in program.ops if op.fn in ("argmax", "argmin")))
        self._numbers = {name: n for n, name in enumerate(program.value_dtype, 1)}
        self.sure: dict[str, Tensor] = {}
        self.marks: dict[str, Tensor] = {}

    def note_input(self, name: str, value: Tensor) -> None:
        if name in self._ranked:
            self.marks[name] = _mixed(_bits(value), self._numbers[name])

    def note(
        self, run: Run, op: Op, values: Mapping[str, Tensor], errors: Mapping[str, Tensor | None], held: bool
    ) -> None:
        """held: the result was rounded to a half type afterwards."""
        if op.name in self._decided and errors[op.name] is not None and not held:
            found = _sure_of(run, op, values, errors, self.sure)
            if found is not None:
                self.sure[op.name] = found
        if op.name in self._ranked:
            self.marks[op.name] = self._mark(run, op, values)

    def forget(self, name: str) -> None:
        self.sure.pop(name, None)
        self.marks.pop(name, None)

    def positions(self, name: str, value: Tensor) -> Tensor:
        """A number of its own for each element of a value."""
        return torch.arange(value.numel(), device=value.device).reshape(value.shape)

    def _mark(self, run: Run, op: Op, values: Mapping[str, Tensor]) -> Tensor:
        """Of a sum, or of what is read at places of its own, each element is like itself alone."""
        number = self._numbers[op.name]
        value = values[op.name]
        if OPS[op.fn].kind is not Kind.POINTWISE or any(_reads_by_itself(x) for x in op.operands):
            return _mixed(self.positions(op.name, value), number)
        mark = torch.full_like(value, number, dtype=torch.int64)
        for x in op.operands:
            for ref in _with_indices(x):
                mark = _mixed(mark ^ read_as(run, op, ref, values, self.marks[ref.name]), number)
        return mark


def behind(program: Program, ops: Iterable[Op]) -> frozenset[str]:
    """The names of all that operations are made of."""
    found: set[str] = set()
    todo = list(ops)
    while todo:
        names = {ref.name for x in todo.pop().operands for ref in _with_indices(x)} - found
        found |= names
        todo += [program.op[name] for name in names if name in program.op]
    return frozenset(found)


def _with_indices(operand: Operand) -> list[Ref]:
    """What an operand reads, the values that say where included."""
    if not isinstance(operand, Ref):
        return []
    return [operand, *map(Ref, operand.index_values)]


def _reads_by_itself(operand: Operand) -> bool:
    refs = _with_indices(operand)
    return any(ref.name == refs[0].name for ref in refs[1:])


def read_as(
    run: Run, op: Op, operand: Ref, values: Mapping[str, Tensor], instead: Tensor, dtype: str = "i64"
) -> Tensor:
    """Another tensor in place of an operand, as the operation reads it."""
    return run(replace(op, fn="cast", operands=(operand,), dtype=dtype), {**values, operand.name: instead})


def _bits(value: Tensor) -> Tensor:
    """A number's bits; all zeros are one, and all NaN."""
    if not value.is_floating_point():
        return value.long()
    found = value.double().nan_to_num(torch.nan, torch.inf, -torch.inf) + 0.0
    return torch.where(found.isnan(), 1, found.view(torch.int64))


def _mixed(x: Tensor, number: int) -> Tensor:
    x = (x + number) * _FACTORS[0]
    return (x ^ (x >> 29)) * _FACTORS[1]


def _sure_of(
    run: Run,
    op: Op,
    values: Mapping[str, Tensor],
    errors: Mapping[str, Tensor | None],
    sure: Mapping[str, Tensor],
) -> Tensor | None:
    if op.dtype not in FLOAT_DTYPES or op.fn not in _KEEPS | _QUOTIENTS | _AT_ZERO:
        return None
    if not all(is_short(x) for x in op.operands if isinstance(x, Literal)):
        return None
    value = values[op.name]
    found = value == value.to(TORCH_DTYPE[op.dtype]).double()
    found = found & ((value == 0) | (value.abs() >= TINY[op.dtype]))  # what is less may be flushed
    for x in op.operands:
        if not isinstance(x, Ref):
            continue
        if any(errors[ref.name] is not None for ref in _with_indices(x)[1:]) or _reads_by_itself(x):
            return None
        if (error := errors[x.name]) is not None:
            hit = (error == 0) | sure[x.name] if x.name in sure else error == 0
            found = found & read_as(run, op, x, values, hit, "bool")
        if op.fn in _AT_ZERO:
            found = found & read_as(run, op, x, values, values[x.name] == 0, "bool")
    if op.fn in _QUOTIENTS:
        found = found & _is_power_of_two(run, op, values)
    return found if bool(found.any()) else None


def _is_power_of_two(run: Run, op: Op, values: Mapping[str, Tensor]) -> Tensor:
    """Where the divisor is one, so that its inverse is exact too."""
    divisor = op.operands[-1]
    if isinstance(divisor, Literal):
        return torch.tensor(abs(math.frexp(float(divisor.value))[0]) == 0.5, device=values[op.name].device)
    x = values[divisor.name]
    return read_as(run, op, divisor, values, torch.frexp(x)[0].abs() == 0.5, "bool")


def is_short(x: Literal) -> bool:
    return float(x.value) == float(torch.tensor(float(x.value), dtype=torch.bfloat16))
