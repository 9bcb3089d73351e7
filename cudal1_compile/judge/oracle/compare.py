"""Compares a candidate's output with the oracle: every element, and the whole in the root mean square.

    program + inputs -> expect() -> one Expected an output -> measure(got) -> refusal() or the share of budget used

Float outputs are held against float64 within the budget. Booleans and integers equal the native reference or
an oracle (one keeps what the native one rounds: an argmax over bf16 has ties that float64 does not have; one
rounds once, where something is decided); where rounding alone decides (the bounds call the element ambiguous)
another value is exempt for at most EXEMPT_SHARE of the elements. NaN and infinities must stand where the native
reference or the oracle has them. Measuring leaves its figures on the device; reading them is the one
synchronisation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, isnan, sqrt

import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import Bounded, bounded_outputs
from cudal1_compile.judge.oracle.error_budget import (
    AMBIGUOUS_SHARE,
    EXEMPT_SHARE,
    LARGEST,
    MAX_NONFINITE,
    REFERENCE_FACTOR,
    RMS_LIMIT,
    SAFETY,
    SPECIAL_RTOL,
    UNIT,
)
from cudal1_fx_passes.program.evaluate import DTYPE_NAME, evaluate
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Program

ROUGHLY = {"f64": 1e-4, "f32": 0.02, "f16": 0.05, "bf16": 0.1}
TINIEST = 1e-6  # is allowed where all is zero but for rounding
_FINITE = 1e308  # the largest tolerance that is one
_NAN, _INF = 1e250, 1e300  # for what float32 and half types do not have


@dataclass(frozen=True, slots=True)
class Expected:
    """What one output must be. Tensors in the output's memory order."""

    name: str
    want: Tensor  # float64 for float outputs, else the native reference
    # float64, absolute; of a discrete output over 0 where ambiguous; infinite: anything is right; None: exact
    tolerance: Tensor | None
    # right as well: the native reference where not finite; of a discrete output the oracles, along one more dim
    other: Tensor | None
    nonfinite_share: float  # of the native reference
    rms_limit: float = RMS_LIMIT  # share of the tolerance

    @property
    def discrete(self) -> bool:
        return not self.want.is_floating_point()

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (self.want, self.tolerance, self.other) if t is not None]

    @property
    def size_bytes(self) -> int:
        return sum(t.nbytes for t in self.tensors)


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one comparison: wrong elements, worst and rms share of the budget, exempt differences."""

    wrong: int
    worst: float
    rms: float
    exempt: int
    ambiguous: int  # elements that may be exempt
    count: int


@torch.inference_mode()
def expect(
    program: Program,
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int] | None = None,
    coherent: bool = False,
    integral: bool = False,
) -> list[Expected]:
    """Runs the native reference and the float64 oracle. `coherent`, `integral`: as in bounds.bounded_outputs."""
    native = evaluate(program, inputs, sizes)
    oracle = bounded_outputs(program, inputs, sizes, coherent, integral)
    return [
        expected_of(out.name, program.output_dtype(out), n[None], o.of_one)[0]
        for out, n, o in zip(program.outputs, native, oracle, strict=True)
    ]


@torch.inference_mode()
def expect_roughly(
    program: Program,
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int] | None = None,
    shares: Mapping[int, float] | None = None,
) -> list[Expected]:
    """The native reference alone. shares: by output, as in `roughly`."""
    results = enumerate(zip(program.outputs, evaluate(program, inputs, sizes), strict=True))
    return [
        roughly(out.name, program.output_dtype(out), native, None if shares is None else shares[i])
        for i, (out, native) in results
    ]


def roughly(name: str, dtype: str, native: Tensor, share: float | None = None) -> Expected:
    """The native reference, give or take a share of each value's size, ROUGHLY at most or where none is given."""
    if dtype not in ROUGHLY:
        return Expected(name, native, None, None, 0.0)
    want, special = native.double(), ~native.isfinite()
    size = _sizes(want.abs().masked_fill_(special, 0.0))
    most = ROUGHLY[dtype]
    tolerance = size.mul_(most).add_(TINIEST) if share is None else size.mul_(min(share, most))
    return Expected(name, want, tolerance, native if bool(special.any()) else None, 0.0, inf)


def usual_share(expected: Expected) -> float:
    """The root mean square of the tolerance over that of the values' sizes; 0 of what is exact. Synchronises.

    Where a tolerance is no smaller than the value anything is right, which says nothing of the others.
    """
    if expected.tolerance is None or expected.discrete:
        return 0.0
    size = _sizes(expected.want.abs().nan_to_num_(0.0, 0.0))
    tolerance = expected.tolerance.masked_fill(~(expected.tolerance < size), 0.0)
    return float((torch.linalg.vector_norm(tolerance) / torch.linalg.vector_norm(size)).nan_to_num(0.0))


def _sizes(magnitudes: Tensor) -> Tensor:
    """Those and the root mean square of all, in place."""
    return magnitudes.add_(magnitudes.square().mean().sqrt())


