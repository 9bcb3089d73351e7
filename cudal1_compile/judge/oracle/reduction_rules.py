"""The error rules of reductions, scans and sums of products, each in two steps.

    parts() -> what the terms give (how many, of what size, what they carry) -> conclude() -> the result's error

Parts are joined as MERGES says: those of two halves of the terms give those of all, so that a reduction may be
taken chunk by chunk (chunks.py) and errs by the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.error_budget import TF32_SPREAD, TF32_UNIT, TINY, growth, of_cases, roundings
from cudal1_compile.judge.oracle.trace import Trace, distance, is_representable
from cudal1_fx_passes.program.ir import ANY, FLOAT_DTYPES, Literal, Op, Program, Ref

_GRAIN = 4.0  # multiples of its inverse are summed exactly in any order, as long as they are not too many
POSITIONS = ("argmax", "argmin")
_NO_MARK = torch.iinfo(torch.int64).min  # no term's own

Values = Mapping[str, Tensor]
Errors = Mapping[str, Tensor | None]
Parts = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class ReductionRule:
    """parts: by what the terms are. conclude: (trace, operation, its value, parts) -> its error.

    merges: how each part is joined, as the operation of that name over its terms would; "mean": weighed by terms.
    """

    parts: Callable[[Trace, Op, Values, Errors], Parts]
    conclude: Callable[[Trace, Op, Tensor, Parts], Tensor]
    merges: Mapping[str, str]


def rule_of(op: Op) -> ReductionRule:
    """Raises ValueError for an operation that has none."""
    if op.fn not in _RULES:
        raise ValueError(f"{op.name}: no error rule for {op.fn}")
    return _RULES[op.fn]


def _operand(op: Op, values: Values, errors: Errors) -> tuple[str, Tensor, Tensor]:
    """Its name, value and error."""
    source = op.operands[0]
    assert isinstance(source, Ref)
    x, error = values[source.name], errors[source.name]
    return source.name, x, torch.zeros_like(x, dtype=torch.float64) if error is None else error


def run_with(trace: Trace, op: Op, values: Values, name: str, x: Tensor, fn: str = "") -> Tensor:
    """The operation, or another one over the same axes, run on other values of its operand."""
    if fn:
        op = replace(op, fn=fn, operands=op.operands[:1], dtype="f64")
    return trace.run(op, {**values, name: x})


def _sum_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    """sum, mean, cumsum: operand errors add up; roundings grow with the number of nonzero terms."""
    name, x, error = _operand(op, values, errors)
    parts = {
        "terms": run_with(trace, op, values, name, (x != 0).double(), "cumsum" if op.fn == "cumsum" else "sum"),
        "magnitude": run_with(trace, op, values, name, x.double().abs(), op.fn),
        "carried": run_with(trace, op, values, name, error, op.fn),
    }
    if trace.integral is not False and op.fn != "mean":
        coarse = _GRAIN * x
        parts["split"] = run_with(trace, op, values, name, (coarse != coarse.round()).double(), op.fn)
    return parts


def _sum(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    carried, magnitude = parts["carried"], parts["magnitude"]
    unit = trace.accumulator(op.dtype)
    own = result.abs() * trace.unit(op.dtype)
    summing = unit * growth(parts["terms"], trace.coherent) * magnitude
    if (split := parts.get("split")) is not None:
        exact = (split + carried == 0) & (_GRAIN * unit * magnitude < 1.0) & of_cases(trace.integral, carried)
        summing = summing.masked_fill(exact, 0.0)
        own = own.masked_fill(exact & is_representable(result, op.dtype), 0.0)
    return carried + summing + own


def _extreme_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    """Between the extremes of both ends: the error of a masked element, however large, is not the maximum's."""
    name, x, error = _operand(op, values, errors)
    ends = (("up", 1.0), ("down", -1.0))
    return {end: run_with(trace, op, values, name, x.double() + sign * error) for end, sign in ends}


