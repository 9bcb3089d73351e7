"""The oracle with its error scale: every output in float64, and how far honest rounding may move each element.

    inputs (exact) -> per operation: value in float64, error = its operands' errors carried on + its own rounding

What one operation adds is told by error_rules.py. Beside the values stand those that decisions in half types lead
to, and where anything is right.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.error_budget import F32_ACCUMULATION_SAFETY, LARGEST, Rule
from cudal1_compile.judge.oracle.error_rules import error_of
from cudal1_compile.judge.oracle.exact_values import ExactValues, read_as
from cudal1_compile.judge.oracle.trace import Trace, distance, move, operands_of
from cudal1_compile.judge.sandbox.device_lock import give_way
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, INT_DTYPES, Input, Literal, Op, Operand, Output, Program, Ref

# errors of float64 programs lie at the float64 probe's own resolution: it sees them magnified, but jumps and whole
# periods, which are no larger for that, as they are
MAGNIFY = 2.0**20
# what may stand where anything is right, of floats and of others: where it shows, some two give two results
_ENDS = ((math.nan, 1), (math.nan, 0), (1.5, 0), (-2.0, 1))
_OVERFLOWS = {"exp", "exp2", "expm1"}  # infinite for some operands, of any size for those beside
_DOMAINS = {"sqrt", "rsqrt", "log", "log2", "log1p", "pow"}  # numbers for some operands, NaN for those beside
_SIGNS = {"mul", "fma", "div", "reciprocal"}  # of an infinite one, by what an operand's sign is


@dataclass(frozen=True, slots=True)
class Bounded:
    """A value in float64 (or integer, bool) and its error scale; None where the value is exact."""

    value: Tensor
    error: Tensor | None
    decided: Tensor | None = None  # the value where half types are rounded once, before they decide
    free: Tensor | None = None  # where anything is right: rounding decides whether it is finite, or no integer is

    @property
    def of_one(self) -> Bounded:
        """As the only one of several cases."""
        error, decided, free = (None if x is None else x[None] for x in (self.error, self.decided, self.free))
        return Bounded(self.value[None], error, decided, free)


def bounded_outputs(
    program: Program,
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int] | None = None,
    coherent: Rule = False,
    integral: Rule = False,
    held: Mapping[str, str] | None = None,
) -> list[Bounded]:
    """One Bounded an output, dims in the output's memory order.

    coherent: terms of sums may be equal. integral: inputs are small integers, so that integer results of sums
    and products are exact, and a tie decides as a tie. held: operations whose results are rounded to a half type.
    """
    program = as_compared(program)
    device = inputs[0].device if inputs else torch.device("cpu")
    # what is rounded is rounded the other way within the errors that are allowed
    magnify = F32_ACCUMULATION_SAFETY if held else 1.0
    trace = Trace(program, dict(sizes or {}), device, coherent, integral, magnify)
    found = _bounded(trace, inputs, held or {})
    if not is_double(program):
        return found
    seen = _bounded(replace(trace, magnify=MAGNIFY), inputs, {})
    return [joined(f, s) for f, s in zip(found, seen, strict=True)]


def is_double(program: Program) -> bool:
    """Whether all floats are float64, whose errors are also looked for magnified."""
    return {d for d in program.value_dtype.values() if d in FLOAT_DTYPES} == {"f64"}


def joined(plain: Bounded, magnified: Bounded) -> Bounded:
    a, b = plain.error, magnified.error
    error = torch.maximum(a, b) if a is not None and b is not None else a if b is None else b
    return replace(magnified, error=error)


def _bounded(trace: Trace, inputs: Sequence[Tensor], held: Mapping[str, str]) -> list[Bounded]:
    program = trace.program
    run = Run(trace, ExactValues(program), decides(program), held)
    for spec, x in zip(program.inputs, inputs, strict=True):
        run.begin(spec, x)
    last_use = last_uses(program)
    for i, op in enumerate(program.ops):
        give_way()
        run.step(op)
        run.forget(last_use.get(i, ()))
    return [run.output(out) for out in program.outputs]


def decides(program: Program) -> bool:
    """Whether some output is discrete, so that what decisions in half types lead to is asked for."""
    return any(program.output_dtype(o) not in FLOAT_DTYPES for o in program.outputs)


class Run:
    """Values, their errors, values again that decisions in half types lead to, and where anything is right."""

    def __init__(
        self, trace: Trace, exact_values: ExactValues, discrete: bool, held: Mapping[str, str] | None = None
    ) -> None:
        self.trace, self.exact_values = trace, exact_values
        self._discrete, self._held = discrete, held or {}
        self.values: dict[str, Tensor] = {}
        self.errors: dict[str, Tensor | None] = {}
        self.decided: dict[str, Tensor] = {}
        self.free: dict[str, Tensor] = {}

    def begin(self, spec: Input, x: Tensor) -> None:
        """Takes an input, dims in its memory order."""
        order = self.trace.program.value_axes[spec.name]
        x = x.permute([spec.axes.index(a) for a in order]) if spec.axes else x
        self.values[spec.name] = x.double() if spec.dtype in FLOAT_DTYPES else x
        self.errors[spec.name] = None
        self.exact_values.note_input(spec.name, self.values[spec.name])

    def step(self, op: Op) -> None:
        trace, values = self.trace, self.values
        values[op.name] = trace.run(op, values)
        error = error_of(trace, op, values, self.errors, self.exact_values)
        if (dtype := self._held.get(op.name)) is not None:
            values[op.name], error = _rounded(values[op.name], error, dtype)
        others = [trace.run(op, {**values, **seen}) for seen in self.ends(op)]
        decided = trace.run(op, {**values, **seen}) if (seen := self.deciding(op)) else None
        self.errors[op.name] = None if error is None else tidy(error, values[op.name])
        self.note(op, decided, _free(trace, op, values, self.errors, apart(others)))

    def note(self, op: Op, decided: Tensor | None, free: Tensor | None) -> None:
        """What else is known of a result whose value and error are."""
        self.exact_values.note(self.trace.run, op, self.values, self.errors, op.name in self._held)
        if decided is not None:
            self.decided[op.name] = decided
        if free is not None and bool(free.any()):
            self.free[op.name] = free

    def deciding(self, op: Op) -> dict[str, Tensor]:
        """Operands in half types rounded once, before they decide; empty where none is asked for."""
        if not self._discrete:
            return {}
        seen = {name: self.decided[name] for name in operands_of(op) if name in self.decided}
        if op.dtype not in FLOAT_DTYPES:
            for name in operands_of(op):
                if (dtype := self.trace.program.value_dtype[name]) in ("bf16", "f16"):
                    seen[name] = seen.get(name, self.values[name]).to(TORCH_DTYPE[dtype]).double()
        return seen

    def ends(self, op: Op) -> list[dict[str, Tensor]]:
        """Operands filled with each of what may stand where anything is right of them; empty where nowhere."""
        seen = {name: self.free[name] for name in operands_of(op) if name in self.free}
        return [{n: _filled(self.values[n], m, *end) for n, m in seen.items()} for end in _ENDS] if seen else []

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            del self.values[name], self.errors[name]
            self.exact_values.forget(name)
            self.decided.pop(name, None)
            self.free.pop(name, None)

    def output(self, out: Output) -> Bounded:
        order = self.trace.program.value_axes[out.value]
        turn = [order.index(a) for a in out.axes]
        error = self.errors[out.value]
        scale = None if error is None else (error / self.trace.magnify).permute(turn)
        other, any_will_do = (
            None if x is None else x.permute(turn) for x in (self.decided.get(out.value), self.free.get(out.value))
        )
        return Bounded(self.values[out.value].permute(turn), scale, other, any_will_do)


def _rounded(value: Tensor, error: Tensor | None, dtype: str) -> tuple[Tensor, Tensor | None]:
    """A value rounded to a half type, and how far off it is where its error may round it otherwise."""

    def rounded(x: Tensor) -> Tensor:
        return x.to(TORCH_DTYPE[dtype]).double()

    found = rounded(value)
    if error is None:
        return found, None
    return found, torch.maximum(*(distance(rounded(move(value, error, sign)), found) for sign in (1.0, -1.0)))


def apart(results: Sequence[Tensor]) -> list[Tensor]:
    """Where the first of some results is not like another one."""
    return [(results[0] != x) & ~(results[0].isnan() & x.isnan()) for x in results[1:]]


def _free(
    trace: Trace,
    op: Op,
    values: Mapping[str, Tensor],
    errors: Mapping[str, Tensor | None],
    found: list[Tensor],
) -> Tensor | None:
    """Where anything is right: it is so of operands that show (found), or begins here. None where nowhere."""
    source = values[name] if (name := operands_of(op)[0] if op.operands else "") else None
    if op.fn in _DOMAINS and (error := errors[name]) is not None:
        up, down = _both_ways(trace, op, values, name, error)
        found.append(up.isnan() ^ down.isnan())
    if op.fn in _OVERFLOWS and (error := errors[name]) is not None:
        largest = LARGEST["f64" if op.dtype == "f64" else "f32"]
        if bool((values[name] + error > math.log(largest) - 1.0).any()):
            up, down = _both_ways(trace, op, values, name, error)
            operand = op.operands[0]
            assert isinstance(operand, Ref)
            bounded = read_as(trace.run, op, operand, values, error.isfinite(), "bool")
            known = bounded | (values[op.name] > largest)
            found.append((up > largest) & (down <= largest) & known)
    if op.fn in _SIGNS and bool((odd := ~values[op.name].isfinite()).any()):
        for name in operands_of(op):
            if (error := errors[name]) is not None:
                up, down = _both_ways(trace, op, values, name, error)
                found.append(odd & (up != down) & ~(up.isnan() & down.isnan()))
    if op.fn == "cast" and op.dtype in INT_DTYPES and source is not None and source.is_floating_point():
        limits = torch.iinfo(torch.int64 if op.dtype == "i64" else torch.int32)  # narrower ones by way of an int
        found.append(~((source > limits.min - 1.0) & (source < limits.max + 1.0)))
    return any_of(found)


def any_of(masks: Sequence[Tensor]) -> Tensor | None:
    return reduce(operator.or_, masks) if masks else None


def _both_ways(
    trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, error: Tensor
) -> tuple[Tensor, Tensor]:
    """The result with an operand moved up, and down; an infinity is one, however far it may be off."""
    error = error.masked_fill(values[name].isinf(), 0.0)
    up, down = (move(values[name], error, sign) for sign in (1.0, -1.0))
    return trace.run(op, {**values, name: up}), trace.run(op, {**values, name: down})


def _filled(value: Tensor, where: Tensor, number: float, other: int) -> Tensor:
    return value.masked_fill(where, number if value.is_floating_point() else other)


def as_compared(program: Program) -> Program:
    """With literals that decide as kernels hold them: no float32 is above the 0.1 that it is nearest to."""

    def held(op: Op, x: Operand) -> Operand:
        wide = op.dtype in FLOAT_DTYPES or "f64" in (program.value_dtype[name] for name in operands_of(op))
        if wide or not isinstance(x, Literal) or not isinstance(x.value, float):
            return x
        return Literal(c_float(x.value).value)

    ops = tuple(replace(op, operands=tuple(held(op, x) for x in op.operands)) for op in program.ops)
    return program if ops == program.ops else replace(program, ops=ops)


def last_uses(p: Program) -> dict[int, list[str]]:
    """Values that may be freed after each operation, by the operation's place."""
    last: dict[str, int] = {}
    for i, op in enumerate(p.ops):
        for name in (*operands_of(op), op.name):
            last[name] = i
    kept = {o.value for o in p.outputs}
    found: dict[int, list[str]] = {}
    for name, i in last.items():
        if name not in kept:
            found.setdefault(i, []).append(name)
    return found


def tidy(error: Tensor, value: Tensor) -> Tensor:
    """NaN errors mean that nothing is known; an error of a value that is itself not finite is not used."""
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf).expand(value.shape)
