"""The loop: the loss falls, a killed run goes on bit by bit, NaN stops it, the bundle loads in transformers."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from copied_batches import Copies
from tmpfs import run_on_tmpfs
from transformers import AutoTokenizer, LlamaForCausalLM

from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_trainer.data.loader import Batch
from cudal1_trainer.errors import NotFinite
from cudal1_trainer.model.base import load_base
from cudal1_trainer.model.model import build_model, save_bundle
from cudal1_trainer.model.tokenizer import save_tokenizer, train_tokenizer
from cudal1_trainer.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe
from cudal1_trainer.sft.metrics import Metrics
from cudal1_trainer.sft.training import Training, learning_rate

TRAIN = TrainRecipe(steps=120, tokens_per_step=512, lr=3e-3, warmup_steps=5, checkpoint_s=1e9, compile=False)
RECIPE = Recipe(
    "test",
    model=ModelRecipe(hidden=32, layers=2, heads=4, kv_heads=2, mlp=64, max_positions=256),
    data=DataRecipe(workers=1),
    train=TRAIN,
)


def _heldout() -> list[Batch]:
    return Copies()(10**6)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    save_tokenizer(train_tokenizer(["float x = 1.0f;\n"] * 20, 280), tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def _weights(directory: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(directory / "state.pt", weights_only=True)["model"]
    return state


def _run_steps(training: Training, steps: int) -> None:
    """Steps without a clock, so that two runs can be compared."""
    from cudal1_trainer.data.loader import Feed
    from cudal1_trainer.sft.training import Progress

    with Feed(Copies(), 1, training.progress.cursor) as feed:
        batches: Iterator[object] = training._prefetched(feed)
        for _ in range(steps):
            step = next(batches)
            training._step(step, 1e-3)  # type: ignore[arg-type]
            p = training.progress
            training.progress = Progress(p.step + 1, 0.0, p.tokens, step.cursor)  # type: ignore[attr-defined]
    training.save()


def test_the_loss_falls_and_the_bundle_loads(tokenizer: Path, tmp_path: Path) -> None:
    report = Training(RECIPE, tokenizer, tmp_path / "run").run(Copies(), _heldout)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["loss"] > 5.0
    assert report["heldout_loss"] < 3.5
    assert report["steps"] == 120 and report["processes"] == 1
    model = LlamaForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert model.dtype == torch.bfloat16 or next(model.parameters()).dtype in (torch.bfloat16, torch.float32)
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "model").eos_token_id == 3
    load_base(tmp_path / "run" / "model").save(tmp_path / "later")  # as stages 2 and 3 do
    for bundle in (tmp_path / "run" / "model", tmp_path / "later"):
        assert BundledGenerator(BundledConfig(bundle)).writes_designs


def test_metrics_reach_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metrics = Metrics(tmp_path, active=True)
    metrics.write(1, {"loss": 4.0, "reward": 0.5})
    metrics.write(2, {"loss": 3.0})
    metrics.close()
    found = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(1, 4.0), (2, 3.0)]
    assert found.Tags()["scalars"] == ["loss", "reward"]


def test_a_resumed_run_equals_one_that_was_not_killed(tokenizer: Path, tmp_path: Path) -> None:
    whole = Training(RECIPE, tokenizer, tmp_path / "whole")
    _run_steps(whole, 7)
    first = Training(RECIPE, tokenizer, tmp_path / "halves")
    _run_steps(first, 3)
    second = Training(RECIPE, tokenizer, tmp_path / "halves")
    assert second.progress.step == 3
    _run_steps(second, 4)
    for name, w in _weights(tmp_path / "whole").items():
        assert torch.equal(w, _weights(tmp_path / "halves")[name]), name


def test_a_checkpoint_of_another_recipe_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    Training(RECIPE, tokenizer, tmp_path / "run").save()
    with pytest.raises(ValueError, match="another recipe or base"):
        Training(replace(RECIPE, seed=2), tokenizer, tmp_path / "run")


def test_a_run_of_two_processes_does_not_go_on_with_one(tokenizer: Path, tmp_path: Path) -> None:
    """Each has its own part of the data."""
    Training(RECIPE, tokenizer, tmp_path / "run").save()
    shutil.copy(tmp_path / "run" / "rank0.0.pt", tmp_path / "run" / "rank1.0.pt")
    with pytest.raises(ValueError, match="run of 2 processes, these are 1"):
        Training(RECIPE, tokenizer, tmp_path / "run")


def test_nan_stops_the_run_and_keeps_the_last_good_state(tokenizer: Path, tmp_path: Path) -> None:
    training = Training(RECIPE, tokenizer, tmp_path / "run")
    training.save()
    good = _weights(tmp_path / "run")
    with torch.no_grad():
        next(training.loss.parameters()).fill_(float("nan"))
    with pytest.raises(NotFinite, match="last good state"):
        training.run(Copies(), _heldout)
    assert all(torch.equal(w, good[name]) for name, w in _weights(tmp_path / "run").items())


def test_weights_that_are_not_finite_are_not_saved(tokenizer: Path, tmp_path: Path) -> None:
    """A loss and a gradient that are finite may be followed by a step that is not."""
    training = Training(RECIPE, tokenizer, tmp_path / "run")
    training.save()
    with torch.no_grad():
        next(training.loss.parameters()).fill_(float("inf"))
    with pytest.raises(NotFinite, match="weights are not finite at step 0; the last good state"):
        training.save()
    assert all(bool(w.isfinite().all()) for w in _weights(tmp_path / "run").values())


@pytest.mark.parametrize("name", ["state.pt", "rank0.0.pt"])
def test_a_state_of_which_a_part_has_changed_is_refused(tokenizer: Path, tmp_path: Path, name: str) -> None:
    Training(RECIPE, tokenizer, tmp_path / "run").save()
    path = tmp_path / "run" / name
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(64) + content[middle + 64 :])
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        Training(RECIPE, tokenizer, tmp_path / "run")


FULL = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from tmpfs import fill
from test_trainer_training import RECIPE, TRAIN, Copies, Training, _heldout
tokenizer, out = Path(sys.argv[1]), Path(sys.argv[2])
recipe = replace(RECIPE, train=replace(TRAIN, steps=25, checkpoint_s=0.0))
training = Training(recipe, tokenizer, out)
training.save()
give_back = fill(out)
try:
    training.run(Copies(), _heldout)
except OSError as error:
    print(error)
print("kept", torch.load(out / "state.pt", weights_only=True)["step"], "learnt", training.progress.step)
give_back()
print(Training(recipe, tokenizer, out).run(Copies(), _heldout)["steps"])
"""


