"""FSDP2 with two CPU processes: stages in parts learn what they learn whole, go on after a kill, save one model.

accelerate cuts weights in parts on devices only and falls back to data parallelism on CPUs, so the first lines of
each process tell it otherwise; from there on it is accelerate's and PyTorch's own code, over gloo.
"""

from __future__ import annotations

import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from test_trainer_foreign import _taught, make_checkpoint
from test_trainer_stage import LAUNCH, _environment, _metrics

from cudal1_trainer.model.base import load_base
from cudal1_trainer.recipe import DataRecipe, Recipe, TrainRecipe
from cudal1_trainer.tasks.heldout import hold_out, write_heldout

PARTS = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from stage_toys import PROBES, RECIPE, TASKS, ToyReferee
from test_trainer_foreign import LONG
from cudal1_trainer.rl.contrastive import Contrastive
from cudal1_trainer.rl.stage import Setup, Stage, start_accelerator

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


def _launch(tmp_path: Path, text: str, *given: object) -> tuple[int, str]:
    (tmp_path / "parts.py").write_text(text)
    command = [*LAUNCH, str(tmp_path / "parts.py"), *map(str, given)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr[-3000:]


def _run(tmp_path: Path, model: Path, out: str, how: str, dies_at: int = 99) -> tuple[int, str]:
    return _launch(tmp_path, PARTS, model, tmp_path / out, how, dies_at)


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


FIRST = """
import sys
from pathlib import Path
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from cudal1_trainer.model import checkpoint
from cudal1_trainer.sft import supervised as sft, training
from cudal1_trainer.recipe import load_recipe

recipe, data, model, out, how, ends_at = *map(Path, sys.argv[1:5]), sys.argv[5], int(sys.argv[6])

def start(**given):
    accelerator = Accelerator(**given)
    if how == "parts":
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
        )
    return accelerator

def save(self, step, *states, write=checkpoint.Checkpoints.save):
    done = write(self, step, *states)
    if step == ends_at:
        sys.exit(3)
    return done

if __name__ == "__main__":
    training.Accelerator = start
    checkpoint.Checkpoints.save = save
    sft.train(load_recipe(str(recipe)), data, out, model)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stage_1_in_parts_learns_the_same(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "qwen2")
    data = DataRecipe(max_tokens=1000, family="pointwise", pool=2, chunk_tokens=12_000, workers=1)
    train = TrainRecipe(steps=6, tokens_per_step=2048, warmup_steps=3, checkpoint_s=0.0, compile=False)
    (tmp_path / "parts.yaml").write_text(yaml.safe_dump(asdict(Recipe("parts", data=data, train=train))))
    write_heldout(hold_out([]), tmp_path / "data" / "heldout.json")
    given = [tmp_path / "parts.yaml", tmp_path / "data", model]
    for out, how, ends_at in (("whole", "whole", -1), ("parts", "parts", 4), ("parts", "parts", -1)):
        code, said = _launch(tmp_path, FIRST, *given, tmp_path / out, how, ends_at)
        assert (code == 0) == (ends_at < 0), said
    whole, parts = (_state(tmp_path / out) for out in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=1e-2, atol=1e-3)
    saved = load_base(tmp_path / "parts" / "model").lm.state_dict()
    assert all(torch.equal(weight, parts[f"lm.{name}"].bfloat16().float()) for name, weight in saved.items())
