"""One clock for several processes: rank 0 is asked as often as it must be, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from cudal1_trainer.model import ranks


def _readings(monkeypatch: pytest.MonkeyPatch, step_s: float, processes: int = 2) -> tuple[list[float], list[int]]:
    """60 readings, and those at which rank 0 was asked. It runs 100 s ahead."""
    now, asked, found = [5.0], [], []

    def broadcast(x: Tensor) -> Tensor:
        asked.append(len(found))
        return x + 100.0

    monkeypatch.setattr(ranks, "broadcast", broadcast)
    monkeypatch.setattr(ranks.time, "monotonic", lambda: now[0])
    accelerator: Any = SimpleNamespace(num_processes=processes, device="cpu")
    shared = ranks.SharedClock(accelerator, 40.0)
    for _ in range(60):
        found.append(shared.read())
        now[0] += step_s
    return found, asked


def test_quick_readings_share_an_answer_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = _readings(monkeypatch, 0.03)
    assert asked == [0, 1, 3, 7, 15, 31, 51]
    assert found[0] == 140.0 and len(set(found)) == len(asked) and found == sorted(found)


def test_slow_readings_are_asked_each(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _readings(monkeypatch, 3.0)[1] == list(range(60))


def test_one_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = _readings(monkeypatch, 0.5, processes=1)
    assert not asked and found[:3] == [40.0, 40.5, 41.0]
