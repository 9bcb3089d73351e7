"""Graphs that torch 2.11 made for a GPU: the same partitioner cuts them, whatever torch runs this test.

data/graphs_2_11.txt holds one function a graph, placeholders annotated with dtype[shape][strides].
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fx_check import check_convex
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from cudal1_fx_passes.fusion.partition import Partition, partition

_TEXT = (Path(__file__).parent / "data" / "graphs_2_11.txt").read_text()
GRAPHS = dict(part.split("\n", 1) for part in re.split(r"^# ", _TEXT, flags=re.MULTILINE)[1:])
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "i64": torch.int64, "i8": torch.int8, "b8": torch.bool}

# operations of the program of each region, and the operators that stay outside
EXPECTED: dict[str, tuple[list[int], set[str]]] = {
    "layernorm fw": ([8], set()),
    "layernorm bw": ([15], set()),
    "rmsnorm fw": ([6], set()),
    "rmsnorm bw": ([10], set()),
    "softmax inf": ([5], set()),
    "softmax bw": ([4], set()),
    "log_softmax fw": ([6], set()),
    "log_softmax bw": ([4], set()),
    "gelu_mlp fw": ([5], {"addmm"}),
    "gelu_mlp bw": ([1, 12], {"mm"}),
    "gelu_mlp_bf16 inf": ([7], {"addmm"}),
    "conv_bn_relu inf": ([8], {"convolution"}),
    "conv_bn_relu fw": ([17], {"convolution", "copy_", "add"}),
    "conv_bn_relu bw": ([15], {"convolution_backward"}),
    "manual_attn fw": ([6], {"bmm"}),
    "manual_attn bw": ([5], {"bmm"}),
    "cross_entropy inf": ([15], set()),
    "cross_entropy fw": ([15], set()),
    "cross_entropy bw": ([14], set()),
    "cumsum bw": ([1], set()),
    "embedding inf": ([1], set()),
    "groupnorm_silu fw": ([12], set()),
    "groupnorm_silu bw": ([41], set()),
    "maxpool fw": ([2], set()),
    "maxpool bw": ([7], set()),
    "inplace_buf inf": ([2], {"copy_"}),
}


class _Recorder:
    """Stands for a namespace of operators: a call becomes a node."""

    def __init__(self, graph: fx.Graph, found: Any) -> None:
        self._graph, self._found = graph, found

    def __getattr__(self, name: str) -> _Recorder:
        return _Recorder(self._graph, getattr(self._found, name))

    def __call__(self, *args: Any, **kwargs: Any) -> _Result:
        args, kwargs = fx.node.map_aggregate((args, kwargs), lambda x: x.node if isinstance(x, _Result) else x)
        return _Result(self._graph.call_function(self._found, args, kwargs))


class _Result:
    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def __getitem__(self, at: int) -> _Result:
        return _Result(self.node.graph.call_function(operator.getitem, (self.node, at)))


def load(name: str) -> fx.GraphModule:
    """The graph with fake tensors on its nodes."""
    graph = fx.Graph()
    names: dict[str, Any] = {"torch": torch, "device": torch.device, "inf": float("inf")}
    names |= {n: _Recorder(graph, getattr(torch.ops, n)) for n in ("aten", "prims")}
    exec(compile(GRAPHS[name], name, "exec", dont_inherit=True), names)
    forward: Callable[..., Any] = names["forward"]
    placeholders = [_Result(graph.placeholder(x)) for x in forward.__annotations__]
    results = forward(*placeholders)
    graph.output(tuple(x.node if isinstance(x, _Result) else x for x in results))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    mode = FakeTensorMode()
    with mode:
        inputs = [_fake(text) for text in forward.__annotations__.values()]
    FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*inputs)
    return gm


def _fake(text: str) -> torch.Tensor:
    match = re.fullmatch(r"(\w+)\[(.*)\]\[(.*)\]", text)
    assert match is not None
    shape, strides = ([int(x) for x in part.split(",") if x.strip()] for part in (match[2], match[3]))
    return torch.empty_strided(shape, strides, dtype=DTYPES[match[1]])


def outside(found: Partition) -> set[str]:
    """Operators that compute something and lie in no region."""
    nodes = {n.name: n for n in found.graph.nodes}
    free = ("a view", "a constant")
    named = [nodes[name] for name, reason in found.refused.items() if not reason.startswith(free)]
    return {str(n.target).split(".")[1] for n in named if "getitem" not in str(n.target)}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_of_2_11_is_cut_into_convex_regions(name: str) -> None:
    gm = load(name)
    found = partition(gm.graph)
    check_convex(gm.graph, found)
    assert all(found.refused.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_regions_and_what_stays_outside(name: str) -> None:
    found = partition(load(name).graph)
    assert ([len(r.program.ops) for r in found.regions], outside(found)) == EXPECTED[name]


def test_an_unrolled_lstm_stays_within_the_limit() -> None:
    found = partition(load("lstm bw").graph)
    assert len(found.regions) > 3 and max(len(r.program.ops) for r in found.regions) <= 48
