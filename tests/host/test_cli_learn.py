"""`cudal1 warm --learn`: what is practised reaches the judge; what cannot learn is said, and warming goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stage_toys import TASKS, ToyReferee, make_bundle

from cudal1_cache.store import Store
from cudal1_compile import cli
from cudal1_compile.cli.learn import FASTEST, LEARNED, base_model, learn_from, offer
from cudal1_compile.codegen.replies import design_of
from cudal1_compile.dispatch.kernel_cache import open_store
from cudal1_compile.errors import OptionError
from cudal1_compile.generate.model_files import MODEL_DIR
from cudal1_compile.runtime.target import HOST
from cudal1_compile.synthesis.archive import Archive
from cudal1_compile.synthesis.task import region_of
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.recipe import Recipe, load_recipe
from cudal1_trainer.rl import contest, launch, own
from cudal1_trainer.tasks.variants import write_variants

pytestmark = pytest.mark.host

WORKLOAD = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.Softmax(-1))
    return model, torch.randn(32, 64)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "cache")


def _fastest(path: Path, *designs: str) -> Path:
    path.write_text("".join(json.dumps({"text": TASKS[0], "design": d, "code": ""}) + "\n" for d in designs))
    return path


def test_practised_designs_wait_for_the_judge_once(tmp_path: Path, store: Store) -> None:
    program = parse_program(TASKS[0])
    variant = write_variants(program, 1)[0]
    path = _fastest(tmp_path / FASTEST, design_of(variant.reply), "no design")
    assert offer(path, HOST, store) == 1
    (waiting,) = Archive(store, region_of(program), HOST).waiting()
    assert waiting.code == variant.reply.code and waiting.generator == LEARNED.rstrip(":")


def test_only_a_model_of_its_form_learns(tmp_path: Path) -> None:
    assert base_model("bundled") == MODEL_DIR
    assert base_model(f"bundled:{tmp_path}") == tmp_path
    for generator in ("http://localhost:1/v1#model=x", str(tmp_path / "nowhere")):
        with pytest.raises(OptionError, match="expected bundled, or bundled:PATH"):
            base_model(generator)


def test_too_little_time_is_said(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert learn_from(TASKS, "host", MODEL_DIR, 5.0, store) is None
    assert "half of --budget-s must be at least 60" in capsys.readouterr().out


def test_what_ends_the_learning_is_said(
    tmp_path: Path, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "cache"))
    assert learn_from(TASKS, "host", tmp_path / "nowhere", 60.0, store) is None
    assert "nothing was learned: no model in" in capsys.readouterr().out


class _Entered(ToyReferee):
    def __enter__(self) -> ToyReferee:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _three_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a judge that answers at once."""

    def short(name: str) -> Recipe:
        recipe = load_recipe(name)
        stage = replace(recipe.contrastive, steps=3, group=8, max_new=4, lr=4e-3, probe_samples=8)
        return replace(recipe, contrastive=stage)

    monkeypatch.setattr(own, "load_recipe", short)
    for module in (launch, contest):
        monkeypatch.setattr(module, "make_referee", lambda *_: _Entered())


def test_a_model_that_is_worse_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _three_steps(monkeypatch)
    bundle, out = make_bundle(tmp_path / "bundle"), tmp_path / "out"
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"text": text}) + "\n" for text in TASKS))
    monkeypatch.setattr(own, "is_worse", lambda new, old: True)
    assert not own.learn(tasks, bundle, out, 1.0)
    assert sorted(p.name for p in out.iterdir()) == [FASTEST]
    rows = [json.loads(line) for line in (out / FASTEST).read_text().splitlines()]
    assert [row["score"] for row in rows] == [60.0 / 25.0] * len(TASKS)  # FAST's

    monkeypatch.setattr(own, "is_worse", lambda new, old: False)
    assert own.learn(tasks, bundle, out, 1.0)
    assert own.learn(tasks, out / "model", out, 1.0)  # learns on
    assert sorted(p.name for p in out.iterdir()) == [FASTEST, "model"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_workload_is_learned_from_and_warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "learned_net.py").write_text(WORKLOAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDAL1_CACHE_DIR", str(tmp_path / "cache"))
    assert cli.main(["warm", "learned_net:make", "--learn", "--budget-s", "200"]) == 0
    said = capsys.readouterr().out
    assert "practised designs wait for the judge" in said and "untuned" not in said
    (log,) = (tmp_path / "cache" / "learned").glob("*/learn.log")
    assert "right_1" in log.read_text()
    assert cli.main(["warm", "learned_net:make", "--learn", "--budget-s", "200"]) == 0
    assert "every region is decided" in capsys.readouterr().out
