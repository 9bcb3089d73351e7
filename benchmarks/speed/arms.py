"""The arms of a task, all made in one process, one after the other; nothing is reset between them.

    eager                    the module as constructed
    graph                    eager in a torch.cuda.CUDAGraph over static inputs: a call is a replay
    inductor                 torch.compile
    reduce_overhead          torch.compile(mode="reduce-overhead")
    max_autotune             torch.compile(mode="max-autotune"), of some tasks
    cudal1                   this backend with default options
    cudal1_reduce_overhead   in that mode, with the kernels that the call before it has left in the cache
    dynamo                   a graph that returns what it returned first: Dynamo's guards alone, below which no
                             backend comes; it competes with nobody

cudal1 is made first, so that its first call is a fresh process's. The others' first calls are none: they find
libraries loaded, and code that Inductor has compiled for it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import FunctionType
from typing import Any

import torch
from torch import nn

from benchmarks.model_contenders import Step

OURS = ("cudal1", "cudal1_reduce_overhead")
OTHERS = ("eager", "graph", "inductor", "reduce_overhead")
MAX_AUTOTUNE = "max_autotune"
DYNAMO = "dynamo"
REDUCE_OVERHEAD = "reduce-overhead"
DRY_BUDGET_S = 2.0
CAPTURE_WARM_UP = 3

Call = Callable[..., Any]


def compile_as(arm: str, step: Step, dry: bool) -> Call:
    """What the arm calls, not yet called itself. Raises ValueError for an arm that there is not."""
    module = step.module if arm in ("eager", "graph") else with_own_code(step.module)
    modes = {"inductor": None, "reduce_overhead": REDUCE_OVERHEAD, MAX_AUTOTUNE: "max-autotune"}
    if arm in modes:
        return torch.compile(module, mode=modes[arm])
    if arm == "eager":
        return module
    if arm == "graph":
        return capture(step)
    if arm == DYNAMO:
        return torch.compile(module, backend=returns_the_first)
    options: dict[str, Any] = {"target": "host", "budget_s": DRY_BUDGET_S} if dry else {}
    if arm == "cudal1":
        return torch.compile(module, backend="cudal1", options=options)
    if arm == "cudal1_reduce_overhead":  # torch.compile takes a mode or options, not both
        options |= torch._inductor.list_mode_options(REDUCE_OVERHEAD) | {"on_miss": "fallback"}
        return torch.compile(module, backend="cudal1", options=options)
    raise ValueError(f"arm {arm!r}: expected one of {', '.join((*OTHERS, MAX_AUTOTUNE, *OURS, DYNAMO))}")


def returns_the_first(graph: Call, _: Any) -> Call:
    """A backend for Dynamo: the graph runs at its first call."""
    found: list[Any] = []

    def run(*inputs: Any) -> Any:
        if not found:
            found.append(graph(*inputs))
        return found[0]

    return run


def with_own_code(module: nn.Module) -> nn.Module:
    """The same parameters behind another code object: what Dynamo gives up for one backend it gives up for all."""
    f = type(module).forward
    forward = FunctionType(f.__code__.replace(), f.__globals__, "forward", f.__defaults__, f.__closure__)
    twin = copy(module)
    twin.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})
    return twin


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
    graph, random = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
    state = random.graphsafe_get_state()
    random.graphsafe_set_state(random.clone_state())  # torch takes that of a failed capture for captured still
    try:
        with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = step.module(*step.inputs)
    finally:
        random.graphsafe_set_state(state)
        torch.cuda.synchronize()

    def replay(*inputs: Any) -> Any:
        graph.replay()
        return outputs

    return replay
