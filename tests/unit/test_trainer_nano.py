"""`cudal1 train --recipe nano` on a CPU: all three stages with the real judge, each better than the one before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from cudal1_compile.generate.tokens import load_codec
from cudal1_trainer.cli import train


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nano_learns_right_kernels_and_then_cheaper_ones(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    done = CliRunner().invoke(train, ["--recipe", "nano", "--data", str(data), "--out", str(out)])
    assert done.exit_code == 0, done.output
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["loss"] > 6.0 and _report(out)["steps"] == 320
    second, third = _report(out / "self_supervised"), _report(out / "contrastive")
    assert second["before"]["right_1"] > 0.1
    assert third["after"]["right_1"] > second["before"]["right_1"]
    assert third["after"]["reward"] > 1.1 * second["before"]["reward"]
    bundle = out / "contrastive" / "model"
    model = LlamaForCausalLM.from_pretrained(bundle)
    assert model.config.vocab_size >= max(load_codec(str(bundle / "tokenizer.json")).encode_prompt("region v1\n"))
    compared = ["compare", str(bundle), str(out / "model"), "--recipe", "nano", "--data", str(data), "--install"]
    assert "is worse" in CliRunner().invoke(train, compared).output


@pytest.mark.parametrize("given", [["--steps", "stf"], ["--recipe", "huge"]])
def test_an_unknown_step_or_recipe_is_told(tmp_path: Path, given: list[str]) -> None:
    done = CliRunner().invoke(train, ["--data", str(tmp_path), "--out", str(tmp_path), *given])
    assert done.exit_code != 0 and given[1] in done.output
