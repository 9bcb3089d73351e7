"""Every case of the benchmark is one that a rule is for."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.algebra import CASES, Case, Module, measure
from cudal1_compile.options import NumericsLabel
from cudal1_fx_passes.algebra import rewrite
from tests.algebra_checks import traced


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_rule_fires_at_full_size(case: Case) -> None:
    with torch._subclasses.FakeTensorMode():
        module = Module(case).eval()
        inputs = [torch.empty(s, dtype=case.dtype) for s in case.shapes]
        graph = traced(module, inputs).graph
    assert rewrite(graph, get_args(NumericsLabel))


def test_a_case_is_measured_beside_inductor() -> None:
    (case,) = (c for c in CASES if c.name == "diagonal")
    compiled = counters["stats"]["unique_graphs"]
    row = measure(case, torch.device("cpu"), dry=True)
    assert counters["stats"]["unique_graphs"] == compiled + 2  # each arm has its own code
    assert row["fired"][0] == "product_of_diagonal"
    assert row["ms"]["algebra"] > 0 and max(row["error"].values()) < 1e-5
