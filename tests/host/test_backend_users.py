"""What users have beside a plain model: beside backend="inductor", nothing is lost and nothing is said."""

from __future__ import annotations

import logging

import pytest
import torch
from backend_reference import Calls, compiled, every_region  # noqa: F401  a fixture
from torch import nn

pytestmark = pytest.mark.host


def test_a_sparse_gradient(every_region: Calls, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    """Inductor infers fake tensors anew behind a pass, and fails at sparse ones: that graph is left to it."""
    gradients = []
    at, weight = torch.randint(0, 5, (4, 5)), torch.randn(20, 16)
    for wrap in (lambda run: run, compiled):
        table = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        wrap(lambda i, table=table: torch.softmax(table(i), -1).exp())(at).square().sum().backward()
        assert table.weight.grad is not None and table.weight.grad.is_sparse
        gradients.append(table.weight.grad.to_dense())
    torch.testing.assert_close(gradients[1], gradients[0])
    assert len(every_region) == 1 and not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert any("is sparse" in r.reason for r in every_region.plans[0].refused)
