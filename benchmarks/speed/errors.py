"""How many elements of an arm's results are outside a tolerance of the same model's in float64.

An element's error is |y - r| / (1 + |r|), so that it is within T, absolute and relative, where that is at most T.
Of indices, masks and integers what differs is outside. Results are compared in slices.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.model_contenders import Step

TOLERANCES = ("1e-4", "1e-2")
SLICE = 1 << 25  # elements
CPU_FLOPS = 1e12  # more than this in float64 takes a CPU too long


def tensors(outputs: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor)]


def results(step: Step, call: Callable[..., Any]) -> list[Tensor]:
    """Of one call; valid until the next one."""
    step.clear()
    step.run(call)
    return tensors(step.outputs)


def reference(step: Step, flops: float) -> tuple[list[Tensor] | None, str]:
    """What a call gives in float64, and where; None and why not."""
    why = ""
    for device in (step_device(step), torch.device("cpu")):
        if why and flops > CPU_FLOPS:
            return None, f"none: {why}; too long on the CPU"
        try:
            return _exact(step, device), f"float64 on {device.type}"
        except (RuntimeError, TypeError, ValueError) as error:  # out of memory, or a model that names a dtype
            why = f"{type(error).__name__}: {error}"[:120]
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return None, f"none: {why}"


def step_device(step: Step) -> torch.device:
    return next((x.device for x in pytree.tree_leaves(step.inputs) if isinstance(x, Tensor)), torch.device("cpu"))


def _exact(step: Step, device: torch.device) -> list[Tensor]:
    def double(x: Tensor) -> Tensor:
        return x.to(device, torch.float64 if x.is_floating_point() else x.dtype)

    inputs = pytree.tree_map_only(Tensor, double, step.inputs)
    exact = Step(copy.deepcopy(step.module).to(device).double(), inputs, False)
    return results(exact, exact.module)


def shares_outside(found: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, float]:
    """By tolerance the share of elements outside, and the worst error; all of them where shapes differ."""
    if [x.shape for x in found] != [r.shape for r in exact]:
        return {**dict.fromkeys(TOLERANCES, 1.0), "worst": math.inf}
    outside, worst = dict.fromkeys(TOLERANCES, 0), 0.0
    for error in (e for x, r in zip(found, exact, strict=True) for e in _errors(x, r)):
        worst = max(worst, float(error.max()))
        for tolerance in TOLERANCES:
            outside[tolerance] += int((error > float(tolerance)).sum())
    count = max(1, sum(r.numel() for r in exact))
    return {**{t: n / count for t, n in outside.items()}, "worst": worst}


def _errors(x: Tensor, right: Tensor) -> Iterator[Tensor]:
    """In slices, none of them empty; infinite where one is not finite and the other another."""
    flat_x, flat_r = x.reshape(-1), right.reshape(-1)
    for at in range(0, right.numel(), SLICE):
        a, r = flat_x[at : at + SLICE].to(right.device), flat_r[at : at + SLICE]
        if not right.is_floating_point():
            yield torch.where(a == r, 0.0, torch.inf)
            continue
        a, r = a.double(), r.double()
        error = (a - r).abs() / (1 + r.abs())
        error[(a == r) | (a.isnan() & r.isnan())] = 0.0
        yield error.nan_to_num(nan=math.inf, posinf=math.inf)
