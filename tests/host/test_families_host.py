"""The families' benchmark from its programs to its file, on the host target, templates in the model's place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.families import FAMILIES, main

pytestmark = pytest.mark.host

CONVOLUTION = """region v1
dims d0=2 d1=3 d2=4 d3=8 d4=8 k0=3
in0 f32[d0,d1,d3]
in1 f32[d2,d1,k0]
t0 f32[d0,d2,d4] = dot_tf32(in0[d3=d4+k0-1], in1) over d1,k0
out0 f32[d0,d2,d4] = t0
"""
NORM = """region v1
dims d0=4 d1=64
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
out0 f32[d0,d1] = t1
"""


def test_a_dry_run(tmp_path: Path) -> None:
    lines = [
        {"family": f, "name": "tiny", "direction": "inference", "shape": "tiny", "text": text}
        for f, text in (("conv2d", CONVOLUTION), ("norm_nchw", NORM))
    ]
    (tmp_path / "families.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    small = ["--samples", "1", "--templates", "1", "--workers", "1", "--seconds", "120", "--dry"]
    main(["--model", "teacher", "--data", str(tmp_path), "--out", str(tmp_path / "out"), *small])
    body = json.loads((tmp_path / "out" / "families.teacher.dry.json").read_text())
    assert tuple(body["detail"]) == FAMILIES and body["n"] == 2
    for family in ("conv2d", "norm_nchw"):
        row = body["detail"][family]
        assert (row["n"], row["right_1"], row["right_8"], row["teacher_right"]) == (1, 1.0, 1.0, 1.0), row
        assert row["over_best"] >= row["over_best_raw"] > 0 and row["shapes"][0]["shape"] == "tiny"
    assert body["detail"]["pool"] == {"n": 0, "over_best": None} | body["detail"]["pool"]
    assert len((tmp_path / "out" / "families.rows.jsonl").read_text().splitlines()) == 2
