"""How far a call's results are from the same module's in float64, in slices, so that tensors of 8 GiB can be
compared.

An element's error is |x - exact| over |exact| and the typical size of its tensor together; of indices, masks and
integers the share that differs is the error. A call is wrong beyond TOLERANCE and WORSE times Inductor's error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from benchmarks.model_contenders import FLOOR, Step, exact_results, results

TOLERANCE = 1e-2
WORSE = 4.0
SLICE = 1 << 26  # elements


def is_wrong(error: float, inductor: float) -> bool:
    return not error <= TOLERANCE and not error <= WORSE * inductor


def reference(step: Step) -> tuple[dict[str, Tensor], str]:
    """What a call gives in float64 and `float64`; where that does not fit or run, eager's and its dtype."""
    try:
        return exact_results(step), "float64"
    except (RuntimeError, TypeError, ValueError):  # out of memory, or a model that names a dtype
        step.clear()
        if step.inputs[0].is_cuda:
            torch.cuda.empty_cache()
    floats = [t for t in (*step.module.parameters(), *step.inputs) if t.is_floating_point()]
    return results(step, step.module), str(floats[0].dtype).removeprefix("torch.") if floats else "eager"


def worst_error(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Over all tensors; infinite where one is missing, has another shape, or is not finite where it should be."""
    gradients = [t for name, t in exact.items() if name.startswith("gradient")]
    typical = max((rms(t) for t in gradients), default=0.0)
    worst = 0.0
    for name, right in exact.items():
        if name not in found or found[name].shape != right.shape:
            return math.inf
        least = FLOOR * typical if name.startswith("gradient") else 0.0
        worst = max(worst, tensor_error(found[name], right, least))
    return worst


def tensor_error(x: Tensor, right: Tensor, least: float = 0.0) -> float:
    """least: of what counts as the tensor's typical size."""
    if not right.is_floating_point():
        return sum(float((a != b).sum()) for a, b in _slices(x, right)) / max(1, right.numel())
    scale = max(rms(right), least, 1e-30)
    worst = 0.0
    for a, b in _slices(x, right):
        a, b = a.double(), b.double()
        error = (a - b).abs() / (b.abs() + scale)
        error[(a == b) | (~a.isfinite() & ~b.isfinite())] = 0.0
        found = float(error.nan_to_num(nan=math.inf).max()) if error.numel() else 0.0
        worst = max(worst, found)
    return worst


def rms(x: Tensor) -> float:
    """Of the finite elements."""
    square = sum(float(p.double().nan_to_num(0.0, 0.0, 0.0).square().sum()) for p, _ in _slices(x, x))
    return math.sqrt(square / max(1, x.numel()))


def _slices(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Side by side; each tensor is read through a flat view, copied only where its layout has none."""
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    for at in range(0, flat_x.numel(), SLICE):
        yield flat_x[at : at + SLICE], flat_y[at : at + SLICE]
