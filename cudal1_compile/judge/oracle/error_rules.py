"""The error rules: how far one operation's result may move, by its operands' errors and by its own rounding.

    (trace, operation, values in float64, their errors) -> error_of() -> the result's error; None: it is exact

Errors are first-order bounds per element. A pointwise operation is probed: run again with each operand moved
by its error, so that every row of the operator table is covered, discontinuities included (a comparison whose
sides lie closer than their errors becomes AMBIGUOUS: error 1 of a bool). Reductions use their own rule with the
growth of error_budget.py. Scales are upper bounds: correlated errors that cancel are not seen to cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.error_budget import (
    ACCUMULATOR,
    TF32_SPREAD,
    TF32_UNIT,
    TINY,
    UNIT,
    Rule,
    growth,
    of_cases,
    roundings,
)
from cudal1_compile.judge.oracle.exact_values import STEPS, ExactValues, is_short
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE, read_terms, run_op
from cudal1_fx_passes.program.ir import ANY, FLOAT_DTYPES, Index, Literal, Op, Program, Ref
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
_GRAIN = 4.0  # multiples of its inverse are summed exactly in any order, as long as they are not too many
_TOGETHER = {"mul", "fma", "where"}  # 0 * 0, or the choice not taken: no operand moved alone shows the error
_POLES = {"div", "reciprocal"}  # between the ends of a divisor's error, where no other probe looks
_NO_MARK = torch.iinfo(torch.int64).min  # no term's own
_PERIODIC = {"sin", "cos"}  # a large error may span whole periods, which no probe sees


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


def error_of(
    trace: Trace,
    op: Op,
    values: Mapping[str, Tensor],
    errors: Mapping[str, Tensor | None],
    exact_values: ExactValues,
) -> Tensor | None:
    kind = OPS[op.fn].kind
    if op.dtype not in FLOAT_DTYPES or op.fn in STEPS:
        errors = {
            name: _unless_exact(trace, name, values[name], errors[name], exact_values) for name in operands_of(op)
        }
    if kind is Kind.IOTA:
        return None
    if kind is Kind.POINTWISE:
        return _pointwise(trace, op, values, errors)
    if all(errors[n] is None for n in operands_of(op)) and op.dtype not in FLOAT_DTYPES:
        return None
    name = op.operands[0].name if isinstance(op.operands[0], Ref) else ""
    if kind is Kind.DOT:
        return _dot(trace, op, values, errors)
    rule = _REDUCTIONS.get(op.fn)
    if not name or (rule is None and op.fn not in ("argmax", "argmin")):
        raise ValueError(f"{op.name}: no error rule for {op.fn}")
    x = values[name]
    error = errors[name]
    error = torch.zeros_like(x, dtype=torch.float64) if error is None else error
    if rule is None:
        return _position(trace, op, values, name, error, exact_values.marks[name])
    return rule(trace, op, values, name, x, error)


def _unless_exact(
    trace: Trace, name: str, value: Tensor, error: Tensor | None, exact_values: ExactValues
) -> Tensor | None:
    """The error of an operand of a decision: none where every order of work hits the same value."""
    producer = trace.program.op.get(name)
    if error is None or producer is None or producer.dtype not in FLOAT_DTYPES:
        return error
    exact = exact_values.sure.get(name)
    if producer.fn in _CORRECTLY_ROUNDED and all(_is_given(trace.program, x) for x in producer.operands):
        exact = _is_representable(value, producer.dtype)  # of which the sure ones are some
    if trace.integral is not False and producer.fn in _INTEGER_SAFE:
        whole = (value == value.round()) & (value.abs() * trace.unit(producer.dtype) < 1.0)
        integral = of_cases(trace.integral, value)
        exact = integral & whole if exact is None else exact | (integral & whole)
    return error if exact is None else error.masked_fill(exact, 0.0)


def _is_representable(value: Tensor, dtype: str) -> Tensor:
    return value == value.to(TORCH_DTYPE[dtype]).double()


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
        exact = _is_representable(result, op.dtype) & of_cases(trace.integral, result)
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


# reductions and scans: (trace, op, values, name of the operand, its value, its error) -> error of the result

_Rule = Callable[[Trace, Op, Mapping[str, Tensor], str, Tensor, Tensor], Tensor]


def _with(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, fn: str = "") -> Tensor:
    """The operation, or another one over the same axes, run on other values of its operand."""
    if fn:
        op = replace(op, fn=fn, operands=op.operands[:1], dtype="f64")
    return trace.run(op, {**values, name: x})


def _sum(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, error: Tensor) -> Tensor:
    """sum, mean, cumsum: operand errors add up; roundings grow with the number of nonzero terms."""
    count = "cumsum" if op.fn == "cumsum" else "sum"
    terms = _with(trace, op, values, name, (x != 0).double(), count)
    magnitude = _with(trace, op, values, name, x.double().abs(), op.fn)
    carried = _with(trace, op, values, name, error, op.fn)
    unit = trace.accumulator(op.dtype)
    result = values[op.name]
    own = result.abs() * trace.unit(op.dtype)
    summing = unit * growth(terms, trace.coherent) * magnitude
    if trace.integral is not False and op.fn != "mean":
        split = _with(trace, op, values, name, (_GRAIN * x != (_GRAIN * x).round()).double(), op.fn)
        exact = (split + carried == 0) & (_GRAIN * unit * magnitude < 1.0) & of_cases(trace.integral, carried)
        summing = summing.masked_fill(exact, 0.0)
        own = own.masked_fill(exact & _is_representable(result, op.dtype), 0.0)
    return carried + summing + own


def _extreme(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, error: Tensor) -> Tensor:
    """Between the extremes of both ends: the error of a masked element, however large, is not the maximum's."""
    found = values[op.name]
    ends = (_with(trace, op, values, name, x.double() + sign * error) for sign in (1.0, -1.0))
    return torch.maximum(*(distance(end, found) for end in ends))


