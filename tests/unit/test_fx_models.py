"""Real graphs, forward and backward: every region equals its FX nodes, alone and with all others in place."""

from __future__ import annotations

import pytest
from fx_check import Coverage, capture, check_graph, coverage
from fx_models import CASES, Case

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


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_regions_of_a_model(case: Case) -> None:
    found: list[Coverage] = []
    for graph in capture(case):
        regions = check_graph(graph)
        assert all(regions.refused.values()), "a node without a reason"
        found.append(coverage(graph, regions))
    inside, outside = sum(c.inside for c in found), sum(c.outside for c in found)
    assert inside / (inside + outside) >= LEAST.get(case.name, 0.83), [c.reasons for c in found]
