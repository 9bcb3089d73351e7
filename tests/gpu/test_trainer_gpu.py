"""A job that leaves a broken CUDA context costs its process, not the jobs after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cudal1_trainer.scores.measure import context_kept
from cudal1_trainer.scores.workers import Finished, Lost, run_jobs

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu


def _setup() -> torch.device:
    return torch.device("cuda")


@context_kept()
def _work(device: torch.device, job: int, mark: Any) -> float:
    mark("reads")
    table = torch.arange(4.0, device=device)
    return float(table[torch.tensor([job], device=device)].sum())


def test_the_job_after_a_broken_context_has_a_whole_one() -> None:
    first, second = run_jobs(_work, _setup, iter([10**9, 3]), 1, 60.0)
    assert isinstance(first, Lost)
    assert "the CUDA context is gone" in first.reason
    assert isinstance(second, Finished)
    assert second.result == 3.0
