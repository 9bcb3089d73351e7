"""What a candidate is measured against: the region in aten, operation by operation, and compiled by Inductor.

Both come from one callable (`to_aten`), at the region's example sizes, on the device they are given. Whether a
baseline can be captured in a CUDA graph is the session's concern.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.to_aten import to_aten

log = logging.getLogger(__name__)

Baseline = Callable[[Sequence[Tensor]], object]


class Compiled(Exception):
    """Ends a first call once its code is there."""


def aten_baseline(program: Program, device: torch.device) -> Baseline:
    """The region as aten calls."""
    module = to_aten(static_sizes(program)).to(device)
    return lambda inputs: module(*inputs)


def inductor_baseline(
    program: Program,
    device: torch.device,
    inputs: Sequence[Tensor],
    compiling: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Baseline:
    """The region compiled alone by Inductor (dynamic=False), warmed up on `inputs`. Takes seconds.

    compiling: entered while Dynamo traces and Inductor compiles, before what they made runs.
    """
    from torch._dynamo.backends.registry import lookup_backend  # seconds, which a worker has once it is up

    module = to_aten(static_sizes(program)).to(device)
    is_compiled = False

    def compile_graph(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        made: Callable[..., Any] = lookup_backend("inductor")(graph, examples)

        def call(*args: Any) -> Any:
            if not is_compiled:
                raise Compiled
            return made(*args)

        return call

    compiled = torch.compile(module, backend=compile_graph, dynamic=False)
    with compiling(), torch.no_grad(), suppress(Compiled):
        compiled(*inputs)
    is_compiled = True

    def run(given: Sequence[Tensor]) -> object:
        with torch.no_grad():
            return compiled(*given)

    for _ in range(2):
        run(inputs)
    return run


def static_sizes(program: Program) -> Program:
    """The program with the example's sizes in place of symbolic ones."""
    if not program.is_symbolic:
        return program
    return replace(program, axes=tuple(replace(a, symbolic=False) for a in program.axes))
