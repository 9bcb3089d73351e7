"""The error rules: how far one operation's result may move, by its operands' errors and by its own rounding.

    (trace, operation, values in float64, their errors) -> error_of() -> the result's error; None: it is exact

Errors are first-order bounds per element. A pointwise operation is probed: run again with each operand moved
by its error, so that every row of the operator table is covered, discontinuities included (a comparison whose
sides lie closer than their errors becomes AMBIGUOUS: error 1 of a bool). Reductions use their own rule with the
growth of error_budget.py (reduction_rules.py). Scales are upper bounds: correlated errors that cancel are not
seen to cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.error_budget import TINY, UNIT, of_cases, roundings
from cudal1_compile.judge.oracle.exact_values import STEPS, ExactValues, is_short
from cudal1_compile.judge.oracle.reduction_rules import POSITIONS, contest, position_error, rule_of
from cudal1_compile.judge.oracle.trace import Trace, distance, is_representable, move, operands_of
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Index, Literal, Op, Program, Ref
from cudal1_fx_passes.program.ops import OPS, Kind

_INTEGER_SAFE = {"add", "sub", "mul", "neg", "abs", "relu", "maximum", "minimum", "sum", "amax", "amin", "where"}
_CORRECTLY_ROUNDED = {"add", "sub", "mul"}
_JUMPS = {"floor", "ceil", "round", "trunc", "sign", "remainder", "fmod", "where", "cast", "isnan", "abs"}
_TWO_SIDED = _JUMPS | {
    "maximum",
    "minimum",
    "relu",
    "div",
    "reciprocal",
    "rsqrt",
    "sqrt",
    "log",
    "log2",
    "log1p",
    "pow",
    *("tanh", "sigmoid", "erf"),  # saturated upwards, they still fall
}
_TOGETHER = {"mul", "fma", "where"}  # 0 * 0, or the choice not taken: no operand moved alone shows the error
_POLES = {"div", "reciprocal"}  # between the ends of a divisor's error, where no other probe looks
_PERIODIC = {"sin", "cos"}  # a large error may span whole periods, which no probe sees


def error_of(
    trace: Trace,
    op: Op,
    values: Mapping[str, Tensor],
    errors: Mapping[str, Tensor | None],
    exact_values: ExactValues,
) -> Tensor | None:
    kind = OPS[op.fn].kind
    errors = seen_errors(trace, op, values, errors, exact_values)
    if kind is Kind.IOTA:
        return None
    if kind is Kind.POINTWISE:
        return _pointwise(trace, op, values, errors)
    if all(errors[n] is None for n in operands_of(op)) and op.dtype not in FLOAT_DTYPES:
        return None
    if op.fn in POSITIONS:
        terms = contest(trace, op, values, errors, exact_values.marks)
        _, *best = terms.best()
        return position_error(*terms.rivals(*best))
    rule = rule_of(op)
    return rule.conclude(trace, op, values[op.name], rule.parts(trace, op, values, errors))


def seen_errors(
    trace: Trace,
    op: Op,
    values: Mapping[str, Tensor],
    errors: Mapping[str, Tensor | None],
    exact_values: ExactValues,
) -> Mapping[str, Tensor | None]:
    """The errors of its operands as an operation sees them: a decision knows of none where all hit the same."""
    if op.dtype in FLOAT_DTYPES and op.fn not in STEPS:
        return errors
    return {name: _unless_exact(trace, name, values[name], errors[name], exact_values) for name in operands_of(op)}


def _unless_exact(
    trace: Trace, name: str, value: Tensor, error: Tensor | None, exact_values: ExactValues
) -> Tensor | None:
    """The error of an operand of a decision: none where every order of work hits the same value."""
    producer = trace.program.op.get(name)
    if error is None or producer is None or producer.dtype not in FLOAT_DTYPES:
        return error
    exact = exact_values.sure.get(name)
    if producer.fn in _CORRECTLY_ROUNDED and all(_is_given(trace.program, x) for x in producer.operands):
        exact = is_representable(value, producer.dtype)  # of which the sure ones are some
    if trace.integral is not False and producer.fn in _INTEGER_SAFE:
        whole = (value == value.round()) & (value.abs() * trace.unit(producer.dtype) < 1.0)
        integral = of_cases(trace.integral, value)
        exact = integral & whole if exact is None else exact | (integral & whole)
    return error if exact is None else error.masked_fill(exact, 0.0)


def _has_short_literals(op: Op) -> bool:
    """Whether every order of work with its literals gives the same."""
    return all(is_short(x) for x in op.operands if isinstance(x, Literal))


def _is_given(program: Program, operand: Ref | Literal) -> bool:
    """Whether an operand is the same number in the program's dtype and in float64."""
    if isinstance(operand, Ref):
        return operand.name not in program.op
    return is_short(operand)


