"""The frame around every pass, and the pass that drops what does nothing."""

from __future__ import annotations

import logging

import pytest
import torch
from fx_trace import trace
from torch import Tensor, fx

from cudal1_fx_passes.passes import PROVENANCE, PassConfig, PassError, drop_noops, run_pass

aten, prims = torch.ops.aten, torch.ops.prims
CONFIG = PassConfig()
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def busy(x: Tensor) -> Tensor:
    y = aten.mul.Tensor(x, 1.0)
    y = prims.convert_element_type.default(y, torch.float32)
    y = aten.view.default(y, [8, 16])
    y = aten.expand.default(aten.permute.default(y, [0, 1]), [8, 16])
    return aten.exp.default(aten.div.Tensor(y, 1)) + aten.mul.Tensor(x, 2.0)


def targets(graph: fx.Graph) -> list[str]:
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def test_noops_go_and_the_rest_stays() -> None:
    gm = trace(busy, X)
    assert targets(run_pass(drop_noops, gm.graph, CONFIG)) == [
        "aten.exp.default",
        "aten.mul.Tensor",
        "aten.add.Tensor",
    ]
    gm.recompile()
    assert torch.equal(gm(X), busy(X))


def test_a_second_run_changes_nothing() -> None:
    gm = trace(busy, X)
    once = targets(run_pass(drop_noops, gm.graph, CONFIG))
    assert targets(run_pass(drop_noops, gm.graph, CONFIG)) == once


def test_results_of_the_graph_never_become_aliases_of_inputs() -> None:
    gm = trace(lambda x: (aten.mul.Tensor(x, 1.0), x.exp()), X)
    assert "aten.mul.Tensor" in targets(run_pass(drop_noops, gm.graph, CONFIG))


def test_real_casts_views_and_factors_stay() -> None:
    gm = trace(lambda x: x.double().view(16, 8).t() * 3, X)
    before = targets(gm.graph)
    assert targets(run_pass(drop_noops, gm.graph, CONFIG)) == before


def test_products_of_integers_by_a_float_one_are_casts() -> None:
    gm = trace(lambda i: (i * 1.0).exp(), torch.arange(8))
    assert "aten.mul.Tensor" in targets(run_pass(drop_noops, gm.graph, CONFIG))


def test_new_nodes_tell_which_pass_made_them() -> None:
    def doubled(graph: fx.Graph, config: PassConfig) -> fx.Graph:
        node = next(n for n in graph.nodes if n.target is aten.exp.default)
        with graph.inserting_after(node):
            made = graph.call_function(aten.neg.default, (node,))
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        return graph

    graph = run_pass(doubled, trace(lambda x: x.exp() * 2, X).graph, CONFIG)
    assert {n.name: n.meta.get(PROVENANCE) for n in graph.nodes}["neg_default"] == ("doubled",)
    assert PROVENANCE not in next(n for n in graph.nodes if n.target is aten.exp.default).meta


def test_a_pass_that_changes_a_result_is_refused() -> None:
    def shrunk(graph: fx.Graph, config: PassConfig) -> fx.Graph:
        node = next(n for n in graph.nodes if n.target is aten.exp.default)
        node.meta["val"] = node.meta["val"][:1]
        return graph

    with pytest.raises(PassError, match="shrunk: the graph returned"):
        run_pass(shrunk, trace(lambda x: x.exp(), X).graph, CONFIG)


def test_a_pass_that_leaves_a_node_without_metadata_is_refused() -> None:
    def bare(graph: fx.Graph, config: PassConfig) -> fx.Graph:
        node = next(n for n in graph.nodes if n.target is aten.exp.default)
        with graph.inserting_after(node):
            graph.call_function(aten.neg.default, (node,))
        return graph

    with pytest.raises(PassError, match="after bare: neg_default has no meta"):
        run_pass(bare, trace(lambda x: x.exp(), X).graph, CONFIG)


def test_a_pass_that_breaks_the_order_is_refused() -> None:
    def unsorted(graph: fx.Graph, config: PassConfig) -> fx.Graph:
        first, second = [n for n in graph.nodes if n.op == "call_function"]
        second.append(first)
        return graph

    with pytest.raises(PassError, match="after unsorted"):
        run_pass(unsorted, trace(lambda x: x.exp().neg(), X).graph, CONFIG)


def test_the_graph_is_dumped_at_level_three(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cudal1_fx_passes.passes"):
        run_pass(drop_noops, trace(busy, X).graph, PassConfig(debug_level=2))
        assert "def forward" not in caplog.text and "drop_noops" in caplog.text
        run_pass(drop_noops, trace(busy, X).graph, PassConfig(debug_level=3))
    assert "def forward" in caplog.text and "torch.ops.aten.exp.default" in caplog.text
