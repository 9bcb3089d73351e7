"""One call of a kernel held against its region, on the call's own inputs.

    inputs copied -> the kernel runs as ever -> outputs against the float64 oracle, within the judge's budget

What differs is told to `wrong`; the call then gives the reference's results, and inputs that the kernel changed
get their values back. Where the reference is not finite the kernel's value may not be either, but NaN or
infinity is its choice. A call that cannot be compared (no room, a stream capture, an error of the comparison) is a
plain call. No random number is drawn. Beyond a plain call it holds a copy of the inputs, the expected outputs in
float64 with their tolerances, and at most ROOM_BYTES of the oracle.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from cudal1_compile.dispatch.arguments import ArgumentReader, Operands
from cudal1_compile.judge.checks.cases import CALL, Case, make_case
from cudal1_compile.judge.checks.division import least_oracle_bytes
from cudal1_compile.runtime.target import free_memory
from cudal1_fx_passes.program.ir import Program

log = logging.getLogger(__name__)

ROOM_BYTES = 1 << 30  # on a GPU at most half of what is free

KernelFunction = Callable[..., None]
T = TypeVar("T")


def checked(
    run: KernelFunction,
    reference: KernelFunction,
    program: Program,
    device: torch.device,
    wrong: Callable[[str], None],
) -> KernelFunction:
    """`run`, with every call compared. Errors of `run` and `reference` reach the caller."""
    read = ArgumentReader(program)

    def call(*args: Any) -> None:
        with torch.no_grad(), device:  # what is compared lies there, whatever the user's default device is
            comparison = None if is_capturing(device) else _try(lambda: _prepare(read(args), device))
            run(*args)
            if comparison is None:
                return
            changed = _try(comparison.restore_inputs)
            if changed is None and _try(comparison.fault) is None:
                return
            got = [x.clone() for x in comparison.operands.outputs]
            reference(*args)
            reason = changed or _try(lambda: comparison.fault_beside_reference(got))
            if reason is not None:
                wrong(reason)

    return call


def is_capturing(device: torch.device) -> bool:
    """Whether this thread's stream records a CUDA graph: then nothing may wait, and nothing can be compared."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One call's operands, and a case with their clean inputs and what must come out."""

    operands: Operands
    case: Case

    def restore_inputs(self) -> str | None:
        """A sentence if the kernel changed one."""
        found = None
        for i, (x, clean) in enumerate(zip(self.operands.inputs, self.case.inputs, strict=True)):
            if not torch.equal(x.nan_to_num(), clean.nan_to_num()):
                x.copy_(clean)
                found = f"the kernel changed its input in{i}"
        return found

    def fault(self) -> str | None:
        return self.case.check(self.operands.outputs).refusal

    def fault_beside_reference(self, got: Sequence[Tensor]) -> str | None:
        """Of the kernel's results, once the region's own lie in the outputs."""
        pairs = zip(got, self.operands.outputs, strict=True)
        return self.case.check([torch.where(g.isfinite() | r.isfinite(), g, r) for g, r in pairs]).refusal


def _prepare(operands: Operands, device: torch.device) -> _Comparison | None:
    """Before the kernel's run. What it will not write is NaN."""
    program, room = operands.program, ROOM_BYTES
    if device.type == "cuda":
        copied = sum(x.numel() * x.element_size() for x in operands.inputs)
        room = min(room, (free_memory(device) - copied) // 2)
    if room <= 0 or not operands.inputs or least_oracle_bytes(program, room) > room:
        return None
    comparison = _Comparison(operands, make_case(program, CALL, operands.inputs, {}, room))
    for x in operands.outputs:
        if x.is_floating_point():
            x.fill_(torch.nan)
    return comparison


def _try(work: Callable[[], T | None]) -> T | None:
    try:
        return work()
    except Exception as error:  # noqa: BLE001  a comparison that fails must not fail the user's call
        _say(f"{type(error).__name__}: {error}")
        return None


@cache
def _say(why: str) -> None:
    log.warning("a kernel's call could not be checked: %s", why)
