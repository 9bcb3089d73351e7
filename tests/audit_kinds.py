"""Kernels of the audit for tests of what surrounds them in memory, which need not run them all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.honest import Honest
from benchmarks.redteam.regions import region
from cudal1_compile.kernel.candidate import parse_candidate

Kernel = TypeVar("Kernel", Attack, Honest)


def one_of_each_kind(kernels: Sequence[Kernel]) -> list[Kernel]:
    """The first of each kind of region and launch plan, whatever it computes."""
    return list({_kind(kernel): kernel for kernel in reversed(kernels)}.values())


def _kind(kernel: Attack | Honest) -> tuple[object, ...]:
    program = region(kernel.region)
    candidate = parse_candidate(kernel.code, program)
    types, several = frozenset(i.dtype for i in program.inputs), len(program.outputs) > 1
    lies_apart = any(i.strides is not None for i in program.inputs)
    plan = bool(candidate.scratch), len(candidate.launches) > 1
    return types, several, lies_apart, any(a.symbolic for a in program.axes), *plan
