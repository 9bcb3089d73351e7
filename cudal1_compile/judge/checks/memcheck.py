"""Gate 6 for GPU finalists: the same device code through the host target's check build, at the region's sizes.

It finds what a GPU run cannot show: races, reads out of bounds, uninitialised memory, barriers that not all
threads reach, answers by where buffers lie. Where it cannot run (no C++ compiler, a region too large, code that
only a GPU compiles, a run that takes too long) the proof says so; it never accepts anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.judge.checks.cases import is_coherent
from cudal1_compile.judge.checks.guarded_memory import output_specs, scratch_specs
from cudal1_compile.judge.inputs.extremes import MAGNITUDES
from cudal1_compile.judge.inputs.make import make_inputs
from cudal1_compile.judge.inputs.sizes import tensor_elements
from cudal1_compile.judge.oracle.compare import expect, why_wrong
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, Order, run_isolated
from cudal1_compile.runtime.launch_plan import buffer_names
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program

NAME = "host check build"
# inputs, and the order in which threads take turns and buffers lie in memory
RUNS: tuple[tuple[str, Order], ...] = (("normal", "random"), ("heavy", "reverse"), (MAGNITUDES, "forward"))
MAX_ELEMENTS = 1 << 20  # of inputs and outputs
BREAKS = (
    "out_of_bounds",
    "memory_fault",  # also a write to a constant, which a GPU lets pass
    "race",
    "uninitialised",
    "deadlock",
    "barrier_divergence",
    "bad_wait",
    "misaligned",
    "input_written",
)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What one or several checks found."""

    fault: str | None  # the rule that a candidate breaks, as a sentence
    said: tuple[tuple[str, str], ...]  # each check and what came of it, for the proof


def find_fault(program: Program, candidate: Candidate, seed: int, seconds: float) -> CheckReport:
    """Runs the check build on inputs of several kinds; seconds: of CPU time, for each run."""
    if tensor_elements(program) > MAX_ELEMENTS:
        return _silent("the region is too large")
    try:
        image = build(program, candidate, HOST, check=True).image
        for name, order in RUNS:
            fault = _run(program, candidate, image, name, HostLimits(seconds=seconds, order=order, seed=seed))
            if fault is not None:
                return CheckReport(fault, ((NAME, fault),))
    except (BuildError, LaunchError, OSError, _NotRun) as error:
        return _silent(str(error).splitlines()[0])
    return CheckReport(None, ((NAME, "clean"),))


class _NotRun(Exception):
    """A run that ended early, and breaks no rule."""


def _run(program: Program, candidate: Candidate, image: bytes, name: str, limits: HostLimits) -> str | None:
    """The rule that is broken, or what is wrong: a GPU's buffers never lie as these do. Raises what ends a run."""
    made = make_inputs(program, name, limits.seed, torch.device("cpu"))
    specs = output_specs(program, {})
    written = [*specs, *scratch_specs(program, candidate, {})]
    memory = [torch.zeros(s.span_bytes // s.dtype.itemsize, dtype=s.dtype) for s in written]
    buffers = dict(zip(buffer_names(program, candidate), [*memory, *made], strict=True))
    run = run_isolated(program, candidate, image, buffers, limits)
    if run.status == "fault" and run.kind in BREAKS:
        return f"{run.message} (inputs: {name})"
    if not run.ok:
        raise _NotRun(run.message)
    outputs = [x.as_strided(s.shape, s.steps) for x, s in zip(memory, specs, strict=False)]
    for got, wanted in zip(outputs, expect(program, made, coherent=is_coherent(name)), strict=True):
        if reason := why_wrong(got, wanted):
            return f"{reason} (where buffers lie otherwise, inputs: {name})"
    return None


def _silent(why: str) -> CheckReport:
    return CheckReport(None, ((NAME, f"not run: {why}"),))
