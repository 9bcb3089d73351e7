"""`accelerate launch` with two processes: stage 1 learns the same from the same data, killed in between or not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from test_trainer_stage import LAUNCH

from cudal1_trainer.model.tokenizer import save_tokenizer, train_tokenizer
from cudal1_trainer.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe
from cudal1_trainer.tasks.heldout import hold_out, write_heldout

pytestmark = pytest.mark.slow

RECIPE = Recipe(
    "two",
    model=ModelRecipe(hidden=32, layers=1, heads=2, kv_heads=1, mlp=64, max_positions=4096),
    # rows of all lengths, so that the two processes come through their chunks at different steps
    data=DataRecipe(max_tokens=4_000, widened=0.0, chunk_tokens=9_000, workers=1),
    train=TrainRecipe(steps=30, tokens_per_step=4_000, warmup_steps=3, checkpoint_s=0.0, compile=False),
)


@contextmanager
def _launched(folder: Path, out: str) -> Iterator[subprocess.Popen[str]]:
    given = ["--recipe", str(folder / "two.yaml"), "--data", str(folder / "data"), "--out", str(folder / out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [*LAUNCH, "-m", "cudal1_trainer.sft.supervised", *given],
        env=environment,
        text=True,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:  # the launcher puts its processes into sessions of their own
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                one.kill()
        process.wait()


def _train(folder: Path, out: str) -> None:
    with _launched(folder, out) as process:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said[-3000:]


def _step(out: Path) -> int:
    path = out / "state.pt"
    return int(torch.load(path, weights_only=True)["step"]) if path.is_file() else -1


@pytest.mark.timeout(600)
def test_two_processes_killed_and_started_again_equal_two_that_were_not(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(asdict(RECIPE)))
    write_heldout(hold_out([]), tmp_path / "data" / "heldout.json")
    save_tokenizer(
        train_tokenizer(["region v1 // launch: f<<<1, 64>>>(in0, out0)"] * 9, 300), tmp_path / "data" / "tokenizer"
    )
    _train(tmp_path, "whole")
    at, first, second = 8, None, None
    while first == second:  # where both are at the same place nothing shows whose place is whose
        with _launched(tmp_path, "killed") as process:
            while _step(tmp_path / "killed") < at + 4:  # saved when the clock is asked: the steps between get more
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.05)
        at = _step(tmp_path / "killed")
        first, second = (
            torch.load(tmp_path / "killed" / f"rank{r}.{at}.pt", weights_only=True)["cursor"] for r in (0, 1)
        )
    assert at < 30
    _train(tmp_path, "killed")
    whole, killed = (torch.load(tmp_path / out / "state.pt", weights_only=True) for out in ("whole", "killed"))
    assert whole["step"] == killed["step"] == 30 and whole["tokens"] == killed["tokens"]
    for name, weight in whole["model"].items():
        assert torch.equal(weight, killed["model"][name]), name
    assert json.loads((tmp_path / "killed" / "report.json").read_text())["processes"] == 2
