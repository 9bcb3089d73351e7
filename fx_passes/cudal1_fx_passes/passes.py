"""Runs passes over FX graphs: one signature, and around each the same timing, checks, provenance and dump.

    graph = run_pass(drop_noops, graph, config)

A pass returns a graph (the same object where it changed it in place) and is idempotent. run_pass alone checks
that a graph is well formed before and after, that it still returns the same shapes, dtypes and strides, notes
on new nodes which pass made them (meta[PROVENANCE]), logs the time, and at debug level 3 logs the graph as
Python.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from cudal1_fx_passes.lowering import extent, holds_tensors

log = logging.getLogger(__name__)

PROVENANCE = "cudal1_passes"
aten, prims = torch.ops.aten, torch.ops.prims


@dataclass(frozen=True, slots=True)
class PassConfig:
    debug_level: int = 0  # 2: timings, 3: the graph after each pass


Pass = Callable[[fx.Graph, PassConfig], fx.Graph]


class PassError(AssertionError):
    """A pass broke a rule that every pass must keep."""


def run_pass(run: Pass, graph: fx.Graph, config: PassConfig) -> fx.Graph:
    """Returns the pass's graph. Raises PassError where it is malformed or returns something else."""
    name = run.__name__
    check_graph(graph, f"before {name}")
    before, wanted = set(graph.nodes), result_specs(graph)
    start = time.perf_counter()
    made = run(graph, config)
    spent_ms = (time.perf_counter() - start) * 1e3
    check_graph(made, f"after {name}")
    if result_specs(made) != wanted:
        raise PassError(f"{name}: the graph returned {wanted}, now it returns {result_specs(made)}")
    for node in made.nodes:
        if node not in before:
            node.meta[PROVENANCE] = (*node.meta.get(PROVENANCE, ()), name)
    if config.debug_level >= 2:
        log.info("%s: %.1f ms, %d -> %d nodes", name, spent_ms, len(before), len(made.nodes))
    if config.debug_level >= 3:
        log.info("after %s:\n%s", name, made.python_code("self").src)
    return made


def check_graph(graph: fx.Graph, when: str) -> None:
    """Every pass's precondition and postcondition: sorted, linked, and with metadata on every call."""
    try:
        graph.lint()
    except RuntimeError as error:
        raise PassError(f"{when}: {error}") from None
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            raise PassError(f"{when}: {node} has no meta['val']")


def result_specs(graph: fx.Graph) -> list[Any]:
    """dtype, sizes and strides of what a graph returns."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    found: list[Any] = []
    for node in output.all_input_nodes:
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor):
            found.append((val.dtype, [extent(s) for s in val.shape], [extent(s) for s in val.stride()]))
    return found


def drop_noops(graph: fx.Graph, config: PassConfig) -> fx.Graph:
    """Removes casts to the same dtype, products and quotients by 1, and views that change nothing.

    %b = mul(%a, 1.0); %c = exp(%b)   ->   %c = exp(%a)
    """
    outputs = {n for user in graph.nodes if user.op == "output" for n in user.all_input_nodes}
    for node in list(graph.nodes):
        source = _passed_on(node)
        if source is not None and node not in outputs:  # a graph's results must not become aliases
            node.replace_all_uses_with(source)
            graph.erase_node(node)
    return graph


_SCALED = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_RESHAPED = (aten.reshape.default, aten.view.default, aten.expand.default, aten.permute.default)


def _passed_on(node: fx.Node) -> fx.Node | None:
    """The input that a node returns unchanged."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if not holds_tensors(source) or not _looks_the_same(source.meta["val"], node.meta["val"]):
        return None
    if node.target in _SCALED:
        factor = node.args[1]
        return source if isinstance(factor, (int, float)) and factor == 1 else None
    if node.target is prims.convert_element_type.default or node.target in _RESHAPED[:3]:
        return source
    unmoved = node.target is aten.permute.default and list(node.args[1]) == list(range(len(node.args[1])))  # type: ignore[arg-type]
    return source if unmoved else None


def _looks_the_same(a: object, b: object) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or a.dtype != b.dtype:
        return False
    return [extent(s) for s in (*a.shape, *a.stride())] == [extent(s) for s in (*b.shape, *b.stride())]
