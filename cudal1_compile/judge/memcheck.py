"""Gate 6 for GPU finalists: the same device code through the host target's check build, at the region's sizes.

It finds what a GPU run cannot show: races, reads out of bounds, uninitialised memory, barriers that not all
threads reach. Where it cannot run (no C++ compiler, a region too large, code that only a GPU compiles, a run
that takes too long) the proof says so; it never accepts anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.judge.arena import output_specs, scratch_specs
from cudal1_compile.judge.inputs import make_inputs
from cudal1_compile.judge.sizes import tensor_elements
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, run_isolated
from cudal1_compile.runtime.plan import buffer_names
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program import Program

NAME = "host check build"
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
class Look:
    """What one or several checks found."""

    fault: str | None  # the rule that a candidate breaks, as a sentence
    said: tuple[tuple[str, str], ...]  # each check and what came of it, for the proof


def find_fault(program: Program, candidate: Candidate, seed: int, seconds: float) -> Look:
    """Runs the check build once on normal inputs."""
    if tensor_elements(program) > MAX_ELEMENTS:
        return _silent("the region is too large")
    cpu = torch.device("cpu")
    made = make_inputs(program, "normal", seed, cpu)
    written = [*output_specs(program, {}), *scratch_specs(program, candidate, {})]
    memory = [torch.zeros(s.span_bytes // s.dtype.itemsize, dtype=s.dtype) for s in written]
    buffers = dict(zip(buffer_names(program, candidate), [*memory, *made], strict=True))
    limits = HostLimits(seconds=seconds, order="random", seed=seed)
    try:
        image = build(program, candidate, HOST, check=True).image
        run = run_isolated(program, candidate, image, buffers, limits)
    except (BuildError, LaunchError, TimeoutError) as error:
        return _silent(str(error).splitlines()[0])
    if run.status == "fault" and run.kind in BREAKS:
        return Look(run.message, ((NAME, run.message),))
    return Look(None, ((NAME, "clean"),)) if run.ok else _silent(run.message)


def _silent(why: str) -> Look:
    return Look(None, ((NAME, f"not run: {why}"),))
