"""Runs every region of a captured graph as a program and compares it with the FX nodes. Not a test itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fx_models import Case
from torch import Tensor, fx

from cudal1_fx_passes.border import is_view
from cudal1_fx_passes.canonical import canonical_form
from cudal1_fx_passes.capture import CapturedGraph, capture_graphs
from cudal1_fx_passes.evaluate import evaluate
from cudal1_fx_passes.layout import memory_view
from cudal1_fx_passes.partition import Partition, Region, partition
from cudal1_fx_passes.program import Program

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-12}


class _Record(fx.Interpreter):
    """Runs a graph and keeps every node's value."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        mutable = n.op == "placeholder" and isinstance(result, Tensor)  # copy_ at the end of a graph writes to it
        self.values[n] = result.clone() if mutable else result
        return result


def capture(case: Case) -> list[CapturedGraph]:
    torch.manual_seed(0)
    run, inputs = case.make()
    if case.train:
        inputs = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
    return capture_graphs(run, inputs, case.train, True if case.dynamic else None)


def node_values(graph: CapturedGraph) -> dict[fx.Node, Any]:
    record = _Record(graph.gm)
    with torch.no_grad():
        record.run(*graph.inputs)
    return record.values


def like_meta(node: fx.Node, value: Tensor) -> Tensor:
    """The value with the strides of the node's fake tensor."""
    strides = [s if isinstance(s, int) else int(s.node.hint) for s in node.meta["val"].stride()]
    if list(value.stride()) == strides or any(s == 0 for s in strides):
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def run_region(
    region: Region, program: Program, order: tuple[int, ...], values: dict[fx.Node, Any]
) -> list[Tensor]:
    nodes = [region.imported.inputs[i] for i in order]
    tensors = [
        memory_view(program, spec, like_meta(n, values[n])) for spec, n in zip(program.inputs, nodes, strict=True)
    ]
    return evaluate(program, tensors)


def check_region(region: Region, values: dict[fx.Node, Any]) -> None:
    """Asserts that the program and its canonical form give what the nodes gave."""
    canonical = canonical_form(region.imported.program)
    plain = region.imported.program
    everything = (tuple(range(len(plain.inputs))), tuple(range(len(plain.outputs))))
    for program, ins, outs in (
        (plain, *everything),
        (canonical.program, canonical.input_order, canonical.output_order),
    ):
        got = run_region(region, program, ins, values)
        for at, (spec, tensor) in enumerate(zip(program.outputs, got, strict=True)):
            node = region.imported.outputs[outs[at]]
            wanted = memory_view(program, spec, like_meta(node, values[node]))
            assert tensor.dtype == wanted.dtype, f"{node}: {tensor.dtype} and {wanted.dtype}"
            tolerance = TOLERANCE.get(wanted.dtype, 0)
            torch.testing.assert_close(tensor, wanted, rtol=tolerance * 5, atol=tolerance, equal_nan=True)


@dataclass(frozen=True)
class Coverage:
    inside: int
    outside: int
    reasons: dict[str, str]

    @property
    def share(self) -> float:
        return self.inside / max(1, self.inside + self.outside)


LIBRARY = (
    "mm.",
    "bmm.",
    "addmm.",
    "convolution",
    "attention",
    "copy_.",
    "sym_size",
    "max_pool2d_with_indices_backward",
)


def coverage(graph: CapturedGraph, found: Partition) -> Coverage:
    """Nodes inside regions and outside, views and library calls not counted."""
    taken = {n for r in found.regions for n in r.nodes}
    counted = [
        n
        for n in graph.gm.graph.nodes
        if n.op == "call_function" and not is_view(n) and not any(x in str(n.target) for x in LIBRARY)
    ]
    counted = [n for n in counted if "getitem" not in str(n.target)]
    outside = [n for n in counted if n not in taken]
    return Coverage(len(counted) - len(outside), len(outside), {n.name: found.refused[n.name] for n in outside})


def check_graph(graph: CapturedGraph) -> Partition:
    found = partition(graph.gm.graph)
    values = node_values(graph)
    for region in found.regions:
        check_region(region, values)
    return found
