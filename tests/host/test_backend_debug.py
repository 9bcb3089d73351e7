"""CUDAL1_DEBUG=3: every pass over every graph, its time and the graph behind it; `last_plans` has the same."""

from __future__ import annotations

import re

import pytest
import torch
from backend_reference import Calls, every_region  # noqa: F401  a fixture
from torch import Tensor, nn

import cudal1_compile
from cudal1_compile.pipeline import process_state
from cudal1_compile.pipeline.process_state import LastPlan

pytestmark = pytest.mark.host

LINE = re.compile(r"^cudal1: (.+): (\d+\.\d{3}) s$", re.M)
SPLICING = [
    "algebra",
    "gradients apart",
    "assumed layouts",
    "partition",
    "index bounds",
    "splice",
    "layout decision",
    "sort",
]


class Looked(nn.Module):
    """A lookup, whose indices are asserted, and a convolution with both gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(16, 8), nn.Conv1d(8, 8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.relu(self.mix(torch.tanh(self.table(ids)).transpose(1, 2)))


def train_a_step() -> LastPlan:
    options = {"target": "host", "products": True}
    step = torch.compile(Looked(), backend="cudal1", options=options)
    step(torch.randint(0, 16, (2, 12))).square().sum().backward()
    (found,) = cudal1_compile.last_plans()
    return found


@pytest.mark.usefixtures("every_region", "fresh_session")
def test_level_3_shows_the_graph_behind_every_pass(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDAL1_DEBUG", "3")
    found = train_a_step()
    captured = capfd.readouterr()
    said = [(name, float(seconds)) for name, seconds in LINE.findall(captured.err)]
    assert said == [(run.name, round(run.seconds, 3)) for run in found.passes] and captured.out == ""
    names = [name for name, _ in said]
    for phase in ("forward", "backward"):
        assert {f"{phase}: gradients apart", f"{phase}: assumed layouts", f"{phase}: partition"} <= set(names)
    assert set(SPLICING) <= set(names) and {"collect", "compile, variant all_kernels"} <= set(names)
    assert captured.err.count("def forward(self") == sum(n.split(": ")[-1] in SPLICING for n in names)
    behind = captured.err.split("\ncudal1: splice: ")[1].split("\ncudal1: ")[0]
    assert "cudal1.fused" in behind, "the graph behind it, not before"
    assert found.plan.regions and found.plan.choice == "all_kernels"


@pytest.mark.usefixtures("every_region", "fresh_session")
def test_without_the_variable_the_passes_are_noted_and_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    found = train_a_step()
    assert set(SPLICING) <= {run.name for run in found.passes}
    assert LINE.findall(capfd.readouterr().err) == []


@pytest.fixture
def fresh_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plans of other tests' compiles."""
    monkeypatch.setattr(
        process_state.SESSION, "_plans", process_state.SESSION._plans.__class__(maxlen=process_state.LAST_PLANS)
    )