def expected_of(name: str, dtype: str, native: Tensor, oracle: Bounded) -> list[Expected]:
    """What one output must be, a case a row, from the native reference and the oracle with its error scale."""
    if dtype in FLOAT_DTYPES:
        return expected_floats(name, dtype, native, native, oracle, SAFETY)
    error = None if oracle.error is None else oracle.error.double().clamp(max=_FINITE)
    if oracle.free is not None:
        error = torch.zeros_like(oracle.value, dtype=torch.float64) if error is None else error
        error = error.masked_fill(oracle.free, inf)
    right = [] if error is None and oracle.decided is None else [oracle.value]
    right += [] if oracle.decided is None else [oracle.decided]
    other = torch.stack([x.to(native.dtype) for x in right], -1) if right else None
    return [
        Expected(name, x, None if error is None else error[i], None if other is None else other[i], 0.0)
        for i, x in enumerate(native)
    ]


def expected_floats(
    name: str,
    dtype: str,
    native: Tensor,
    stored: Tensor,
    oracle: Bounded,
    safety: float,
    rounding: Callable[[Tensor], Tensor] | None = None,
    rms_limit: float = RMS_LIMIT,
) -> list[Expected]:
    """As expected_of.

    stored: the native reference in the output's dtype. rounding: of numbers of a size, added to the tolerance.
    """
    want = oracle.value
    nonfinite = ~stored.isfinite()
    special = nonfinite | ~(want.abs() <= LARGEST[dtype])
    if oracle.free is not None:
        special = special | oracle.free
    # read together: each reading synchronises with the device
    counts = torch.stack([x.reshape(len(x), -1).sum(1) for x in (nonfinite, special)]).tolist()
    tolerance = (native.double() - want).abs_().masked_fill_(special, 0.0).mul_(REFERENCE_FACTOR)
    if oracle.error is not None:
        # the oracle of doubles rounds as a kernel does
        tolerance.add_(oracle.error, alpha=2 * safety if dtype == "f64" else safety)
    if rounding is not None:
        tolerance = tolerance + rounding(want.abs() + tolerance)
    tolerance = tolerance.clamp(max=_FINITE)
    if oracle.free is not None:
        tolerance = tolerance.masked_fill(oracle.free, inf)
    rows = zip(want, tolerance, stored, *counts, strict=True)
    return [
        Expected(name, w, t, s if bad else None, odd / max(1, s.numel()), rms_limit) for w, t, s, odd, bad in rows
    ]


def usable(expected: Sequence[Expected]) -> bool:
    """Whether the reference is finite enough for its inputs to be used."""
    return all(e.nonfinite_share <= MAX_NONFINITE for e in expected)


def free_where_beyond(expected: Expected) -> Expected:
    """Where too much of the reference is not finite, anything is right that is beyond the output's dtype.

    Also where a sum's terms are, as its tolerance tells: in another order it leaves the dtype.
    """
    if expected.nonfinite_share <= MAX_NONFINITE:
        return expected
    assert expected.tolerance is not None and expected.other is not None, "discrete outputs are finite"
    dtype = DTYPE_NAME[expected.other.dtype]
    size = expected.want.abs() + expected.tolerance / UNIT[dtype]
    within = expected.other.isfinite() & (size <= LARGEST[dtype])
    return replace(expected, tolerance=expected.tolerance.masked_fill(~within, inf))


def measure(got: Tensor, expected: Expected) -> Tensor:
    """Four float64 figures on the device: right elements, worst share, norm of the shares, exempt differences.

    Of a discrete output the third is how many elements are ambiguous.
    """
    return measure_all(got[None], expected)[0]


def measure_all(got: Tensor, expected: Expected) -> Tensor:
    """Figures of several results, a row each, against one expectation or as many as `stack_expected` joined.

    Each operation is a launch, of which a trial has many: what can be done with the figures is left to `read`.
    """
    if got.numel() == 0:
        return torch.zeros(len(got), 4, dtype=torch.float64, device=got.device)
    if expected.discrete:
        return _measure_discrete(got, expected)
    assert expected.tolerance is not None
    wide = got.double()
    share = (wide - expected.want).abs_().div_(expected.tolerance)
    # 0 / 0 is an exact element that is right; a NaN in what was got stays NaN and counts as wrong
    share.masked_fill_(wide == expected.want, 0.0)
    if expected.other is not None:
        share.masked_fill_(_same_special(wide, got.dtype, expected), 0.0)
    share = share.reshape(len(got), -1)
    right = (share <= 1.0).sum(1, dtype=torch.float64)
    return torch.stack([right, share.amax(1), torch.linalg.vector_norm(share, dim=1), right], 1)


def stack_expected(wanted: Sequence[Expected]) -> Expected | None:
    """One expectation of several results of the same shape; None where they are of different kinds."""
    first = wanted[0]
    if len({(e.want.shape, e.want.dtype, e.tolerance is None) for e in wanted}) > 1:
        return None
    tolerances = [e.tolerance for e in wanted if e.tolerance is not None]
    others = [e.other for e in wanted if e.other is not None]
    if first.discrete and 0 < len(others) < len(wanted):
        return None
    other = None
    if others:  # a case that has none is finite, and any finite number says that nothing is special
        finite = torch.zeros_like(others[0])
        other = torch.stack([finite if e.other is None else e.other for e in wanted])
    tolerance = torch.stack(tolerances) if tolerances else None
    return replace(first, want=torch.stack([e.want for e in wanted]), tolerance=tolerance, other=other)


