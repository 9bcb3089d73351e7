"""Graphs that are recorded without a trial, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.captured import Captured
from cudal1_compile.pipeline.compile import Pipeline


class Layers(nn.Module):
    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x)) + x
        return self.norm(x)


def record_all(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """Every graph is recorded, without a trial; returns them as they come."""
    found: list[Captured] = []
    make = Pipeline._captured

    def remember(self: Pipeline, *args: Any, **settings: Any) -> Any:
        found.append(make(self, *args, **settings))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(Pipeline, "_captured", remember)
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(pipeline, "_untried", lambda plan: "captured_inductor")
    return found


def compiled(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="cudal1", options={"on_miss": "fallback"} | options)


def batch(rows: int = 32, width: int = 64) -> Tensor:
    return torch.randn(rows, width, device="cuda")
