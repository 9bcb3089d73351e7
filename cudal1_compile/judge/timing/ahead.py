"""Inductor's baseline of a region compiled into its cache on disk, without running it and without a device.

    region -> fake tensors -> torch.compile as the baseline is -> cache; the worker's own compile is then a hit

The inputs are fake: Dynamo, AOTAutograd and Inductor see what the worker's compile shows them, so the keys of the
caches of both agree, and no memory is taken. Of convolutions too: how their results will lie, the worker's compile
asks fake tensors as well. Triton compiles for the device's properties; what needs a CUDA context is left to the
worker: loading kernels, choosing among a kernel's configurations at its first call, and regions for which Inductor
itself measures while it compiles (products whose sizes it might pad).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.registry import lookup_backend
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from cudal1_compile.judge.timing.baseline import Compiled, static_sizes
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Input, Program
from cudal1_fx_passes.program.to_aten import to_aten


def compile_ahead(program: Program, device: torch.device) -> None:
    """Fills the cache. What Dynamo or Inductor raise comes through; the worker then compiles by itself."""
    program = static_sizes(program)
    _stay_off_the_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)  # its index is in Inductor's key
    mode = FakeTensorMode()
    module = to_aten(program)
    for name, constant in list(module.named_buffers()):
        setattr(module, name, mode.from_tensor(constant))
    with mode, torch.no_grad():
        compiled = torch.compile(module.to(device), backend=_compile_only, dynamic=False)
        try:
            compiled(*(_input(program, item, device) for item in program.inputs))
        except Compiled:
            return


def _input(program: Program, item: Input, device: torch.device) -> Tensor:
    shape = [program.axis[a].size for a in item.axes]
    dense = torch.empty(shape, dtype=TORCH_DTYPE[item.dtype], device=device)
    return dense if item.strides is None else dense.new_empty_strided(shape, item.strides)


def _compile_only(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """The backend "inductor", whose code is not run."""
    for node in graph.graph.find_nodes(op="placeholder"):
        node.type = Tensor  # Dynamo notes FakeTensor, and the annotation is in AOTAutograd's key
    graph.recompile()
    lookup_backend("inductor")(graph, list(inputs))

    def stop(*_: object) -> None:
        raise Compiled

    return stop


def _stay_off_the_device() -> None:
    """Fake tensors make a CUDA context, Inductor loads each kernel that it compiled: neither is wanted here."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    parts = (
        (_nothing, fake_tensor, "init_gpu_context"),
        (_nothing, CachingAutotuner, "_make_launchers", "_dynamic_scale_rblock"),
        (_refuse, pad_mm, "get_do_bench"),
    )
    for instead, owner, *names in parts:
        for name in names:
            getattr(owner, name)  # a torch that calls them otherwise is left alone
            setattr(owner, name, instead)


def _nothing(*_: object) -> None:
    """Instead of what needs a device."""


def _refuse() -> None:
    """Where Inductor is about to measure: before it takes memory of the device."""
    raise RuntimeError("Inductor would measure this region")
