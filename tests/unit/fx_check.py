"""Runs every region of a captured graph as a program and compares it with the FX nodes. Not a test itself."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import networkx
import torch
from fx_models import Case
from torch import Tensor, fx
from torch._inductor.pattern_matcher import stable_topological_sort

from cudal1_fx_passes.fusion.grow import element_count
from cudal1_fx_passes.fusion.partition import Partition, PartitionConfig, Region, partition, region_graph
from cudal1_fx_passes.importer.boundary import constant_nodes, is_view, rematerialised_nodes
from cudal1_fx_passes.importer.capture import CapturedGraph, capture_graphs, copy_graph
from cudal1_fx_passes.importer.layout import memory_view
from cudal1_fx_passes.importer.lowering import holds_tensors
from cudal1_fx_passes.program.canonical import canonical_form
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.to_aten import to_aten

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
    counted = [n for n in counted if "getitem" not in str(n.target) and holds_tensors(n)]
    outside = [n for n in counted if n not in taken]
    return Coverage(len(counted) - len(outside), len(outside), {n.name: found.refused[n.name] for n in outside})


def check_graph(graph: CapturedGraph, config: PartitionConfig | None = None) -> Partition:
    """Every region as a program, then the whole graph with every region replaced by its program."""
    found = partition(graph.gm.graph, config)
    values = node_values(graph)
    for region in found.regions:
        check_region(region, values)
        check_aten(region, values)
    check_convex(graph.gm.graph, found)
    check_spliced(graph, config)
    return found


def check_aten(region: Region, values: dict[fx.Node, Any]) -> None:
    """Asserts that the region's aten code is the program's meaning."""
    if region.program.is_symbolic:
        return
    pairs = zip(region.program.inputs, region.inputs, strict=True)
    tensors = [memory_view(region.program, spec, like_meta(n, values[n])) for spec, n in pairs]
    got = to_aten(region.program)(*tensors)
    for wanted, tensor in zip(evaluate(region.program, tensors), got, strict=True):
        assert tensor.dtype == wanted.dtype and tensor.shape == wanted.shape
        tolerance = TOLERANCE.get(wanted.dtype, 0)
        torch.testing.assert_close(tensor, wanted, rtol=tolerance * 5, atol=tolerance, equal_nan=True)


def check_convex(graph: fx.Graph, found: Partition) -> None:
    """An independent oracle: contracting the regions leaves no cycle, and every region hangs together."""
    constant = constant_nodes(list(graph.nodes))
    whole: networkx.DiGraph[fx.Node] = networkx.DiGraph()
    for node in graph.nodes:
        whole.add_node(node)
        whole.add_edges_from((a, node) for a in node.all_input_nodes)
    owner: dict[fx.Node, int] = {}
    lender: dict[fx.Node, int] = {}
    for at, region in enumerate(found.regions):
        taken = [n for n in region.nodes if n not in constant]
        assert not any(n in owner for n in taken), "a node lies in two regions"
        rematerialised = rematerialised_nodes(region.nodes)
        owner |= dict.fromkeys((n for n in taken if n not in rematerialised), at)
        lender |= dict.fromkeys((n for n in taken if n in rematerialised), at)
        part = whole.subgraph([*region.nodes, *(n for n in region.inputs if element_count(n) > 1)])
        assert networkx.is_weakly_connected(part), "a region falls apart"
    merged: networkx.DiGraph[object] = networkx.DiGraph()
    for a, b in whole.edges:
        own_copy = a in lender and lender[a] == owner.get(b)  # the region has what it lends itself
        if not own_copy and owner.get(a, a) != owner.get(b, b):
            merged.add_edge(owner.get(a, a), owner.get(b, b))
    assert networkx.is_directed_acyclic_graph(merged), "the regions are not convex together"
    position = {node: at for at, node in enumerate(networkx.topological_sort(region_graph(found)))}
    order = [position[f"region {at}"] for at in range(len(found.regions))]
    for a, b in region_graph(found).edges:
        assert position[a] < position[b] and len(order) == len(found.regions)


def check_spliced(graph: CapturedGraph, config: PartitionConfig | None = None) -> None:
    """Replaces every region by a call of its program, last to first, and runs the whole graph."""
    torch.manual_seed(0)  # dropout
    wanted = graph.gm(*_copies(graph.inputs))
    made = copy_graph(graph.gm)
    for at, region in reversed(list(enumerate(partition(made.graph, config).regions))):
        made.add_submodule(f"region_{at}", _Runner(region))
        with made.graph.inserting_after(region.nodes[-1]):
            call = made.graph.call_module(f"region_{at}", region.inputs)
        after = call
        for number, output in enumerate(region.outputs):
            with made.graph.inserting_after(after):
                after = made.graph.call_function(operator.getitem, (call, number))
            output.replace_all_uses_with(after)
        for node in reversed(region.nodes):
            if not node.users:
                made.graph.erase_node(node)
    stable_topological_sort(made.graph)
    made.graph.lint()
    made.recompile()
    torch.manual_seed(0)
    for a, b in zip(_flat(made(*_copies(graph.inputs))), _flat(wanted), strict=True):
        tolerance = TOLERANCE.get(b.dtype, 0)
        torch.testing.assert_close(a, b, rtol=tolerance * 20, atol=tolerance * 5, equal_nan=True)


class _Runner(torch.nn.Module):
    """A region as a module over tensors in the shapes of the graph."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self.region = region

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        program = self.region.program
        pairs = list(zip(program.inputs, self.region.inputs, tensors, strict=True))
        inputs = [memory_view(program, spec, like_meta(node, x)) for spec, node, x in pairs]
        made = []
        for spec, node, value in zip(program.outputs, self.region.outputs, evaluate(program, inputs), strict=True):
            meta = node.meta["val"]
            buffer = torch.empty_strided(_ints(meta.shape), _ints(meta.stride()), dtype=meta.dtype)
            memory_view(program, spec, buffer).copy_(value)
            made.append(buffer)
        return made


def _ints(sizes: Any) -> list[int]:
    return [s if isinstance(s, int) else int(s.node.hint) for s in sizes]


def _copies(inputs: list[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, Tensor) else x for x in inputs]


def _flat(result: Any) -> list[Tensor]:
    return [x for x in result if isinstance(x, Tensor)]
