"""Trials of a graph's variants under test: a fresh process, a clock that is told the time, a fixed choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from cudal1_compile.dispatch import registry
from cudal1_compile.inductor.graph_plan import ATEN, GraphPlanned, PlannedRegion, SeenRegion
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline import planner, process_state


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been compiled or loaded yet."""
    monkeypatch.setattr(process_state, "SESSION", process_state.Session())
    monkeypatch.setattr(registry, "_stores", [])
    torch._dynamo.reset()


class Junk:
    """Never writes a kernel, so that every region is unprofitable."""

    name = "test:junk"
    budget_tokens = 1 << 20

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return [["no kernel"] * n for _ in prompts]


class FakeClock:
    """Time passes only where a variant says so."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def between_us(self, start: float, end: float) -> float:
        return end - start

    def host_us(self, start: float, end: float) -> float:
        return 0.1 * (end - start)

    def is_usable(self) -> bool:
        return True


def time_variants(monkeypatch: pytest.MonkeyPatch, costs_us: Mapping[str, float]) -> list[str]:
    """Every variant takes what `costs_us` says at the moment of its call; returns those that ran."""
    ran: list[str] = []
    clock = FakeClock()
    build = pipeline.Pipeline.build

    def timed(self: Any, plan: GraphPlanned, choice: Any, **told: Any) -> Any:
        run = build(self, plan, choice, **told)

        def call(*args: Any) -> Any:
            ran.append(choice)
            clock.now += costs_us[choice]
            return run(*args)

        return call

    monkeypatch.setattr(pipeline.Pipeline, "build", timed)
    monkeypatch.setattr(pipeline, "CudaClock", lambda device: clock)
    return ran


def choose_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every region with a library operator is run by aten, whatever is faster."""

    def look_up(self: planner.Planner, seen: SeenRegion) -> PlannedRegion:
        outcome: Any = "aten" if seen.has_library else "unprofitable"
        return PlannedRegion(seen, outcome, "", ATEN * seen.has_library)

    monkeypatch.setattr(planner.Planner, "look_up", look_up)
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    monkeypatch.setattr(pipeline, "_untried", lambda plan: "all_kernels")