def _same_special(got: Tensor, dtype: torch.dtype, expected: Expected) -> Tensor:
    """True where the reference or oracle is not finite and the candidate is like either, or anything is right.

    got: in float64. dtype: of the output. What is not a number becomes one that is far from all others.
    """
    assert expected.other is not None and expected.tolerance is not None
    either = torch.stack([expected.other, expected.want.to(dtype)]).double()
    if either.dim() == got.dim():  # one expectation of several results
        either = either[:, None]
    if dtype == torch.float64:
        either = either.expand(2, *got.shape)
        alike = torch.isclose(got.expand_as(either), either, SPECIAL_RTOL, 0.0, equal_nan=True)
    else:
        got, rights = (x.nan_to_num(_NAN, _INF, -_INF) for x in (got, either))
        alike = (got - rights).abs_() <= rights.abs_().mul_(SPECIAL_RTOL)
    # the same where that is not finite, close where only the other one is not
    special = (either - either).isnan().any(0)
    return alike.any(0).logical_and_(special).logical_or_(expected.tolerance == inf)


def _differs(got: Tensor, expected: Expected) -> Tensor:
    differs = got != expected.want
    return differs if expected.other is None else differs & (got[..., None] != expected.other).all(-1)


def _measure_discrete(got: Tensor, expected: Expected) -> Tensor:
    differs = _differs(got, expected)
    exempt = ambiguous = torch.zeros_like(differs)
    if expected.tolerance is not None:
        exempt = differs & ((got.double() - expected.want.double()).abs_() <= expected.tolerance)
        ambiguous = ((expected.tolerance > 0) & (expected.tolerance < inf)).expand_as(differs)
    counts = (~(differs & ~exempt), exempt & ambiguous, ambiguous)
    right, exempted, open_ = (x.reshape(len(got), -1).sum(1, dtype=torch.float64) for x in counts)
    return torch.stack([right, exempted, open_, exempted], 1)


def read(stats: Tensor, expected: Expected) -> Measured:
    """Synchronises and returns the figures as numbers."""
    return measured(stats.tolist(), expected)


def measured(figures: Sequence[float], expected: Expected) -> Measured:
    """What the figures of one result say."""
    right, worst, norm, exempt = figures
    count = expected.want.numel()
    wrong = count - int(right)
    if expected.discrete:
        return Measured(wrong, float(wrong), 0.0, int(exempt), int(norm), count)
    return Measured(wrong, inf if isnan(worst) else worst, norm / sqrt(max(1, count)), 0, 0, count)


def why_wrong(got: Tensor, expected: Expected) -> str | None:
    """Why an output is not accepted; None where it is right. Synchronises."""
    return refusal(read(measure(got, expected), expected), got, expected)


def refusal(measured: Measured, got: Tensor, expected: Expected, coherent: bool = False) -> str | None:
    """Why an output is not accepted, naming the first wrong element; None where it is right.

    coherent: inputs have many equal numbers, so that much is nearly equal.
    """
    if measured.wrong:
        return _first_wrong(measured, got, expected)
    if expected.discrete:
        near = AMBIGUOUS_SHARE * measured.ambiguous if coherent else 0.0
        allowed = ceil(max(EXEMPT_SHARE * measured.count, near))
        if measured.exempt > allowed:
            return (
                f"{expected.name}: {measured.exempt} of {measured.count} elements differ where rounding decides, "
                f"at most {allowed} may"
            )
        return None
    if not measured.rms <= expected.rms_limit:
        return (
            f"{expected.name}: every element is within its tolerance, but the root mean square uses "
            f"{measured.rms:.2f} of it, at most {expected.rms_limit} may be: the arithmetic is less precise than "
            "its dtype"
        )
    return None


def _first_wrong(measured: Measured, got: Tensor, expected: Expected) -> str:
    if expected.discrete:
        differs = _differs(got, expected)
        if expected.tolerance is not None:
            differs &= ~((got.double() - expected.want.double()).abs() <= expected.tolerance)
        allowance = ""
    else:
        assert expected.tolerance is not None
        share = (got.double() - expected.want).abs() / expected.tolerance
        differs = ~((share <= 1.0) | (got == expected.want))
        if expected.other is not None:
            differs &= ~_same_special(got.double(), got.dtype, expected)
    place = torch.nonzero(differs)[0].tolist() if got.dim() else []
    at = tuple(place)
    if not expected.discrete:
        assert expected.tolerance is not None
        allowance = f" within {expected.tolerance[at].item():.3g}"
    where = f"{expected.name}{place}" if place else expected.name
    return (
        f"{where} is {_show(got[at])}, expected {_show(expected.want[at])}{allowance}; "
        f"{measured.wrong} of {measured.count} elements are wrong"
    )


def _show(x: Tensor) -> str:
    value = x.item()
    return f"{value:.9g}" if isinstance(value, float) else str(value)
