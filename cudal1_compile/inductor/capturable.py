"""Whether a graph at the hook may be recorded as a CUDA graph, whose replays run nothing on the host.

What a replay would leave out or repeat is refused here, by the graph alone: tensors on another device, sizes that
change, operators whose host code is not torch's own or waits. What only a run shows is captured.py's.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

OWN = ("aten", "prims", "inductor", "cudal1")  # namespaces of operators whose host code is known


def why_not_captured(graph: fx.Graph, device: str = "cuda") -> str:
    """The first reason for which it may not be; empty where it may. device: the type of all its tensors'."""
    for node in graph.nodes:
        if node.op == "get_attr" and not node.users:  # of torch.tensor(2), whose value stands where it was read
            continue
        why = _why_not_value(node, device) or (_why_not_call(node) if node.op == "call_function" else "")
        if why:
            return why
    return ""


def changed_inputs(graph: fx.Graph) -> tuple[int, ...]:
    """Places of the inputs that it writes to."""
    places = {node: i for i, node in enumerate(graph.find_nodes(op="placeholder"))}
    changed: set[int] = set()
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            sources = (_base(x) for x in node.all_input_nodes)
            changed |= {places[x] for x in sources if x in places}
    return tuple(sorted(changed))


def _why_not_value(node: fx.Node, device: str) -> str:
    value = node.meta.get("val")  # of several results those that are read have nodes of their own
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return "its sizes change from call to call"
    if isinstance(value, Tensor) and value.device.type != device:
        return f"'{node.name}' is on the {value.device.type}"
    if isinstance(value, Tensor) and not all(isinstance(n, int) for n in value.shape):
        return "its sizes change from call to call"
    return ""


def _why_not_call(node: fx.Node) -> str:
    target = node.target
    if target is operator.getitem:
        return ""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in OWN:
        return f"what {target} does on the host is not known"
    if torch.Tag.data_dependent_output in target.tags or _finds_size(node):
        return f"the host waits for what {target} finds"
    return ""


def _finds_size(node: fx.Node) -> bool:
    """Whether the sizes of its result depend on what it reads."""
    if node.target is not torch.ops.aten.index.Tensor:
        return torch.Tag.dynamic_output_shape in node.target.tags  # type: ignore[union-attr]
    indices: Any = node.args[1]
    return any(x is not None and x.meta["val"].dtype in (torch.bool, torch.uint8) for x in indices)


def _base(node: fx.Node) -> fx.Node:
    """What a chain of views, or of operators that write in place, begins with."""
    while node.op == "call_function" and node.all_input_nodes and _is_alias(node):
        node = node.all_input_nodes[0]
    return node


def _is_alias(node: fx.Node) -> bool:
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
    return node.target is operator.getitem or any(r.alias_info is not None for r in returns)
