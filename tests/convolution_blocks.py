"""A residual block, and what the pass at Inductor's hook makes of a module's convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._inductor import config
from torch.nn import functional as F

from cudal1_compile.inductor.fused_convolutions import Probe, count_fusible, fuse_convolutions
from cudal1_fx_passes.importer.capture import capture_graphs


class Block(nn.Module):
    """As ResNet's, whose shortcut is given or has a convolution of its own."""

    def __init__(self, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 8, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (16, 16, 8))
        self.shortcut = nn.Conv2d(8, 8, 1) if shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y)).relu()
        y = self.norms[2](self.third(y)) + self.shortcut(x)
        return F.max_pool2d(y.relu(), 2)


def randomised(module: nn.Module) -> nn.Module:
    for x in (*module.parameters(), *module.buffers()):
        if x.is_floating_point():
            with torch.no_grad():
                x.uniform_(0.5, 1.5)
    return module.eval()


def run(module: Any, *given: Any, pays: Probe | None = None) -> tuple[Tensor, fx.Graph, int]:
    """The result by Inductor with the pass at its hook, the graph behind it, and how many were fused.

    pays: what is said to pay; None: what is measured to.
    """
    graphs: list[tuple[fx.Graph, int]] = []

    def put(graph: fx.Graph) -> None:
        expected = count_fusible(graph)
        found = fuse_convolutions(graph, pays)
        assert found <= expected
        graphs.append((fx.Graph(graph.owning_module), found))
        graphs[-1][0].graph_copy(graph, {})

    with config.patch(post_grad_custom_pre_pass=put, fx_graph_cache=False), torch.no_grad():
        found = torch.compile(module)(*given)
    ((graph, count),) = graphs
    return found, graph, count


def run_alone(module: Any, *given: Any, pays: Probe | None = None) -> tuple[Tensor, fx.Graph, int]:
    """As run, but the graph runs as it is: nothing is compiled."""
    (captured,) = capture_graphs(module, given)
    count = fuse_convolutions(captured.gm.graph, pays)
    captured.gm.recompile()
    with torch.no_grad():
        return captured.gm(*captured.inputs)[0], captured.gm.graph, count


def targets(graph: fx.Graph) -> list[Any]:
    return [n.target for n in graph.nodes if n.op == "call_function"]