def _product(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, error: Tensor) -> Tensor:
    size = x.double().abs()
    plain = _with(trace, op, values, name, size, op.fn)
    moved = _with(trace, op, values, name, size + error, op.fn)
    count = "cumsum" if op.fn == "cumprod" else "sum"
    terms = _with(trace, op, values, name, torch.ones_like(size), count)
    unit = trace.accumulator(op.dtype)
    flushed = (plain != 0) * (TINY.get(op.dtype, 0.0) * trace.magnify)
    return distance(moved, plain) + plain * (unit * growth(terms, True) + trace.unit(op.dtype)) + flushed


def _variance(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, error: Tensor) -> Tensor:
    """Deviations err by their operand's error, by one rounding and by the mean's error; then Cauchy-Schwarz."""
    size = x.double().abs()
    unit = trace.accumulator(op.dtype)
    terms = _with(trace, op, values, name, torch.ones_like(size), "sum")
    grown = unit * growth(terms, trace.coherent)
    mean_error = _with(trace, op, values, name, error, "mean") + grown * _with(
        trace, op, values, name, size, "mean"
    )
    local = _with(trace, op, values, name, (error + unit * size).square(), "mean").sqrt()
    deviation = local + mean_error
    found = values[op.name].abs()
    correction = op.operands[1].value if isinstance(op.operands[1], Literal) else 1
    ratio = terms / (terms - float(correction)).clamp_min(1.0)
    return ratio * (2.0 * found.sqrt() * deviation + deviation.square()) + found * (grown + trace.unit(op.dtype))


def _logsumexp(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, error: Tensor) -> Tensor:
    moved = _with(trace, op, values, name, x + error)
    terms = _with(trace, op, values, name, torch.ones_like(error), "sum")
    own = trace.accumulator(op.dtype) * (growth(terms, trace.coherent) + 4.0)
    return distance(moved, values[op.name]) + own + values[op.name].abs() * roundings(op.fn) * trace.unit(op.dtype)