# pointwise operations


def _pointwise(
    trace: Trace, op: Op, values: Mapping[str, Tensor], errors: Mapping[str, Tensor | None]
) -> Tensor | None:
    total: Tensor | None = None
    result = values[op.name]
    trace, op, values, errors = _apart(trace, op, values, errors)
    for name in operands_of(op):
        error = errors[name]
        if error is None:
            continue
        if op.fn in _PERIODIC:
            total = error.clamp(max=2.0)
            continue
        squared = sum(isinstance(x, Ref) and x.name == name for x in op.operands) > 1  # a negative one falls
        for sign in (1.0, -1.0) if squared or op.fn in _TWO_SIDED or op.dtype not in FLOAT_DTYPES else (1.0,):
            moved = trace.run(op, {**values, name: move(values[name], error, sign)})
            step = distance(moved, result)
            total = step if total is None else torch.maximum(total, step) if sign < 0 else total + step
        divisor = op.operands[-1]
        if op.fn in _POLES and isinstance(divisor, Ref) and divisor.name == name:
            at_pole = trace.run(op, {**values, name: torch.where(values[name].abs() <= error, 0.0, values[name])})
            total = torch.maximum(total, distance(at_pole, result)) if total is not None else None
    erring = {name: e for name in operands_of(op) if (e := errors[name]) is not None}
    if op.fn in _TOGETHER and total is not None and len(erring) > 1:
        for sign in (1.0, -1.0):
            together = {name: move(values[name], e, sign) for name, e in erring.items()}
            total = torch.maximum(total, distance(trace.run(op, {**values, **together}), result))
    if op.dtype not in FLOAT_DTYPES:
        return total
    rounding = _rounding(trace, op)
    if rounding == 0.0:
        return total
    own = result.abs()
    own.masked_fill_(own == torch.inf, 0.0).mul_(rounding)  # infinity is never rounded
    own.add_(result != 0, alpha=TINY[op.dtype] * trace.magnify)  # may be flushed; an exact zero stays one
    if trace.integral is not False and op.fn in _CORRECTLY_ROUNDED and _has_short_literals(op):
        exact = is_representable(result, op.dtype) & of_cases(trace.integral, result)
        own.masked_fill_(exact if total is None else exact & (total == 0), 0.0)
    return own if total is None else own + total


def _apart(
    trace: Trace, op: Op, values: Mapping[str, Tensor], errors: Mapping[str, Tensor | None]
) -> tuple[Trace, Op, Mapping[str, Tensor], Mapping[str, Tensor | None]]:
    """A value that is read at two places as two values: its errors there do not cancel, as those of `x - x` do."""
    p = trace.program
    operands = list(op.operands)
    first: dict[str, tuple[tuple[str, Index], ...]] = {}
    copies: dict[str, str] = {}
    for k, x in enumerate(operands):
        if isinstance(x, Ref) and errors[x.name] is not None and first.setdefault(x.name, x.access) != x.access:
            copies[f"{x.name}@{k}"] = x.name
            operands[k] = replace(x, name=f"{x.name}@{k}")
    if not copies:
        return trace, op, values, errors
    made = (Op(c, p.value_dtype[name], p.value_axes[name], "cast", (Ref(name),)) for c, name in copies.items())
    changed = replace(op, operands=tuple(operands))
    at = next(i for i, other in enumerate(p.ops) if other.name == op.name)
    program = replace(p, ops=(*p.ops[:at], *made, changed, *p.ops[at + 1 :]))
    values = {**values, **{c: values[name] for c, name in copies.items()}}
    errors = {**errors, **{c: errors[name] for c, name in copies.items()}}
    return replace(trace, program=program), changed, values, errors


def _rounding(trace: Trace, op: Op) -> float:
    if op.fn == "cast":
        source = op.operands[0]
        found = trace.program.value_dtype[source.name] if isinstance(source, Ref) else op.dtype
        if found == op.dtype or (found in UNIT and UNIT[found] >= UNIT[op.dtype] and op.dtype in ("f32", "f64")):
            return 0.0
    return roundings(op.fn) * trace.unit(op.dtype)
