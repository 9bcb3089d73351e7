"""Stages 2 and 3 with the real judge on the host target, and tasks from the misses of a real compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stage_toys import PROBES, RECIPE, STAGE, TASKS, make_bundle

from cudal1_cache.store import Store
from cudal1_compile import backend
from cudal1_compile.config import cache_dir
from cudal1_compile.runtime.target import HOST
from cudal1_trainer.contrastive import Contrastive
from cudal1_trainer.heldout import hold_out
from cudal1_trainer.misses import export_misses
from cudal1_trainer.practice import read_tasks
from cudal1_trainer.referee import make_referee
from cudal1_trainer.stage import Setup, Stage, start_accelerator

pytestmark = pytest.mark.host


def test_stage_3_learns_from_declared_costs(tmp_path: Path) -> None:
    stage = replace(STAGE, steps=24)
    bundle = make_bundle(tmp_path / "bundle")
    with make_referee(None, 120.0, seed=1) as referee:
        setup = Setup(RECIPE, stage, bundle, tmp_path / "out", TASKS, PROBES)
        report = Stage(setup, Contrastive(stage), start_accelerator(), referee).run()
    before, after = report["before"], report["after"]
    # at first a quarter each: the vector kernel, the dearer scalar one, a wrong one, and no kernel
    assert before["right_1"] < 0.75 and after["right_1"] > 0.9
    assert after["reward"] > 1.4 * before["reward"]
    assert report["kinds"]["wrong"] > 0 and report["judge_lost"] == 0


@pytest.mark.slow
def test_misses_of_a_compile_become_tasks(tmp_path: Path) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x + y) * y

    options = {"target": "host", "on_miss": "fallback"}
    torch.compile(model, backend=backend.cudal1, options=options)(torch.randn(96, 64), torch.randn(96, 64))
    path = tmp_path / "misses.jsonl"
    with Store.open(cache_dir()) as store:
        assert export_misses(store, HOST.key, path, limit=10) == 1
    (text,) = read_tasks(path, hold_out([]))
    assert "add(in0, in1)" in text and "d0=" in text
    with pytest.raises(ValueError, match="none that is not held out"):
        (tmp_path / "empty.jsonl").write_text("")
        read_tasks(tmp_path / "empty.jsonl", hold_out([]))
