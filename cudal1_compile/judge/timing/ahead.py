"""Inductor's baseline of a region compiled into its cache on disk, without running it and without a device.

    region -> fake tensors -> torch.compile as the baseline is -> cache; the worker's own compile is then a hit

The inputs are fake: Dynamo, AOTAutograd and Inductor see what the worker's compile shows them, so the keys of the
caches of both agree, and no memory is taken. Of convolutions too: how their results will lie, the worker's compile
asks fake tensors as well. The process has no CUDA context, which a driver makes one after the other for all
processes of a host (twelve took seconds): torch sees no device, and is told the properties of the one that Triton
compiles for. What needs a context is left to the worker: loading kernels, and choosing among a kernel's
configurations at its first call. Products that Inductor might pad are compiled both ways.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.backends.registry import lookup_backend
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from cudal1_compile.judge.timing.baseline import Compiled, either_padding, static_sizes, users_precision
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import Input, Program
from cudal1_fx_passes.program.to_aten import to_aten

Properties = Mapping[str, int | str]


def compile_ahead(program: Program, device: torch.device, properties: Properties) -> None:
    """Fills the cache. What Dynamo or Inductor raise comes through; the worker then compiles by itself.

    properties: of a GPU, as torch has them. This process cannot use it afterwards.
    """
    program = static_sizes(program)
    _stay_off_the_device()
    if device.type == "cuda":
        _stand_in(device.index or 0, tuple(properties.items()))
    either_padding(lambda: _compile(program, device))


def _compile(program: Program, device: torch.device) -> None:
    mode = FakeTensorMode()
    with users_precision(program):
        module = to_aten(program)
    for name, constant in list(module.named_buffers()):
        setattr(module, name, mode.from_tensor(constant))
    with users_precision(program), mode, torch.no_grad():
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
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    parts: dict[Any, dict[str, Any]] = {
        fake_tensor: {"init_gpu_context": _nothing},
        CachingAutotuner: {"_make_launchers": _nothing, "_dynamic_scale_rblock": _nothing},
    }
    for owner, instead in parts.items():
        for name in instead:
            getattr(owner, name)  # a torch that calls them otherwise is left alone
    _replace(parts)


@cache
def _stand_in(index: int, properties: tuple[tuple[str, int | str], ...]) -> None:
    """For the rest of the process: the device is there for all who ask Python, and for nobody who asks CUDA."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # torch's device guards do nothing then
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    rng_state = torch.empty(0, dtype=torch.uint8)
    parts: dict[Any, dict[str, Any]] = {
        FakeTensorMode: {"avoid_device_init": True},
        UniformValueConstantFolder: {"run": _on_the_cpu(UniformValueConstantFolder.run)},
        torch._C: {f"_cuda_{name}": lambda *_: index for name in ("getDevice", "setDevice")},
        torch.cuda: {
            "_exchange_device": lambda _: index,
            "_maybe_exchange_device": lambda _: index,
            "_lazy_init": _nothing,
            "_cached_device_count": index + 1,
            "_get_device_properties": lambda _: SimpleNamespace(**dict(properties)),
            "get_rng_state": lambda *_: rng_state,
            "set_rng_state": _nothing,
        },
    }
    _replace(parts)


def _replace(parts: Mapping[Any, Mapping[str, Any]]) -> None:
    """Attributes of each owner, for the rest of the process."""
    for owner, instead in parts.items():
        for name, value in instead.items():
            setattr(owner, name, value)


class _OnTheCPU(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What is made on a device is made on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"device": "cpu"} if "device" in kwargs else kwargs))


def _on_the_cpu(work: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor finds out the numbers of constants by making them."""

    def works(*given: Any) -> Any:
        with _OnTheCPU():  # type: ignore[no-untyped-call]
            return work(*given)

    return works


def _nothing(*_: object) -> None:
    """Instead of what needs a device."""