def _extreme(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    return torch.maximum(*(distance(end, result) for end in parts.values()))


def _product_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    name, x, error = _operand(op, values, errors)
    size = x.double().abs()
    count = "cumsum" if op.fn == "cumprod" else "sum"
    return {
        "plain": run_with(trace, op, values, name, size, op.fn),
        "moved": run_with(trace, op, values, name, size + error, op.fn),
        "terms": run_with(trace, op, values, name, torch.ones_like(size), count),
    }


def _product(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    plain = parts["plain"]
    grown = trace.accumulator(op.dtype) * growth(parts["terms"], True)
    flushed = (plain != 0) * (TINY.get(op.dtype, 0.0) * trace.magnify)
    return distance(parts["moved"], plain) + plain * (grown + trace.unit(op.dtype)) + flushed


def _variance_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    name, x, error = _operand(op, values, errors)
    size = x.double().abs()
    unit = trace.accumulator(op.dtype)
    return {
        "terms": run_with(trace, op, values, name, torch.ones_like(size), "sum"),
        "error": run_with(trace, op, values, name, error, "mean"),
        "size": run_with(trace, op, values, name, size, "mean"),
        "square": run_with(trace, op, values, name, (error + unit * size).square(), "mean"),
    }


def _variance(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    """Deviations err by their operand's error, by one rounding and by the mean's error; then Cauchy-Schwarz."""
    terms = parts["terms"]
    grown = trace.accumulator(op.dtype) * growth(terms, trace.coherent)
    mean_error = parts["error"] + grown * parts["size"]
    deviation = parts["square"].sqrt() + mean_error
    found = result.abs()
    correction = op.operands[1].value if isinstance(op.operands[1], Literal) else 1
    ratio = terms / (terms - float(correction)).clamp_min(1.0)
    return ratio * (2.0 * found.sqrt() * deviation + deviation.square()) + found * (grown + trace.unit(op.dtype))


def _logsumexp_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    name, x, error = _operand(op, values, errors)
    return {
        "moved": run_with(trace, op, values, name, x + error),
        "terms": run_with(trace, op, values, name, torch.ones_like(error), "sum"),
    }


def _logsumexp(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    own = trace.accumulator(op.dtype) * (growth(parts["terms"], trace.coherent) + 4.0)
    return distance(parts["moved"], result) + own + result.abs() * roundings(op.fn) * trace.unit(op.dtype)


def _decision_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    """any, all: ambiguous where the ambiguous operands decide."""
    name, x, error = _operand(op, values, errors)
    unsure = error > 0
    return {
        "lowest": run_with(trace, op, values, name, x.bool() & ~unsure),
        "highest": run_with(trace, op, values, name, x.bool() | unsure),
    }


def _decision(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    return (parts["lowest"] ^ parts["highest"]).double()


def _dot_parts(trace: Trace, op: Op, values: Values, errors: Errors) -> Parts:
    names = [x.name for x in op.operands if isinstance(x, Ref)]
    size = {n: values[n].double().abs() for n in names}
    parts = {"plain": trace.run(op, {**values, **size})}
    moved = {n: size[n] + e for n in names if (e := errors[n]) is not None}
    if moved:
        parts["carried"] = trace.run(op, {**values, **size, **moved}) - parts["plain"]
    if op.fn == "dot_tf32":
        parts["squares"] = trace.run(op, {**values, **{n: x.square() for n, x in size.items()}})
    return parts


def _dot(trace: Trace, op: Op, result: Tensor, parts: Parts) -> Tensor:
    plain = parts["plain"]
    carried = parts["carried"] if "carried" in parts else torch.zeros_like(plain)
    count = float(trace.program.size(op.over))
    terms = torch.full([1] * plain.dim(), count, device=trace.device, dtype=torch.float64)
    unit = trace.accumulator(op.dtype)
    own = result.abs() * trace.unit(op.dtype)
    summing = unit * growth(terms, trace.coherent) * plain
    if "squares" in parts:  # both factors of each term are rounded; unlike terms average it out
        # of normal factors both are the same; where few terms are there, or few are large, the second is larger
        unlike = TF32_SPREAD * torch.maximum(plain / count**0.5, 2.0 / math.pi * parts["squares"].sqrt())
        spread = torch.where(of_cases(trace.coherent, plain), plain, torch.minimum(plain, unlike))
        own = own + 2.0 * TF32_UNIT * spread
    if trace.integral is not False and all(
        _holds_integers(trace.program, x.name) for x in op.operands if isinstance(x, Ref)
    ):
        exact = (unit * plain < 1.0) & of_cases(trace.integral, plain)
        summing = summing.masked_fill(exact, 0.0)
        own = own.masked_fill(exact & is_representable(result, op.dtype), 0.0)
    return carried + summing + own


def _holds_integers(program: Program, name: str) -> bool:
    """Whether a value is an input of which small integers are among the tests."""
    return any(i.name == name and i.domain == ANY and i.dtype in FLOAT_DTYPES for i in program.inputs)


_OF_TERMS = {"terms": "sum", "magnitude": "sum", "carried": "sum", "split": "sum"}
_MEANS = {"magnitude": "mean", "carried": "mean"}
_SUM = ReductionRule(_sum_parts, _sum, _OF_TERMS)
_PRODUCT = ReductionRule(_product_parts, _product, {"plain": "prod", "moved": "prod", "terms": "sum"})
_DEVIATIONS = {"terms": "sum", "error": "mean", "size": "mean", "square": "mean"}
_VARIANCE = ReductionRule(_variance_parts, _variance, _DEVIATIONS)
_LOGSUMEXP = ReductionRule(_logsumexp_parts, _logsumexp, {"moved": "logsumexp", "terms": "sum"})
_DOT = ReductionRule(_dot_parts, _dot, {"plain": "sum", "carried": "sum", "squares": "sum"})
_RULES: dict[str, ReductionRule] = {
    "sum": _SUM,
    "cumsum": _SUM,
    "mean": replace(_SUM, merges=_OF_TERMS | _MEANS),
    "prod": _PRODUCT,
    "cumprod": _PRODUCT,
    "var": _VARIANCE,
    "logsumexp": _LOGSUMEXP,
    "dot": _DOT,
    "dot_tf32": _DOT,
    **{fn: ReductionRule(_extreme_parts, _extreme, {"up": fn, "down": fn}) for fn in ("amax", "amin")},
    **{fn: ReductionRule(_decision_parts, _decision, {"lowest": fn, "highest": fn}) for fn in ("any", "all")},
}


# argmax and argmin: ambiguous (any place) where the errors of the best and of one unlike it meet


@dataclass(frozen=True, slots=True)
class Contest:
    """Terms of an argmax, or of an argmin with their signs turned, how far they may be off, and their marks."""

    terms: Tensor
    reach: Tensor
    marks: Tensor
    inside: Tensor | None
    dims: tuple[int, ...]

    def best(self) -> tuple[Tensor, Tensor, Tensor]:
        """The largest term, the least that the best may be, and the largest one's mark."""
        top = self.terms.amax(self.dims, keepdim=True)
        mark = torch.where(self.terms == top, self.marks, _NO_MARK).amax(self.dims)
        return top.squeeze(self.dims), (self.terms - self.reach).amax(self.dims), mark

    def rivals(self, least: Tensor, mark: Tensor) -> tuple[Tensor, Tensor]:
        """Of what may be the best: whether one is unlike it, and whether one may be off."""
        for dim in sorted(self.dims):
            least, mark = least.unsqueeze(dim), mark.unsqueeze(dim)
        found = self.terms + self.reach >= least
        found = found if self.inside is None else found & self.inside
        unlike, erring = found & (self.marks != mark), found & (self.reach > 0)
        return unlike.any(self.dims), erring.any(self.dims)


def joined_best(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Contest.best() of the terms of both."""
    top = torch.maximum(a[0], b[0])
    marks = (torch.where(x[0] == top, x[2], _NO_MARK) for x in (a, b))
    return top, torch.maximum(a[1], b[1]), torch.maximum(*marks)


def contest(trace: Trace, op: Op, values: Values, errors: Errors, marks: Values) -> Contest:
    name, _, error = _operand(op, values, errors)
    terms, inside, dims = trace.terms(op, values)
    reach, _, _ = trace.terms(op, {**values, name: error})
    own, _, _ = trace.terms(op, {**values, name: marks[name]})
    terms = terms.double() if op.fn == "argmax" else -terms.double()
    reach = reach.masked_fill(terms.isinf(), 0.0)
    if inside is not None:
        terms = torch.where(inside, terms, -torch.inf)
        reach = torch.where(inside, reach, 0.0)
    return Contest(terms, reach, own, inside, dims)


def position_error(unlike: Tensor, erring: Tensor) -> Tensor:
    """From Contest.rivals()."""
    return torch.where(unlike & erring, 2.0**62, 0.0)
