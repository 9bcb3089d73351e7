"""`cudal1 train --recipe nano` on a CPU: all three stages with the real judge, held-out programs after each."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.tokens import load_codec
from cudal1_trainer.cli import train


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nano_learns_to_write_right_kernels_and_runs_all_stages(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    done = CliRunner().invoke(train, ["--recipe", "nano", "--data", str(data), "--out", str(out)])
    assert done.exit_code == 0, done.output
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert metrics[0]["loss"] > 6.0 and _report(out)["steps"] == 900
    second, third = _report(out / "self_supervised"), _report(out / "contrastive")
    assert second["before"]["right_1"] > 0.7  # of replies to held-out programs: what stage 1 has taught
    for report, steps in ((second, 8), (third, 30)):
        assert report["steps"] == steps and report["tasks"] == 12
        assert report["after"]["reward"] > report["before"]["reward"]
    assert third["stage"] == "contrastive_buckets" and third["after"]["speedup_1"] > third["before"]["speedup_1"]
    rows = [json.loads(line) for line in (out / "contrastive" / "metrics.jsonl").read_text().splitlines()]
    early, late = (fmean(row["right"] for row in part) for part in (rows[2:6], rows[-4:]))
    # of 384 replies each to prompts that show variants, which the first two steps have none of
    assert late > early > 0.9
    bundle = out / "contrastive" / "model"
    model = LlamaForCausalLM.from_pretrained(bundle)
    assert BundledGenerator(BundledConfig(bundle)).writes_designs
    assert model.config.vocab_size >= max(load_codec(str(bundle / "tokenizer.json")).encode_prompt("region v1\n"))
    compared = ["compare", str(out / "model"), str(bundle), "--recipe", "nano", "--data", str(data)]
    assert "12 held-out programs" in CliRunner().invoke(train, compared).output


@pytest.mark.parametrize("given", [["--steps", "stf"], ["--recipe", "huge"]])
def test_an_unknown_step_or_recipe_is_told(tmp_path: Path, given: list[str]) -> None:
    done = CliRunner().invoke(train, ["--data", str(tmp_path), "--out", str(tmp_path), *given])
    assert done.exit_code != 0 and given[1] in done.output
