"""Stages 2 and 3 with the real judge on the host target, and tasks from the misses of a real compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stage_toys import PROBES, RECIPE, STAGE, TASKS, make_bundle

from cudal1_compile import backend
from cudal1_compile.config import cache_dir
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.kernel.candidate import print_reply
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.practice import read_tasks
from cudal1_trainer.rl.contrastive import Contrastive
from cudal1_trainer.rl.self_supervised import SelfSupervised
from cudal1_trainer.rl.stage import Setup, Stage, start_accelerator
from cudal1_trainer.scores.referee import make_referee
from cudal1_trainer.tasks.heldout import hold_out
from cudal1_trainer.tasks.misses import export_misses
from cudal1_trainer.tasks.variants import write_variants

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("forks")]

PRODUCT = """region v1
dims d0=24 d1=16 d2=40
in0 f32[d0,d2]
in1 f32[d1,d2]
t0 f32[d0,d1] = dot(in0, in1) over d2
t1 f32[d0,d1] = relu(t0)
out0 f32[d0,d1] = t1
"""


@pytest.mark.slow  # in every run stage 2 has the real judge, and stage 3 a toy's (test_trainer_stage)
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
    assert "text" in report["judge_s"]


def test_stage_2_keeps_right_kernels_of_a_product_that_cost_more_than_the_baseline(tmp_path: Path) -> None:
    """The baseline there reads operands once, which no product does: a template's cost is the bar."""
    right = write_variants(parse_program(PRODUCT), 1)[0].reply
    wrong = replace(right, code=right.code.replace("+=", "-="))
    replies = [print_reply(right), *[print_reply(wrong)] * 3]
    stage = replace(STAGE, steps=10, tasks=1, prompts=1, group=16)
    bundle = make_bundle(tmp_path / "bundle", replies=replies)
    with make_referee(None, 120.0, seed=1) as referee:
        setup = Setup(RECIPE, stage, bundle, tmp_path / "out", [PRODUCT], [PRODUCT])
        report = Stage(setup, SelfSupervised(), start_accelerator(), referee).run()
    assert report["kinds"]["slow"] > 20 and "right" not in report["kinds"] and report["tasks"] == 1
    assert report["before"]["right_1"] < 0.6 and report["after"]["right_1"] > 0.7


@pytest.mark.slow
def test_misses_of_a_compile_become_tasks(tmp_path: Path) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x + y) * y

    options = {"target": "host", "on_miss": "fallback"}
    torch.compile(model, backend=backend.cudal1, options=options)(torch.randn(96, 64), torch.randn(96, 64))
    path = tmp_path / "misses.jsonl"
    with open_store(cache_dir()) as store:
        assert export_misses(store, HOST.key, path, limit=10) == 1
    (text,) = read_tasks(path, hold_out([]))
    assert "add(in0, in1)" in text and "d0=" in text
    with pytest.raises(ValueError, match="none that is not held out"):
        (tmp_path / "empty.jsonl").write_text("")
        read_tasks(tmp_path / "empty.jsonl", hold_out([]))
