"""Real graphs, forward and backward: every region equals its FX nodes, alone and with all others in place."""

from __future__ import annotations

import pytest
from fx_check import Coverage, capture, check_graph, coverage
from fx_models import CASES, Case
from slow_cases import slow_but

# share of computing nodes (views and library calls not counted) that must lie in regions
LEAST = {
    "batch_norm_dynamic": 0.6,
    "pooling": 0.5,
    "embedding_norm": 0.6,
    "mha": 0.75,
    "attention": 0.8,
    "attention_dynamic": 0.8,
    "llama": 0.8,
}


# of parts that others have: a second norm or softmax of a kind, whole language models
LONG = {"rms_norm", "softmax_rows", "log_softmax", "gelu_mlp", "mlp_norm", "attention_dynamic", "mha"}
LONG |= {"convnet_eval", "group_norm", "instance_norm", "adaptive_pool", "label_smoothing"}
LONG |= {"gpt2", "bert", "llama"}


@pytest.mark.parametrize("case", slow_but([c for c in CASES if c.name not in LONG], CASES), ids=lambda c: c.name)
def test_regions_of_a_model(case: Case) -> None:
    found: list[Coverage] = []
    for graph in capture(case):
        regions = check_graph(graph)
        assert all(regions.refused.values()), "a node without a reason"
        found.append(coverage(graph, regions))
    inside, outside = sum(c.inside for c in found), sum(c.outside for c in found)
    assert inside / (inside + outside) >= LEAST.get(case.name, 0.83), [c.reasons for c in found]
