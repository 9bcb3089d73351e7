"""A quick look whether a kernel computes its program: poisoned outputs, guarded ends, one comparison.

    Subject(program, device)   inputs, oracle and native reference, made once
    check(subject, kernel)     None where right, else a sentence

This keeps wrong kernels out of scores and statistics. It is NOT the judge: one distribution, no attack on
timing or memory beyond the ends of the outputs; nothing is accepted into a cache because of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from cudal1_compile.candidate import Candidate
from cudal1_compile.judge.inputs import make_inputs
from cudal1_fx_passes.evaluate import TORCH_DTYPE, evaluate
from cudal1_fx_passes.program import Output, Program

GUARD = 256  # elements behind an output that must stay untouched
DISCRETE_SHARE = 1e-3  # of the elements of an integer or bool output that may differ
_UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}

Run = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], None]  # outputs, scratch, inputs


@dataclass(frozen=True)
class Subject:
    """A program with inputs on a device and what is expected of it."""

    program: Program
    device: torch.device
    inputs: list[Tensor]
    exact: list[Tensor]  # float64 oracle
    native: list[Tensor]  # each operation in its own dtype

    @property
    def bytes_moved(self) -> int:
        """Every input read once, every output written once."""
        tensors = [*self.inputs, *self.native]
        return sum(t.numel() * t.element_size() for t in tensors)


def make_subject(program: Program, device: torch.device, seed: int = 0) -> Subject:
    inputs = make_inputs(program, "normal", seed, device)
    return Subject(program, device, inputs, evaluate(program, inputs, float64=True), evaluate(program, inputs))


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
            _poison(flat)
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
    return compare(subject, outputs) or _check_guards(subject.program, flats)


def compare(subject: Subject, outputs: Sequence[Tensor]) -> str | None:
    for spec, got, exact, native in zip(
        subject.program.outputs, outputs, subject.exact, subject.native, strict=True
    ):
        wrong = _compare_one(got, exact, native)
        if wrong:
            return f"{spec.name}: {wrong}"
    return None


def _compare_one(got: Tensor, exact: Tensor, native: Tensor) -> str | None:
    if not got.is_floating_point():
        share = float((got != native).double().mean()) if got.numel() else 0.0
        return f"{share:.2%} of the elements differ" if share > DISCRETE_SHARE else None
    usable = exact.isfinite() & native.isfinite()
    if not bool((got.isfinite() | ~usable).all()):
        return "holds NaN or infinity where the reference is finite"
    zero = torch.zeros((), dtype=torch.float64, device=got.device)
    error = torch.where(usable, got.double() - exact, zero).abs()
    allowed = torch.where(usable, native.double() - exact, zero).abs()
    size = torch.where(usable, exact, zero).abs()
    unit = _UNIT[got.dtype]
    peak, limit = float(error.max()), 4 * float(allowed.max()) + 32 * unit * float(size.max())
    if peak > limit:
        return f"error {peak:.3g}, at most {limit:.3g} allowed"
    mean, mean_limit = float(error.mean()), 4 * float(allowed.mean()) + 8 * unit * float(size.mean())
    return f"mean error {mean:.3g}, at most {mean_limit:.3g} allowed" if mean > mean_limit else None


def _check_guards(program: Program, flats: Sequence[Tensor]) -> str | None:
    for spec, flat in zip(program.outputs, flats, strict=True):
        tail = flat[-GUARD:]
        clean = tail.isnan() if tail.is_floating_point() else tail == _POISON.get(tail.dtype, 1)
        if not bool(clean.all()):
            return f"{spec.name}: written past its end"
    return None


_POISON = {torch.int64: -7_777_777, torch.int32: -7_777_777, torch.int16: -7777, torch.int8: -77, torch.uint8: 177}


def _poison(flat: Tensor) -> Tensor:
    if flat.is_floating_point():
        return flat.fill_(float("nan"))
    return flat.fill_(_POISON.get(flat.dtype, 1))
