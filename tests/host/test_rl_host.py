"""The baselines of reinforcement learning up to their file, on the host target, templates as the model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.result_file import device_stem
from benchmarks.rl import ARMS, main

pytestmark = pytest.mark.host

PROGRAMS = {
    "conv1d": """region v1
dims d0=2 d1=3 d2=4 d3=8 d4=8 k0=3
in0 f32[d0,d1,d3]
in1 f32[d2,d1,k0]
t0 f32[d0,d2,d4] = dot_tf32(in0[d3=d4+k0-1], in1) over d1,k0
out0 f32[d0,d2,d4] = t0
""",
    "norm": """region v1
dims d0=4 d1=64
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
out0 f32[d0,d1] = t1
""",
    "pointwise": """region v1
dims d0=256
in0 f32[d0]
t0 f32[d0] = relu(in0)
out0 f32[d0] = t0
""",
}


def dry_run(folder: Path, kinds: Iterable[str]) -> tuple[list[str], Path]:
    """Its words, and the folder of what it wrote."""
    lines = [
        {"family": kind, "name": f"tiny {kind}", "direction": "inference", "shape": "tiny", "text": PROGRAMS[kind]}
        for kind in kinds
    ]
    (folder / "rlval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["--model", "teacher", "--data", "trainer/data", "--programs", str(folder / "rlval.jsonl")]
    command += ["--rl", "teacher", "--out", str(folder / "out"), "--workers", "1", "--dry"]
    main([*command, "--seconds", "400"])
    return command, folder / "out"


def check(body: dict[str, Any], count: int) -> None:
    assert [row["stage"] for row in body["summary"]["rows"]] == list(ARMS) and body["n"] == count
    by_stage = {row["stage"]: row for row in body["summary"]["rows"]}
    assert all(row["right_8"] == 1.0 for row in by_stage.values()), body["detail"]["programs"]
    assert by_stage["all_arms"]["over_best_raw"] >= by_stage["prior_best8"]["over_best_raw"] > 0
    assert by_stage["sft_best8"]["over_sft_greedy_raw"] >= 1.0 == by_stage["sft_greedy"]["over_sft_greedy_raw"]
    assert not body["detail"]["not_measured"]


def test_a_dry_run(tmp_path: Path) -> None:
    _, out = dry_run(tmp_path, ["norm"])
    check(json.loads((out / "rl.dry.json").read_text()), 1)


@pytest.mark.slow
def test_a_dry_run_that_is_cut_and_goes_on(tmp_path: Path) -> None:
    command, out = dry_run(tmp_path, PROGRAMS)
    rows = out / f"rl.rows.{device_stem()}.jsonl"
    body = json.loads((out / "rl.dry.json").read_text())
    check(body, 3)

    files = {path: path.read_text() for path in out.glob("*.jsonl")}
    main([*command, "--seconds", "400"])
    assert {path: path.read_text() for path in out.glob("*.jsonl")} == files  # nothing is done twice
    assert json.loads((out / "rl.dry.json").read_text())["summary"] == body["summary"]

    whole = files[rows].splitlines(keepends=True)
    rows.write_text(whole[0])
    main([*command, "--seconds", "0"])
    partial = json.loads((out / "rl.partial.dry.json").read_text())
    assert partial["n"] == 1 and set(partial["detail"]["not_measured"].values()) == {"not reached"}
    assert rows.read_text() == whole[0]
