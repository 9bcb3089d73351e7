"""A region without a kernel by aten's library instead of Inductor's loops, where that was measured to be faster.

    %p = aten.avg_pool2d(%x, [3, 3])   ->   %p = library_aten_avg_pool2d(%x, [3, 3])

Only the node's target changes: at lowering it calls the operator itself, on its inputs as the graph's fake tensors
lay them out, with Inductor's FallbackKernel. So it is planned, captured and differentiated like any library call
of Inductor's, and needs nothing at run time. No matcher of Inductor's sees the node. What a region has between its
library operators (pointwise work, views) stays Inductor's: it fuses them as well as aten, or better.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.ir import ExternKernel
from torch._inductor.lowering import constrain_to_fake_tensors, fallback_handler
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from cudal1_compile.inductor.fused_lowering import has_other_layout
from cudal1_fx_passes.importer.boundary import lowering_of

LIBRARY_ROLES = ("reduce", "scan", "window", "product")  # what Inductor writes loops for, but for pointwise work
MAX_POOL = torch.ops.prims._low_memory_max_pool_with_offsets.default  # eager's form is written in Python
SCATTER_ADD = torch.ops.aten.scatter_add.default  # likewise, where it is a gradient of pooling
MAX_POOLS = {
    2: torch.ops.aten.max_pool2d_with_indices.default,
    3: torch.ops.aten.max_pool3d_with_indices.default,
}


def library_operator(node: fx.Node) -> OpOverload | None:
    """What aten runs for a node of a region; None for a node that is left to Inductor."""
    found = lowering_of(node)
    if found is None or found.role not in LIBRARY_ROLES or not isinstance(node.target, OpOverload):
        return None
    if node.target is SCATTER_ADD:
        return None
    if node.target is MAX_POOL and all(user.args[1] == 0 for user in node.users):
        return MAX_POOLS.get(len(node.args[1]))  # type: ignore[arg-type]
    return node.target if node.target.namespace == "aten" else None


def run_by_library(node: fx.Node) -> None:
    """Changes the node's target; a node that aten's library has nothing for stays as it is."""
    operator = library_operator(node)
    if operator is not None:
        fakes = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
        node.target = LibraryCall(operator, node.target, fakes, node.meta["val"])


class LibraryCall:
    """A lowering as a node's target: Inductor calls it as it is, with its own tensors."""

    _inductor_lowering_function = True

    def __init__(self, operator: OpOverload, original: Any, fakes: Any, result: Any) -> None:
        """fakes, result: the node's arguments and its result as fake tensors, with the strides to be."""
        self.operator, self.original, self.fakes, self.result = operator, original, fakes, result
        self.__name__ = f"library_{operator}".replace(".", "_")

    def __repr__(self) -> str:
        return self.__name__  # generated code holds it, so no address

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, assumed = pytree.tree_leaves((args, kwargs)), pytree.tree_leaves(self.fakes)
        pairs = zip(given, assumed, strict=True)
        if any(isinstance(fake, torch.Tensor) and has_other_layout(x, fake) for x, fake in pairs):
            V.graph.current_node.target = self.original  # lowerings look at it
            return V.graph.call_function(self.original, args, kwargs)
        args, kwargs = constrain_to_fake_tensors(args, kwargs, *self.fakes)  # type: ignore[no-untyped-call]
        run = fallback_handler(self.operator, add_to_fallback_set=False)  # type: ignore[no-untyped-call]
        made = run(*args, **kwargs)
        if isinstance(self.result, torch.Tensor):
            return _as_assumed(made, self.result)
        return [_as_assumed(x, fake) for x, fake in zip(made, self.result, strict=True)]


def _as_assumed(x: Any, fake: Any) -> Any:
    """A convolution of what lies contiguous gives the same, where Inductor's would have been channels-last."""
    if not isinstance(fake, torch.Tensor) or not has_other_layout(x, fake):
        return x
    return ExternKernel.require_exact_strides(x, fake.stride())