@pytest.mark.slow
def test_a_full_disk_costs_checkpoints_not_the_run(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), *sys.path])}
    given = (str(tokenizer), str(tmp_path / "out"))
    done = run_on_tmpfs(tmp_path / "out", "4m", FULL, *given, environment=environment)
    assert "make room" in done.stdout and "kept 0 learnt 25" in done.stdout, done.stderr[-2000:]
    assert done.stdout.strip().endswith("25") and "no checkpoint was written" in done.stderr


def test_the_rate_warms_up_and_ends_low() -> None:
    rates = [learning_rate(TRAIN, step, done) for step, done in ((0, 0.0), (4, 0.0), (100, 0.5), (100, 1.0))]
    assert rates[0] == pytest.approx(TRAIN.lr / 5)
    assert rates[1] == pytest.approx(TRAIN.lr)
    assert rates[2] == pytest.approx(TRAIN.lr * 0.51)
    assert rates[3] == pytest.approx(TRAIN.lr * TRAIN.min_lr)


def test_weights_come_in_parts_that_fit_a_file(tokenizer: Path, tmp_path: Path) -> None:
    recipe = ModelRecipe(hidden=384, layers=8, heads=6, kv_heads=2, mlp=1024)
    fast = AutoTokenizer.from_pretrained(tokenizer)
    model = build_model(recipe, 2048)
    parts = save_bundle(model, fast, tmp_path / "model")
    assert len(parts) >= 2 and all(p.stat().st_size <= 15 * 2**20 for p in parts)
    again = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    for (name, a), b in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a.bfloat16(), b.bfloat16()), name
