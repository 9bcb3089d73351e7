"""`cudal1 train --recipe nano` on a CPU: held-out programs, tokenizer and stage 1; the loss really falls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from cudal1_compile.generate.tokens import load_codec
from cudal1_trainer.cli import train


@pytest.mark.slow
def test_nano_lowers_the_loss_and_leaves_a_model_that_loads(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    train("nano", data, out, "heldout,tokenizer,scores,sft", None, False)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    report = json.loads((out / "report.json").read_text())
    assert metrics[0]["loss"] > 6.0
    assert report["steps"] == 80 and report["heldout_loss"] < metrics[0]["loss"] - 1.5
    model = LlamaForCausalLM.from_pretrained(out / "model")
    codec = load_codec(str(out / "model" / "tokenizer.json"))
    assert model.config.vocab_size >= max(codec.encode_prompt("region v1\ndims d0=32\n"))
    assert model.generation_config.max_new_tokens == 2048


def test_an_unknown_step_or_recipe_is_told(tmp_path: Path) -> None:
    import typer

    for arguments in ({"steps": "stf"}, {"recipe": "huge"}):
        with pytest.raises(typer.BadParameter, match="stf|huge"):
            train(data=tmp_path, out=tmp_path, **arguments)
