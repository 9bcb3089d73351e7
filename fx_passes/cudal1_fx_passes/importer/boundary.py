"""The boundary of a region: which of an FX graph's nodes are its inputs, its outputs, and rematerialised.

A constant is a node that depends on no tensor (full, iota, a mask made of them). Views and constants that nodes
outside use too are rematerialised: the region computes them itself, and they stay in the graph for their users
outside; what such a view reads is an output.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch._ops import OpOverload

from cudal1_fx_passes.importer import (
    lower_gather,
    lower_pointwise,
    lower_pool_gradients,
    lower_products,
    lower_reduce,
    lower_views,
    lower_windows,
)
from cudal1_fx_passes.importer.lowering import LOWERINGS, Lowering, holds_tensors

_LOWER_MODULES = (
    lower_gather,
    lower_pointwise,
    lower_pool_gradients,
    lower_products,
    lower_reduce,
    lower_views,
    lower_windows,
)  # imported for their registrations


def lowering_of(node: fx.Node) -> Lowering | None:
    """The lowering of a node, or None where it has none; getitem counts as its producer's view."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        found = lowering_of(source) if isinstance(source, fx.Node) else None
        return None if found is None else Lowering(found.run, "view", 0)
    return LOWERINGS.get(node.target) if isinstance(node.target, OpOverload) else None


def is_view(node: fx.Node) -> bool:
    """Whether a node only looks at its input: a view, or one piece of a split."""
    found = lowering_of(node)
    return found is not None and found.role == "view" and not _picks_result(node)


def is_product(node: fx.Node) -> bool:
    found = lowering_of(node)
    return found is not None and found.role == "product"


def _picks_result(node: fx.Node) -> bool:
    """Whether a getitem names one result of an operation (not one piece of a split)."""
    if node.target is not operator.getitem:
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    found = lowering_of(source)
    return found is None or found.role != "view"


def is_bundle(node: fx.Node) -> bool:
    """Whether a node has several results."""
    return isinstance(node.meta.get("val"), (tuple, list))


def region_inputs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Tensors from outside, in order of first use."""
    inside = set(nodes)
    found = dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside)
    return [n for n in found if isinstance(n.meta.get("val"), torch.Tensor)]


def region_outputs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Results that are used outside; of rematerialised nodes what they read is used outside instead."""
    inside, rematerialised = set(nodes), rematerialised_nodes(nodes)
    used = [n for n in nodes if any(u not in inside or u in rematerialised for u in n.users)]
    return [n for n in used if n not in rematerialised and not is_bundle(n)]


def rematerialised_nodes(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Views and constants of a region that stay in the graph, because nodes outside use them too."""
    inside, constant = set(nodes), constant_nodes(nodes)
    rematerialised: set[fx.Node] = set()
    for node in reversed(nodes):
        if (node in constant or is_view(node)) and any(u not in inside or u in rematerialised for u in node.users):
            rematerialised.add(node)
    return rematerialised


def constant_nodes(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """Pointwise nodes and views that depend on no tensor."""
    found: set[fx.Node] = set()
    for node in nodes:
        lowering = lowering_of(node)
        if lowering is None or lowering.role not in ("pointwise", "view") or not holds_tensors(node):
            continue
        if not is_bundle(node) and all(a in found for a in node.all_input_nodes if holds_tensors(a)):
            found.add(node)
    return found
