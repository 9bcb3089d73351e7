"""The speed benchmark on another's folder, from its files to the result, on the host target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import benchmarks.speed.__main__ as speed

pytestmark = pytest.mark.host

GOOD = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x).sum(1)
def get_inputs():
    return [torch.randn(8, 8)]
def get_init_inputs():
    return []
"""


ARMS = {"eager", "inductor", "reduce_overhead", "cudal1", "cudal1_reduce_overhead"}


def dry_run(folder: Path, tasks: dict[str, str], *words: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result, and its rows."""
    (folder / "mine").mkdir()
    for name, text in tasks.items():
        (folder / "mine" / f"{name}.py").write_text(text)
    places = ["--tasks", str(folder / "mine"), "--out", str(folder / "out"), "--work", str(folder / "work")]
    assert speed.main(["--dry", *places, *words]) == 0
    rows = [json.loads(line) for line in (folder / "work" / "rows.jsonl").read_text().splitlines()]
    return json.loads((folder / "out" / "speed.mine.dry.json").read_text()), rows


def check_row(row: dict[str, Any]) -> None:
    assert ARMS <= row["host_us"].keys() - {"dynamo"} == row["errors"].keys(), row
    assert len({len(times) for times in row["host_us"].values()}) == 1
    assert all(e["1e-4"] == 0.0 for e in row["errors"].values()) and row["flags"]["cudnn.allow_tf32"] is True
    assert row["family"] == "foreign" and row["bytes"] == 8 * 8 * 4 + 8 * 4


def test_a_dry_run(tmp_path: Path) -> None:
    body, (row,) = dry_run(tmp_path, {"good": GOOD})
    assert body["n"] == 1 and row["track"] == "cold"
    assert row["failed"] == {"cold, graph": "RuntimeError: no CUDA device, so no CUDA graph"}
    check_row(row)
    assert body["summary"]["geomean_over_best"] > 0 and body["summary"]["wrong"] == 0


@pytest.mark.slow
def test_a_dry_run_of_both_tracks_and_a_task_that_fails(tmp_path: Path) -> None:
    body, rows = dry_run(tmp_path, {"broken": GOOD.replace("get_inputs", "inputs"), "good": GOOD}, "--warm")
    assert body["n"] == 2 and body["detail"]["cold"]["tasks"].keys() == body["detail"]["warm"]["tasks"].keys()
    assert "no get_inputs" in body["detail"]["cold"]["tasks"]["broken"]["failed"]["cold"]
    assert [r["task"] for r in rows] == ["broken", "broken", "good", "good"]
    assert [r["track"] for r in rows] == ["cold", "warm"] * 2
    for row in rows[2:]:
        check_row(row)
    summary = body["summary"]
    assert (summary["tasks"], summary["no_time"], summary["failed"], summary["wrong"]) == (2, 1, 1, 0)
    assert summary["geomean_over_best"] > 0 and summary["warm_geomean_over_best"] > 0
