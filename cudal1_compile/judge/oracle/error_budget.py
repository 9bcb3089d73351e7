"""The error budget: how far an honest kernel's result may lie from the float64 oracle. One table, one place.

Each operation may add a few unit roundoffs of its own dtype; a sum of n terms may add them in any order. What
that amounts to at each element of an output is the SCALE (computed in bounds.py). A result may use

    SAFETY * scale + REFERENCE_FACTOR * (the native reference's own error)

at each element, and in the root mean square over an output RMS_LIMIT of the scale, or REFERENCE_FACTOR times
what the native reference uses of it. A kernel that rounds to a narrower format than the program's is orders
of magnitude outside: f32 against TF32 is 2^13 in the unit roundoff.
"""

from __future__ import annotations

import torch
from torch import Tensor

REFERENCE_FACTOR = 4.0
SAFETY = 1.5
# in place of SAFETY for f32 within half types (f32_accumulation.py): fast intrinsics are fine there
F32_ACCUMULATION_SAFETY = 16 * SAFETY
RMS_LIMIT = 0.8
EXEMPT_SHARE = 1e-3  # of the elements of a discrete output, where rounding alone may decide
# of those, where inputs have many equal numbers: operands truncated to TF32 decide up to 19% otherwise
AMBIGUOUS_SHARE = 0.25
SPECIAL_RTOL = 2.0**-6  # where the oracle or the native reference is not finite, from the other one
MAX_NONFINITE = 1e-2  # share of a reference's elements; above it the inputs are changed

TF32_UNIT = 2.0**-11
TF32_SPREAD = 4.0  # six standard deviations of a mean of roundings, SAFETY included
UNIT = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11, "f64": 2.0**-53}
TINY = {"f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-24, "f64": 2.0**-1022}  # may be flushed to zero
LARGEST = {"f32": 3.4028234e38, "bf16": 3.3895313e38, "f16": 65504.0, "f64": 1.7976931e308}
ACCUMULATOR = {"f32": UNIT["f32"], "bf16": UNIT["f32"], "f16": UNIT["f32"], "f64": UNIT["f64"]}

# rounding errors of one operation in unit roundoffs of its dtype; what is not named is rounded once
_EXACT = ("neg", "abs", "sign", "relu", "floor", "ceil", "round", "trunc", "maximum", "minimum", "where")
_ROUNDINGS = (
    dict.fromkeys(_EXACT, 0.0)
    | dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tanh", "erf"), 4.0)
    | dict.fromkeys(("rsqrt", "reciprocal", "div"), 3.0)
    | {"sigmoid": 6.0, "pow": 16.0, "fma": 2.0, "logsumexp": 8.0, "amax": 0.0, "amin": 0.0, "cast": 1.0}
)

Rule = bool | Tensor  # whether something holds; a tensor: for each of several cases, along the first dim


def roundings(fn: str) -> float:
    """Unit roundoffs that one application of an operation may add."""
    return _ROUNDINGS.get(fn, 1.0)


def growth(terms: Tensor, coherent: Rule) -> Tensor:
    """Unit roundoffs, relative to the sum of magnitudes, that a sum of `terms` nonzero terms may add.

    Roundings of unlike terms behave as a random walk. Those of equal terms (`coherent`) all go one way within a
    binade: a sequential sum in one thread stays legal up to 16384 terms, longer ones in several accumulators.
    """
    walk = torch.sqrt(terms)
    if coherent is False:
        return 4.0 + walk
    one_way = torch.minimum(terms / 2.0, 64.0 * walk)
    return 4.0 + (one_way if coherent is True else torch.where(of_cases(coherent, terms), one_way, walk))


def of_cases(rule: Rule, like: Tensor) -> Tensor:
    """A rule as a tensor that broadcasts against values."""
    if isinstance(rule, bool):
        return torch.full([1] * like.dim(), rule, device=like.device)
    return rule.view(-1, *[1] * (like.dim() - 1))
