"""The speed benchmark on another's folder, from its files to the result, on the host target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.host

ROOT = Path(__file__).parents[2]
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


def test_a_dry_run(tmp_path: Path) -> None:
    tasks = tmp_path / "mine"
    tasks.mkdir()
    (tasks / "broken.py").write_text(GOOD.replace("get_inputs", "inputs"))
    (tasks / "good.py").write_text(GOOD)
    words = ["--tasks", str(tasks), "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed", "--dry", "--warm", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    body = json.loads((tmp_path / "out" / "speed.mine.dry.json").read_text())
    assert body["n"] == 2 and body["detail"]["cold"]["tasks"].keys() == body["detail"]["warm"]["tasks"].keys()
    broken, good = (body["detail"]["cold"]["tasks"][name] for name in ("broken", "good"))
    assert "no get_inputs" in broken["failed"]["cold"]
    assert good["failed"] == {"cold, graph": "RuntimeError: no CUDA device, so no CUDA graph"}
    rows = [json.loads(line) for line in (tmp_path / "work" / "rows.jsonl").read_text().splitlines()]
    assert [r["task"] for r in rows] == ["broken", "broken", "good", "good"]
    assert [r["track"] for r in rows] == ["cold", "warm"] * 2
    for row in rows[2:]:
        arms = {"eager", "inductor", "reduce_overhead", "cudal1", "cudal1_reduce_overhead"}
        assert arms <= row["host_us"].keys() - {"dynamo"} == row["errors"].keys(), row
        assert len({len(times) for times in row["host_us"].values()}) == 1
        assert all(e["1e-4"] == 0.0 for e in row["errors"].values()) and row["flags"]["cudnn.allow_tf32"] is True
        assert row["family"] == "foreign" and row["bytes"] == 8 * 8 * 4 + 8 * 4
    summary = body["summary"]
    assert (summary["tasks"], summary["no_time"], summary["failed"], summary["wrong"]) == (2, 1, 1, 0)
    assert summary["geomean_over_best"] > 0 and summary["warm_geomean_over_best"] > 0
