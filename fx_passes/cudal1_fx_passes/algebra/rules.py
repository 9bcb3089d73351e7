"""All rules, and the loop over a graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import fx

from cudal1_fx_passes.algebra.averages import average_of_convolution
from cudal1_fx_passes.algebra.constants import clamp_within_range, constant_result
from cudal1_fx_passes.algebra.diagonal import product_of_diagonal
from cudal1_fx_passes.algebra.nodes import Maker, aten, value
from cudal1_fx_passes.algebra.repeats import product_computed_before
from cudal1_fx_passes.algebra.singles import logsumexp_of_one, reduction_of_one
from cudal1_fx_passes.algebra.sums import chain_of_products, product_of_equals, sum_of_product
from cudal1_fx_passes.algebra.triangles import (
    kept_half_of_product,
    product_of_triangles,
    product_with_own_transpose,
)
from cudal1_fx_passes.algebra.weights import scale_into_weight

log = logging.getLogger(__name__)


META = "algebra"  # in the metadata of what a rule put in a node's place: its name


class Rule(NamedTuple):
    label: str
    put: Callable[[fx.Node], fx.Node | None]  # what stands in a node's place; None: it stays


# from those that leave out all work to those that move it; what one puts in the next sweep looks at again
RULES = (
    Rule("assumes_finite", constant_result),
    Rule("exact", clamp_within_range),
    Rule("exact", reduction_of_one),
    Rule("exact", logsumexp_of_one),
    Rule("exact", product_computed_before),
    Rule("reassociates", product_of_diagonal),
    Rule("reassociates", sum_of_product),
    Rule("reassociates", average_of_convolution),
    Rule("reassociates", product_of_equals),
    Rule("reassociates", chain_of_products),
    Rule("reassociates", product_of_triangles),
    Rule("reassociates", kept_half_of_product),
    Rule("reassociates", product_with_own_transpose),
    Rule("reassociates", scale_into_weight),
)


def rewrite(graph: fx.Graph, labels: Collection[str]) -> list[str]:
    """Applies the rules of these labels until none fires; what nothing reads then goes."""
    fired: list[str] = []
    while found := _once(graph, labels):
        fired += found
    if fired:
        log.debug("algebra: %s", ", ".join(fired))
    return fired


def _laid_out(new: fx.Node | None, node: fx.Node) -> fx.Node | None:
    """As what stood there, on which views of it may lean; None where that cannot be."""
    if new is None or value(new).stride() == value(node).stride():
        return new
    if not value(node).is_contiguous():
        return None
    if value(new).is_contiguous():  # but for strides of axes of one
        return new
    return Maker(node)(aten.clone.default, new, memory_format=torch.contiguous_format)


def _once(graph: fx.Graph, labels: Collection[str]) -> list[str]:
    """From the results back to the inputs."""
    fired: list[str] = []
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function":
            continue
        for label, put in RULES if node.users else ():
            if label in labels and (new := _laid_out(put(node), node)) is not None:
                kept = {k: v for k, v in node.meta.items() if k in ("stack_trace", "nn_module_stack")}
                new.meta = kept | new.meta | {META: put.__name__}  # it may have stood there before
                node.replace_all_uses_with(new)
                fired.append(put.__name__)
                break
        if fired and not node.users and not node.is_impure():
            graph.erase_node(node)
    return fired
