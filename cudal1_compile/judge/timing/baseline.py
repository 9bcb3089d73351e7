"""What a candidate is measured against: the region in aten, operation by operation, and compiled by Inductor.

Both come from one callable (`to_aten`), at the region's example sizes, on the device they are given. Whether a
baseline can be captured in a CUDA graph is the session's concern. A product that may use TF32 is a product where
the user allows that in products (`allow_products_in_tf32`), and else a convolution of size 1, which may.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.ops import OPS, Kind
from cudal1_fx_passes.program.precision import products_in_tf32
from cudal1_fx_passes.program.to_aten import to_aten

log = logging.getLogger(__name__)

Baseline = Callable[[Sequence[Tensor]], object]


# Inductor's settings for a product that it might pad: as it is, and padded
PADDINGS: tuple[dict[str, Any], ...] = ({"shape_padding": False}, {"force_shape_pad": True})


class Compiled(Exception):
    """Ends a first call once its code is there."""


class _MightPad(Exception):
    """Inductor would measure whether a product is faster padded."""


_is_allowed = False  # products in TF32, by this process's user


def allow_products_in_tf32() -> None:
    """For the rest of the process, as its user does."""
    global _is_allowed
    torch.set_float32_matmul_precision("highest")  # as others leave it afterwards: it is in Inductor's keys
    _is_allowed = True


def users_precision(program: Program) -> AbstractContextManager[None]:
    """Around all that makes or runs a baseline. Beside products that may not use TF32 nothing does."""
    products = {op.fn for op in program.ops if OPS[op.fn].kind is Kind.DOT}
    return products_in_tf32() if _is_allowed and products == {"dot_tf32"} else nullcontext()


def aten_baseline(program: Program, device: torch.device) -> Baseline:
    """The region as aten calls."""
    with users_precision(program):
        module = to_aten(static_sizes(program)).to(device)

    def run(inputs: Sequence[Tensor]) -> object:
        with users_precision(program):
            return module(*inputs)

    return run


T = TypeVar("T")


def either_padding(make: Callable[[], T]) -> list[T]:
    """What compiles a region, made once, or with each of PADDINGS where Inductor would measure them itself.

    A process without a device compiles both ahead then, and nobody waits for a compile in between.
    """
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm

    module: Any = pad_mm
    is_asked, known = False, getattr(module, "get_cached_should_pad", None)
    if known is None:  # a torch that asks otherwise measures by itself
        return [make()]

    def ask(key: str) -> bool:
        nonlocal is_asked
        is_asked = True
        raise _MightPad(key)

    module.get_cached_should_pad = ask
    try:
        return [make()]
    except Exception:
        if not is_asked:
            raise
    finally:
        module.get_cached_should_pad = known
    found = []
    for padding in PADDINGS:
        with config.patch(padding):
            found.append(make())
    return found


def inductor_baselines(
    program: Program,
    device: torch.device,
    inputs: Sequence[Tensor],
    compiling: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[Baseline]:
    """The region compiled alone by Inductor (dynamic=False), warmed up on `inputs`. Takes seconds.

    Two where it might pad a product; the faster one is what it would have taken. compiling: entered while Dynamo
    traces and Inductor compiles, before what they made runs.
    """
    return either_padding(lambda: _inductor_baseline(program, device, inputs, compiling))


def _inductor_baseline(
    program: Program,
    device: torch.device,
    inputs: Sequence[Tensor],
    compiling: Callable[[], AbstractContextManager[object]],
) -> Baseline:
    from torch._dynamo.backends.registry import lookup_backend  # seconds, which a worker has once it is up

    with users_precision(program):
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
    with users_precision(program), compiling(), torch.no_grad(), suppress(Compiled):
        compiled(*inputs)
    is_compiled = True

    def run(given: Sequence[Tensor]) -> object:
        with users_precision(program), torch.no_grad():
            return compiled(*given)

    for _ in range(2):
        run(inputs)
    return run


def static_sizes(program: Program) -> Program:
    """The program with the example's sizes in place of symbolic ones."""
    if not program.is_symbolic:
        return program
    return replace(program, axes=tuple(replace(a, symbolic=False) for a in program.axes))
