"""A quick look whether a kernel computes its program: poisoned outputs, guarded ends, one comparison.

    make_subject(program, device)        inputs and what is expected of them, made once
    check(subject, candidate, run)       None where right, else a sentence

The comparison and its error budget are the judge's own. This keeps wrong kernels out of scores and statistics, but
it is NOT the judge: one distribution, no attack on timing or memory beyond the ends of the outputs; nothing
is accepted into a cache because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from cudal1_compile.judge.checks.case_suite import has_nonfinite_literal
from cudal1_compile.judge.checks.cases import COHERENT
from cudal1_compile.judge.checks.checksum import Checksum
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.oracle.compare import Expected, expect, usable, why_wrong
from cudal1_compile.kernel.candidate import Candidate
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Output, Program

GUARD = 256  # elements behind an output that must stay untouched

Run = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], None]  # outputs, scratch, inputs


@dataclass(frozen=True)
class Subject:
    """A program with inputs on a device and what is expected of it."""

    program: Program
    device: torch.device
    inputs: list[Tensor]
    expected: list[Expected]
    checksum: Checksum  # of both: a kernel that writes far outside its buffers may reach them


class Unusable(RuntimeError):
    """The reference is not finite enough on these inputs to tell right from wrong."""


def make_subject(program: Program, device: torch.device, distribution: str = "normal", seed: int = 0) -> Subject:
    """Raises Unusable."""
    inputs = make_inputs(program, distribution, seed, device)
    expected = expect(program, inputs, coherent=distribution in COHERENT)
    if not usable(expected) and not has_nonfinite_literal(program):
        raise Unusable("more than 1% of the reference is not finite")
    checksum = Checksum([*inputs, *(x for e in expected for x in e.tensors)])
    return Subject(program, device, inputs, expected, checksum)


def storage_length(program: Program, out: Output) -> int:
    """Elements of the flat storage that an output's strides span."""
    sizes = [program.axis[a].size for a in out.axes]
    if out.strides is None:
        return prod(sizes)
    return 1 + sum((n - 1) * s for n, s in zip(sizes, out.strides, strict=True))


def empty_outputs(
    program: Program, device: torch.device, poison: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs as declared and the flat storages behind them, GUARD elements longer, filled with poison."""
    views, flats = [], []
    for out in program.outputs:
        dtype = TORCH_DTYPE[program.output_dtype(out)]
        length = storage_length(program, out)
        flat = torch.empty(length + GUARD, dtype=dtype, device=device)
        if poison:
            _poison(flat)[-GUARD:] = _POISON.get(dtype, 1)  # no NaN: what is read past an input may be one too
        sizes = [program.axis[a].size for a in out.axes]
        views.append(flat[:length].view(sizes) if out.strides is None else flat.as_strided(sizes, out.strides))
        flats.append(flat)
    return views, flats


def empty_scratch(program: Program, candidate: Candidate, device: torch.device) -> list[Tensor]:
    """Flat, filled with poison; the launcher zeroes what the plan says."""
    dims = {a.name: a.size for a in program.axes}
    found = []
    for item in candidate.scratch:
        count = prod(e.evaluate(dims) for e in item.shape)
        flat = torch.empty(count, dtype=TORCH_DTYPE[item.dtype], device=device)
        found.append(_poison(flat))
    return found


def check(subject: Subject, candidate: Candidate, run: Run) -> str | None:
    """Runs once on poisoned buffers and compares. Errors of a launch pass through."""
    outputs, flats = empty_outputs(subject.program, subject.device)
    run(outputs, empty_scratch(subject.program, candidate, subject.device), subject.inputs)
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
    if not subject.checksum.intact:
        return "writes into an input, or far outside its buffers"
    return compare(subject, outputs) or _check_guards(subject.program, flats)


def compare(subject: Subject, outputs: Sequence[Tensor]) -> str | None:
    for output, expected in zip(outputs, subject.expected, strict=True):
        got = output.to(expected.want.device)  # a program without inputs has its reference on the CPU
        if reason := why_wrong(got, expected):
            return reason
    return None


def _check_guards(program: Program, flats: Sequence[Tensor]) -> str | None:
    for spec, flat in zip(program.outputs, flats, strict=True):
        if not bool((flat[-GUARD:] == _POISON.get(flat.dtype, 1)).all()):
            return f"{spec.name}: written past its end"
    return None


_POISON = {torch.int64: -7_777_777, torch.int32: -7_777_777, torch.int16: -7777, torch.int8: -77, torch.uint8: 177}


def _poison(flat: Tensor) -> Tensor:
    if flat.is_floating_point():
        return flat.fill_(float("nan"))
    return flat.fill_(_POISON.get(flat.dtype, 1))
