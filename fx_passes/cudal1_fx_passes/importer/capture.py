"""Captures the graphs that the backend's pass will see, without compiling anything.

A model is run under compile_fx with an inner compiler that brings each graph (inference, forward, backward)
into the state of `post_grad_custom_pre_pass`, keeps a copy and runs the graph as it is. Caches are off, so
nothing captured here can be loaded by anyone else. For tests, benchmarks and explain; the backend does not
use it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

Kind = Literal["inference", "forward", "backward"]


@dataclass
class CapturedGraph:
    """One graph with fake metadata on every node, and the real inputs of its first run."""

    kind: Kind
    gm: fx.GraphModule
    inputs: list[Any] = field(default_factory=list)


def capture_graphs(
    run: Callable[..., Any], inputs: Sequence[Any], train: bool = False, dynamic: bool | None = None
) -> list[CapturedGraph]:
    """Compiles and runs `run(*inputs)`, with train=True also the backward of the sum of its outputs."""
    from torch._inductor.compile_fx import compile_fx

    found: list[CapturedGraph] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        def inner(graph: fx.GraphModule, inner_inputs: Sequence[Any], **kwargs: Any) -> Any:
            return _record(graph, inner_inputs, kwargs, found)

        return compile_fx(gm, example_inputs, inner_compile=inner)

    torch._dynamo.reset()
    with (
        torch._inductor.config.patch(force_disable_caches=True, joint_graph_constant_folding=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch.set_grad_enabled(train),
    ):
        results = torch.compile(run, backend=backend, dynamic=dynamic)(*inputs)
        if train:
            _total(results).backward()  # type: ignore[no-untyped-call]
    torch._dynamo.reset()
    return found


def _total(results: Any) -> Tensor:
    """A scalar that depends on every differentiable output."""
    flat = results if isinstance(results, (tuple, list)) else [results]
    terms = [
        (x * torch.linspace(0.5, 1.5, x.numel()).to(x).reshape(x.shape)).sum() for x in flat if x.requires_grad
    ]
    return torch.stack([t.float() for t in terms]).sum()


def _record(
    graph: fx.GraphModule, inputs: Sequence[Any], kwargs: dict[str, Any], found: list[CapturedGraph]
) -> Callable[[list[Any]], Any]:
    prepare(graph, inputs, bool(kwargs.get("is_inference")))
    kind: Kind = (
        "backward" if kwargs.get("is_backward") else "inference" if kwargs.get("is_inference") else "forward"
    )
    captured = CapturedGraph(kind, copy_graph(graph))
    found.append(captured)

    def run(args: list[Any]) -> Any:
        captured.inputs = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
        result = graph(*args)
        args.clear()
        return result

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def prepare(graph: fx.GraphModule, inputs: Sequence[Any], is_inference: bool) -> None:
    """What Inductor does to a graph before the pass at post_grad_custom_pre_pass."""
    from torch._inductor import config
    from torch._inductor.compile_fx import fake_tensor_prop
    from torch._inductor.fx_passes.post_grad import reorder_for_locality, view_to_reshape

    view_to_reshape(graph)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fake_tensor_prop(graph, list(inputs))
    graph.graph.eliminate_dead_code()
    if is_inference and config.reorder_for_locality:
        reorder_for_locality(graph.graph)
    graph.recompile()


def copy_graph(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy whose nodes keep their metadata (deepcopy would copy fake tensors)."""
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    result = made.graph_copy(graph.graph, env)
    for old, new in env.items():
        new.meta = copy.copy(old.meta)
    made.output(result)
    return fx.GraphModule(graph, made)


def take_for_cuda(graph: fx.Graph) -> None:
    """As if captured on a GPU, where torch's flags decide on TF32. Fake tensors only."""
    for node in graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, FakeTensor):
                value.fake_device = torch.device("cuda", 0)