def _position(
    trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, error: Tensor, marks: Tensor
) -> Tensor:
    """argmax, argmin: ambiguous (any place) where the errors of the best and of one unlike it meet."""
    terms, inside, dims = trace.terms(op, values)
    reach, _, _ = trace.terms(op, {**values, name: error})
    marks, _, _ = trace.terms(op, {**values, name: marks})
    terms = terms.double() if op.fn == "argmax" else -terms.double()
    reach = reach.masked_fill(terms.isinf(), 0.0)
    if inside is not None:
        terms = torch.where(inside, terms, -torch.inf)
        reach = torch.where(inside, reach, 0.0)
    rivals = terms + reach >= (terms - reach).amax(dims, keepdim=True)
    rivals = rivals if inside is None else rivals & inside
    best = torch.where(terms == terms.amax(dims, keepdim=True), marks, _NO_MARK).amax(dims, keepdim=True)
    unsure = (rivals & (marks != best)).any(dims) & (rivals & (reach > 0)).any(dims)
    return torch.where(unsure, 2.0**62, 0.0)


def _decision(trace: Trace, op: Op, values: Mapping[str, Tensor], name: str, x: Tensor, error: Tensor) -> Tensor:
    """any, all: ambiguous where the ambiguous operands decide."""
    unsure = error > 0
    lowest = _with(trace, op, values, name, x.bool() & ~unsure)
    highest = _with(trace, op, values, name, x.bool() | unsure)
    return (lowest ^ highest).double()


_REDUCTIONS: dict[str, _Rule] = {
    "sum": _sum,
    "mean": _sum,
    "cumsum": _sum,
    "amax": _extreme,
    "amin": _extreme,
    "prod": _product,
    "cumprod": _product,
    "var": _variance,
    "logsumexp": _logsumexp,
    "any": _decision,
    "all": _decision,
}


def _dot(trace: Trace, op: Op, values: Mapping[str, Tensor], errors: Mapping[str, Tensor | None]) -> Tensor:
    names = [x.name for x in op.operands if isinstance(x, Ref)]
    size = {n: values[n].double().abs() for n in names}
    plain = trace.run(op, {**values, **size})
    moved = {n: size[n] + e for n in names if (e := errors[n]) is not None}
    carried = trace.run(op, {**values, **size, **moved}) - plain if moved else torch.zeros_like(plain)
    count = float(trace.program.size(op.over))
    terms = torch.full([1] * plain.dim(), count, device=trace.device, dtype=torch.float64)
    unit = trace.accumulator(op.dtype)
    result = values[op.name]
    own = result.abs() * trace.unit(op.dtype)
    summing = unit * growth(terms, trace.coherent) * plain
    if op.fn == "dot_tf32":  # both factors of each term are rounded; unlike terms average it out
        squares = trace.run(op, {**values, **{n: x.square() for n, x in size.items()}})
        # of normal factors both are the same; where few terms are there, or few are large, the second is larger
        unlike = TF32_SPREAD * torch.maximum(plain / count**0.5, 2.0 / math.pi * squares.sqrt())
        spread = torch.where(of_cases(trace.coherent, plain), plain, torch.minimum(plain, unlike))
        own = own + 2.0 * TF32_UNIT * spread
    if trace.integral is not False and all(_holds_integers(trace.program, n) for n in names):
        exact = (unit * plain < 1.0) & of_cases(trace.integral, plain)
        summing = summing.masked_fill(exact, 0.0)
        own = own.masked_fill(exact & _is_representable(result, op.dtype), 0.0)
    return carried + summing + own


def _holds_integers(program: Program, name: str) -> bool:
    """Whether a value is an input of which small integers are among the tests."""
    return any(i.name == name and i.domain == ANY and i.dtype in FLOAT_DTYPES for i in program.inputs)
