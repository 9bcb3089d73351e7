"""The families' benchmark on a GPU: cold caches, the floor below, one command from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.families import main
from benchmarks.family_cases import Case, linear
from benchmarks.family_cut import as_line

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

CASES = (
    Case("reduction", "rows", lambda x: x.sum(-1), "512x1024"),  # 2 MiB: ten copies of it lie in an H100's L2
    Case("product_half", "square", linear(), "1024x1024:bf16 1024x1024:bf16"),
)


def test_templates_in_the_models_place(tmp_path: Path) -> None:
    (tmp_path / "families.jsonl").write_text("".join(json.dumps(as_line(c)) + "\n" for c in CASES))
    small = ["--samples", "2", "--templates", "4", "--workers", "2", "--seconds", "200"]
    main(["--model", "teacher", "--data", str(tmp_path), "--out", str(tmp_path / "out"), *small])
    (path,) = (tmp_path / "out").glob("families.teacher.*.json")
    detail = json.loads(path.read_text())["detail"]
    for case in CASES:
        row = detail[case.family]
        assert (row["n"], row["right_8"], row["not_measured"]) == (1, 1.0, {}), row
        (shape,) = row["shapes"]
        assert shape["floor_us"] is None or 0 < shape["over_floor"] < 1.2, shape
        assert shape["aten_us"] > 0 and shape["inductor_us"] > 0 and shape["teacher_us"] > 0
