"""The arms of a task, all made in one process, one after the other; nothing is reset between them.

    eager                    the module as constructed
    graph                    eager in a torch.cuda.CUDAGraph over static inputs: a call is a replay
    inductor                 torch.compile
    reduce_overhead          torch.compile(mode="reduce-overhead")
    max_autotune             torch.compile(mode="max-autotune"), of some tasks
    cudal1                   this backend with default options
    cudal1_reduce_overhead   in that mode, with the kernels that the call before it has left in the cache

cudal1 is made first, so that its first call is a fresh process's. The others' first calls are none: they find
libraries loaded, and code that Inductor has compiled for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.model_contenders import Step

OURS = ("cudal1", "cudal1_reduce_overhead")
OTHERS = ("eager", "graph", "inductor", "reduce_overhead")
MAX_AUTOTUNE = "max_autotune"
DRY_BUDGET_S = 2.0
CAPTURE_WARM_UP = 3

Call = Callable[..., Any]


def compile_as(arm: str, step: Step, dry: bool) -> Call:
    """What the arm calls, not yet called itself. Raises ValueError for an arm that there is not."""
    module = step.module
    modes = {"inductor": None, "reduce_overhead": "reduce-overhead", MAX_AUTOTUNE: "max-autotune"}
    if arm in modes:
        return torch.compile(module, mode=modes[arm])
    if arm == "eager":
        return module
    if arm == "graph":
        return capture(step)
    if arm == "cudal1":
        return _cudal1(step, {"target": "host", "budget_s": DRY_BUDGET_S} if dry else {}, None)
    if arm == "cudal1_reduce_overhead":
        options = {"on_miss": "fallback"} | ({"target": "host"} if dry else {})
        return _cudal1(step, options, "reduce-overhead")
    raise ValueError(f"arm {arm!r}: expected one of {', '.join((*OTHERS, MAX_AUTOTUNE, *OURS))}")


def _cudal1(step: Step, options: dict[str, Any], mode: str | None) -> Call:
    from cudal1_compile.backend import cudal1

    def backend(gm: Any, example_inputs: Any) -> Any:  # torch.compile takes a mode or options, not both
        return cudal1(gm, example_inputs, mode=mode, options=options or None)

    return torch.compile(step.module, backend=backend)


def capture(step: Step) -> Call:
    """Raises RuntimeError where the module cannot be captured, or there is no GPU."""
    if not torch.cuda.is_initialized():
        raise RuntimeError("no CUDA device, so no CUDA graph")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(CAPTURE_WARM_UP):
            step.module(*step.inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = step.module(*step.inputs)
    finally:
        torch.cuda.synchronize()

    def replay(*inputs: Any) -> Any:
        graph.replay()
        return outputs

    return replay
