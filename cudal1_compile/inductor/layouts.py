"""Strides as Inductor will choose them: where it runs convolutions channels-last, regions must expect that.

    conv: f32[8,64,32,32] contiguous  ->  channels-last, and so is all that eager would make of it

The graph's fake tensors say contiguous, because eager's convolution would be; a kernel written for that would
need two transposes around it. `assumed_layouts` puts the strides to be into the nodes' meta for as long as the
graph is cut and spliced. An assumption that turns out wrong costs the kernel: lowering then gives the region back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering, get_user_visible_output_strides
from torch._inductor.virtualized import V
from torch.utils import _pytree as pytree

LAYOUT_SETTINGS = ("layout_optimization", "force_layout_optimization")  # Inductor's, which a splice may change
CONVOLUTION = torch.ops.aten.convolution.default


@contextmanager
def assumed_layouts(graph: fx.Graph) -> Iterator[None]:
    """Within the block meta['val'] has the assumed strides; afterwards nodes have what they had before."""
    assumed = assume(graph) if is_channels_last(graph) else {}
    before = {node: node.meta["val"] for node in assumed}
    for node, value in assumed.items():
        node.meta["val"] = value
    try:
        yield
    finally:
        for node, value in before.items():
            node.meta["val"] = value


def has_convolutions(graph: fx.Graph) -> bool:
    return any(n.target is CONVOLUTION for n in graph.nodes)


def is_channels_last(graph: fx.Graph) -> bool:
    """Inductor's own decision for a graph."""
    if not has_convolutions(graph):
        return False
    module = graph.owning_module
    return module is not None and GraphLowering.decide_layout_opt(module, is_inference=_is_inference(graph))


def keep_decision(graph: fx.Graph, was_channels_last: bool) -> None:
    """Inductor decides by the convolutions that it finds, and kernels may have taken some of them away.

    Sets Inductor's config for the rest of this compile, whose config_patches hold both names and so undo it.
    """
    if not has_convolutions(graph) or is_channels_last(graph) == was_channels_last:
        return
    if was_channels_last:
        inductor_config.force_layout_optimization = True
    else:
        inductor_config.layout_optimization = False


def assume(graph: fx.Graph, given: Mapping[fx.Node, Any] | None = None) -> dict[fx.Node, Any]:
    """Convolutions in channels-last, and the fake tensors that follow from them.

    What the caller gets has eager's strides, for those too that read it within the graph.
    given: fake tensors of placeholders that lie otherwise than the graph says.
    """
    found = dict(given or {})
    returned = get_user_visible_output_strides(graph)
    for node in graph.nodes:
        if node.op != "call_function" or "val" not in node.meta or node in returned:
            continue
        if node.target is CONVOLUTION:
            value = node.meta["val"]
            if value.dim() == 4:
                found[node] = channels_last(value)
        elif any(a in found for a in node.all_input_nodes):
            value = _run_again(node, found)
            if value is not None:
                found[node] = value
    return found


def channels_last(value: Tensor) -> Tensor:
    """A fake tensor of four dims as it would lie in channels-last."""
    with V.fake_mode:
        return torch.empty_like(value, memory_format=torch.channels_last)


def _run_again(node: fx.Node, found: dict[fx.Node, Any]) -> Any:
    """The node's fake result on the assumed inputs; None where it cannot be had, and the old one stays."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: found.get(n, n.meta.get("val")))
    old = pytree.tree_leaves(node.meta["val"])
    run: Any = node.target
    try:
        with V.fake_mode, torch.no_grad():
            value = run(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return None
    new = pytree.tree_leaves(value)
    same_shapes = len(new) == len(old) and all(_shape(a) == _shape(b) for a, b in zip(new, old, strict=True))
    return value if same_shapes else None


def _shape(x: Any) -> Any:
    return tuple(x.shape) if isinstance(x, Tensor) else type(x)


def _is_inference(graph: fx.Graph) -> bool:
    """AOTAutograd names the inputs of training graphs primals and tangents."""
    return not any(n.op == "placeholder" and n.name.startswith(("primals", "tangents")) for n in graph.nodes)
