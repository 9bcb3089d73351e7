"""What several GPU tests begin with."""

from __future__ import annotations

import pytest
import torch
from captures import record_all
from trials import new_process

from cudal1_compile.pipeline.captured import Captured


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been compiled or loaded yet, with the same random numbers each time."""
    new_process(monkeypatch)
    torch.manual_seed(0)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """Every graph is recorded, without a trial: as they come."""
    return record_all(monkeypatch)
