"""The collecting pass sees the very graphs that the compile's pass sees later: same fingerprints, same order."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from slow_cases import slow_but
from torch import Tensor, fx, nn
from torch._inductor.compile_fx import compile_fx

from cudal1_compile.cli.demo_models import Cnn
from cudal1_compile.inductor.collect import SeenGraph, collect
from cudal1_compile.inductor.graph_key import copy_graph
from cudal1_compile.inductor.splice import HOOK, Observe
from cudal1_compile.pipeline.survey import BYTES_PER_US, SPLIT_PER_US, survey
from cudal1_compile.pipeline.trace import PassLog
from cudal1_fx_passes.fusion.anchors import partition_with_products
from cudal1_fx_passes.fusion.partition import Partition
from cudal1_fx_passes.importer.capture import capture_graphs, take_for_cuda

pytestmark = pytest.mark.host


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x + self.down(F.gelu(self.up(self.norm(x)))), -1)


def branch(x: Tensor) -> Tensor:
    y = torch.cond(x.sum() > 0, lambda v: torch.sin(v) * 2 + 1, lambda v: torch.cos(v) * 3 - 1, (x,))
    return torch.softmax(y, -1)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], bool, bool | None]] = {
    "mlp training": (Mlp(), (16, 32), True, None),
    "mlp inference": (Mlp(), (16, 32), False, None),
    "cnn training": (Cnn(), (4, 3, 16, 16), True, None),
    "cnn inference": (Cnn().eval(), (4, 3, 16, 16), False, None),
    "dynamic training": (Mlp(), (16, 32), True, True),
    "control flow": (branch, (16, 32), False, None),
}


@pytest.mark.usefixtures("no_loops")
@pytest.mark.parametrize("name", slow_but([n for n in CASES if n not in ("mlp training", "cnn inference")], CASES))
def test_sees_what_the_compile_sees(name: str) -> None:
    fn, size, trains, dynamic = CASES[name]
    collected: list[str] = []
    compiled: list[str] = []
    kinds: list[str] = []
    passes = PassLog()
    collections: Counter[int] = Counter()  # by generation

    def see(graph: fx.Graph, found: Partition) -> None:
        compiled.extend(r.fingerprint for r in found.regions)

    def count(phase: str, info: dict[str, int]) -> None:
        collections[info["generation"]] += phase == "stop"

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        before, threshold = gm.code, gc.get_threshold()
        gc.set_threshold(10, 1, 1)
        gc.callbacks.append(count)
        try:
            graphs = collect(gm, example_inputs, {}, None, passes=passes)
            assert gc.get_threshold() == (10, 1, 1)
        finally:
            gc.callbacks.remove(count)
            gc.set_threshold(*threshold)
        assert gm.code == before, "the graph is left as it is"
        # but for what is due afterwards
        assert collections[1] and collections[2] <= 1, "everything in the process was walked over"
        kinds.extend(g.phase for g in graphs)
        collected.extend(r.fingerprint for g in graphs for r in g.partition.regions)
        return compile_fx(copy_graph(gm), example_inputs, config_patches={HOOK: Observe(None, see)})

    torch._dynamo.reset()
    fast = torch.compile(fn, backend=backend, dynamic=dynamic)
    with torch.set_grad_enabled(trains), torch._inductor.config.patch(force_disable_caches=True):
        out = fast(torch.randn(size))
        if trains:
            out.square().sum().backward()
    assert collected == compiled and collected
    names = [run.name for run in passes.runs]
    for kind in dict.fromkeys(kinds):
        assert names.count(f"{kind}: partition") == kinds.count(kind) == names.count(f"{kind}: assumed layouts")
    assert set(kinds) == ({"forward", "backward"} if trains else {"inference"})


def test_survey_counts_uses_and_names_what_stays_outside() -> None:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = F.layer_norm(x @ w, (32,))
        return x

    found: list[Any] = []

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen = survey(collect(gm, example_inputs, {}, None), torch.device("cpu"))
        found.extend((seen.regions, seen.refused))
        return gm.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(layers, backend=backend)(torch.randn(16, 32), torch.randn(32, 32))
    seen, refused = found
    assert [r.count for r in seen] == [3]
    assert not seen[0].is_fusible, "its neighbours are products, which Inductor does not fuse with"
    assert "a sum of products, which is left to the library" in {n.reason for n in refused}


def test_products_are_valued_by_what_kernels_may_win() -> None:
    """The library is at its limit where tensor cores are, so a large product comes after what moves more bytes."""

    def value_us(dtype: torch.dtype, tf32: bool = False) -> float:
        inputs = (torch.randn(512, 512, dtype=dtype), torch.randn(512, 512, dtype=dtype))
        (graph,) = capture_graphs(torch.mm, inputs)
        take_for_cuda(graph.gm.graph)
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
        try:
            found = partition_with_products(graph.gm.graph)
        finally:
            torch.backends.cuda.matmul.fp32_precision = before
        seen = survey([SeenGraph("inference", found, "", False, False, "", ())], torch.device("cuda", 0)).regions
        return seen[0].value_us

    bytes_us = 3 * 512 * 512 * 4 / BYTES_PER_US
    assert value_us(torch.float32) == bytes_us + 512**3 / SPLIT_PER_US
    assert value_us(torch.float32, tf32=True) == bytes_us
    assert value_us(torch.bfloat16) == bytes_us / 2
