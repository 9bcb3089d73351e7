"""FSDP2 with two CPU processes: stages in parts learn what they learn whole, go on after a kill, save one model.

accelerate cuts weights in parts on devices only and falls back to data parallelism on CPUs, so the first lines of
each process tell it otherwise; from there on it is accelerate's and PyTorch's own code, over gloo.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from test_trainer_foreign import _taught
from test_trainer_stage import LAUNCH, _environment, _metrics

from cudal1_trainer.base import load_base

PARTS = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from stage_toys import PROBES, RECIPE, TASKS, ToyReferee
from test_trainer_foreign import LONG
from cudal1_trainer.contrastive import Contrastive
from cudal1_trainer.stage import Setup, Stage, start_accelerator

model, out, how, steps = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
accelerator = start_accelerator()
if how == "parts":
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )

class Dies(ToyReferee):
    def result(self, key):
        if key == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().result(key)

# passes of few rows: the two processes need different numbers of them
stage = replace(LONG, steps=12, tokens_per_pass=1024, kl=0.02)
run = Stage(Setup(RECIPE, stage, model, out, TASKS, PROBES), Contrastive(stage), accelerator, Dies())
cut = [type(p).__name__ for p in run.learner.policy.parameters()]
assert ("DTensor" in cut) == (how == "parts"), cut
run.run()
"""


def _run(tmp_path: Path, model: Path, out: str, how: str, dies_at: int = 99) -> tuple[int, str]:
    script = tmp_path / "parts.py"
    script.write_text(PARTS)
    done = subprocess.run(
        [*LAUNCH, str(script), str(model), str(tmp_path / out), how, str(dies_at)],
        env=_environment(),
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr[-3000:]


def _state(out: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(out / "state.pt", weights_only=True)["model"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])  # gpt2's embeddings and head are one weight
def test_weights_in_parts_learn_the_same_and_go_on_after_a_kill(tmp_path: Path, kind: str) -> None:
    model = _taught(tmp_path / "model", kind)
    for out, how in (("whole", "whole"), ("parts", "parts")):
        code, said = _run(tmp_path, model, out, how)
        assert code == 0, said
    assert _run(tmp_path, model, "killed", "parts", dies_at=6)[0] != 0
    code, said = _run(tmp_path, model, "killed", "parts")
    assert code == 0, said
    whole, parts, killed = (_state(tmp_path / out) for out in ("whole", "parts", "killed"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(parts[name], killed[name]) for name in whole)
    # replies of later steps may differ: sums are rounded in another order, and AdamW steps on gradients near zero
    for row, other in zip(_metrics(tmp_path / "whole")[:2], _metrics(tmp_path / "parts"), strict=False):
        assert row == pytest.approx(other, rel=1e-3, abs=1e-4)
    assert _metrics(tmp_path / "parts")[1]["kl"] > 1e-3
    saved = load_base(tmp_path / "parts" / "model").lm.state_dict()
    assert all(torch.equal(saved[name], weight.bfloat16().float()) for name, weight in parts.items())
