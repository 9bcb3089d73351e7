"""Gate 6 for GPU finalists: the same device code through the host target's check build, at the region's sizes.

It finds what a GPU run cannot show: races, reads out of bounds, uninitialised memory, barriers that not all
threads reach. Where it cannot run (no C++ compiler, a region too large, code that only a GPU compiles, a run
that takes too long) it has nothing to say; it never accepts anything.
"""

from __future__ import annotations

import logging

import torch

from cudal1_compile.candidate import Candidate
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.judge.arena import output_specs, scratch_specs
from cudal1_compile.judge.exam import tensor_elements
from cudal1_compile.judge.inputs import make_inputs
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.hostrun import HostLimits, run_isolated
from cudal1_compile.runtime.plan import buffer_names
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program import Program

log = logging.getLogger(__name__)

MAX_ELEMENTS = 1 << 20  # of inputs and outputs
BREAKS = (
    "out_of_bounds",
    "race",
    "uninitialised",
    "deadlock",
    "barrier_divergence",
    "misaligned",
    "input_written",
)


def find_fault(program: Program, candidate: Candidate, seed: int, wall_s: float) -> str | None:
    """The rule that a candidate breaks, as a sentence; None where none was found or none could be looked for."""
    if tensor_elements(program) > MAX_ELEMENTS:
        return None
    cpu = torch.device("cpu")
    made = make_inputs(program, "normal", seed, cpu)
    written = [*output_specs(program, {}), *scratch_specs(program, candidate, {})]
    memory = [torch.zeros(s.span_bytes // s.dtype.itemsize, dtype=s.dtype) for s in written]
    buffers = dict(zip(buffer_names(program, candidate), [*memory, *made], strict=True))
    try:
        image = build(program, candidate, HOST, check=True).image
        run = run_isolated(
            program, candidate, image, buffers, HostLimits(wall_s=wall_s, order="random", seed=seed)
        )
    except (BuildError, LaunchError) as error:
        log.info("no memory check: %s", str(error).splitlines()[0])
        return None
    return run.message if run.status == "fault" and run.kind in BREAKS else None
