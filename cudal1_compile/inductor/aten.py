"""The kernel-free plan without Inductor: the Dynamo graph itself, run by aten, as the backend "eager" runs it.

Training, mutation, aliasing and random numbers are then eager's, because nothing stands in between. It is the
faster plan where Inductor's own code for a convolution or a reduction is slow, and where a graph is so small
that its wrapper is most of a call. `why_not` says for which graphs it may not stand in for Inductor: where the
user asked for something that only a compile gives, or where a call could need much more memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import Tensor, fx
from torch._inductor import config
from torch._ops import HigherOrderOperator
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._pytree import tree_leaves

from cudal1_compile.inductor.graph_plan import RefusedNode

MEMORY_SHARE = 0.25  # of the free memory, for every tensor that the forward makes: aten frees and reuses less
PASSES = (
    "pre_grad_custom_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
)


def run_by_aten(gm: fx.GraphModule) -> Callable[..., Any]:
    """The graph as a callable; its code is written now, not on each call."""
    _LazyGraphModule.force_recompile(gm)
    return gm.forward


def why_not(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    inductor: Mapping[str, Any],
    refused: Iterable[RefusedNode],
    free_bytes: int,
) -> str | None:
    """The reason for which aten may not run this graph; None: it may.

    inductor: the user's Inductor options. refused: of the graph's plan; they name Inductor's random numbers.
    """
    if is_packaged():
        return "the compiled graph is written to a file"
    if has_cuda_graphs(inductor):
        return "the mode asks for CUDA graphs"
    if any(inductor.get(name, getattr(config, name, None)) is not None for name in PASSES):
        return "a pass of the user's own changes the graph"
    if any(isinstance(x, torch.SymInt) for x in example_inputs):
        return "its sizes change from call to call"
    if any(node.operation.startswith("prims.inductor_seed") for node in refused):
        return "under the same seed Inductor draws other random numbers"
    if any(isinstance(node.target, HigherOrderOperator) for node in gm.graph.nodes):
        return "it has an operator that is made to be compiled"
    return _why_no_room(gm, free_bytes)


def is_on_device(gm: fx.GraphModule, device: torch.device) -> bool:
    """Whether all tensors that it reads or makes are known to be there."""
    values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op != "output" and n.users]
    leaves = [x for value in values for x in tree_leaves(value)]
    return bool(leaves) and all(isinstance(x, Tensor) and x.device == device for x in leaves)


def is_packaged() -> bool:
    """Whether torch writes what the backend returns to a file (aot_compile): it must be Inductor's own then."""
    return bool(functorch_config.bundled_autograd_cache)


def has_cuda_graphs(inductor: Mapping[str, Any]) -> bool:
    return bool(inductor.get("triton.cudagraphs", config.triton.cudagraphs))


def _why_no_room(gm: fx.GraphModule, free_bytes: int) -> str | None:
    made = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method", "call_module")]
    if any("example_value" not in n.meta and n.users for n in made):
        return "its tensors' sizes are not known"
    tensors = [t for n in made for t in tree_leaves(n.meta.get("example_value")) if isinstance(t, Tensor)]
    needed = sum(t.numel() * t.element_size() for t in tensors)
    if needed <= MEMORY_SHARE * free_bytes:
        return None
    return f"it makes {needed / 2**20:.0f} MiB of tensors, and {free_bytes / 2**20:.0f} MiB are free"
