"""Traces a function into one aten graph and checks its import as a single region. Not a test module itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from cudal1_fx_passes.importer.from_fx import ImportedRegion, import_region
from cudal1_fx_passes.importer.layout import memory_view
from cudal1_fx_passes.program.canonical import canonical_form
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program


def tensor(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def trace(run: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> fx.GraphModule:
    """The aten graph as written, with fake tensors on every node."""
    mode = "symbolic" if dynamic else "fake"
    return make_fx(run, tracing_mode=mode)(*inputs)


def compute_nodes(gm: fx.GraphModule) -> list[fx.Node]:
    """Nodes that a region may hold: calls that give tensors."""
    found = []
    for node in gm.graph.nodes:
        val = node.meta.get("val")
        items = val if isinstance(val, (tuple, list)) else [val]
        if node.op == "call_function" and any(isinstance(x, Tensor) for x in items):
            found.append(node)
    return found


def import_all(run: Callable[..., Any], *inputs: Tensor, dynamic: bool = False) -> ImportedRegion:
    return import_region(compute_nodes(trace(run, *inputs, dynamic=dynamic)))


def canonical_text(run: Callable[..., Any], *inputs: Tensor) -> str:
    from cudal1_fx_passes.program.text import print_program

    return print_program(canonical_form(import_all(run, *inputs).program).program)


def run_imported(imported: ImportedRegion, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs by node name, in the shape and strides of their fake tensors. given: inputs by node name."""
    form = canonical_form(imported.program)
    everything = [(imported.program, range(len(imported.inputs)), range(len(imported.outputs)))]
    everything.append((form.program, form.input_order, form.output_order))
    found: list[dict[str, Tensor]] = []
    for program, ins, outs in everything:
        found.append(_run(imported, program, list(ins), list(outs), given))
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-5, atol=1e-6, equal_nan=True)
    return found[0]


def _run(
    imported: ImportedRegion, program: Program, ins: list[int], outs: list[int], given: dict[str, Tensor]
) -> dict[str, Tensor]:
    nodes = [imported.inputs[i] for i in ins]
    tensors = [memory_view(program, spec, given[n.name]) for spec, n in zip(program.inputs, nodes, strict=True)]
    found = {}
    for at, value in enumerate(evaluate(program, tensors)):
        meta = imported.outputs[outs[at]].meta["val"]
        made = torch.empty_strided(_ints(meta.shape), _ints(meta.stride()), dtype=meta.dtype)
        memory_view(program, program.outputs[at], made).copy_(value)
        found[imported.outputs[outs[at]].name] = made
    return found


def _ints(sizes: Sequence[Any]) -> list[int]:
    return [s if isinstance(s, int) else int(s.node.hint) for s in sizes]


def check_import(
    run: Callable[..., Any], *inputs: Tensor, dynamic: bool = False, tolerance: float = 1e-5
) -> ImportedRegion:
    """Asserts that the region computes what the function does; returns it."""
    gm = trace(run, *inputs, dynamic=dynamic)
    imported = import_region(compute_nodes(gm))
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder" and isinstance(n.meta["val"], Tensor)]
    given = {n.name: x for n, x in zip(placeholders, inputs, strict=True)}
    got = run_imported(imported, given)
    wanted = run(*inputs)
    wanted = wanted if isinstance(wanted, (tuple, list)) else (wanted,)
    output = next(n for n in gm.graph.nodes if n.op == "output")
    results = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    for node, value in zip(results, wanted, strict=True):
        if node.name in got:
            assert got[node.name].dtype == value.dtype
            torch.testing.assert_close(got[node.name], value, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert got, "the region has no output"
    return imported
