"""Rollouts by a real OpenAI-compatible server, started anew with every step's weights: `transformers serve`.

With vLLM on the CPU, in an environment of its own: make test-vllm. With another one:
    CUDAL1_TEST_SERVER="/opt/vllm/bin/vllm serve {model} --host 127.0.0.1 --port {port}" pytest -m slow THIS_FILE
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_toys import RECIPE, REPLIES, STAGE, TASKS, ToyReferee, imitate, make_bundle
from test_trainer_foreign import make_checkpoint

from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.model_files import check_model_dir
from cudal1_compile.generate.prompt import with_stages
from cudal1_compile.runtime.target import HOST
from cudal1_trainer.model.base import Base, load_base
from cudal1_trainer.model.sampler import WeightsDiffer
from cudal1_trainer.model.served import ServedSampler, check_weights
from cudal1_trainer.rl.contrastive import Contrastive
from cudal1_trainer.rl.self_supervised import SelfSupervised
from cudal1_trainer.rl.stage import Method, Setup, Stage, start_accelerator

TRANSFORMERS = str(Path(sys.executable).parent / "transformers")
OWN = shlex.quote(TRANSFORMERS) + " serve {model} --host 127.0.0.1 --port {port} --device cpu"
SERVER = os.environ.get("CUDAL1_TEST_SERVER", OWN)
KINDS = pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
WIDE = 64  # two heads of 32: vLLM has none of 16
BUCKETS = replace(STAGE, arm="buckets", steps=2, server=SERVER, ahead=0, probe_tasks=0)
needs_server = pytest.mark.skipif(find_spec("uvicorn") is None, reason="transformers[serving] is not installed")


def _prompts(base: Base) -> list[list[int]]:
    texts = [with_stages(f"{HOST.facts()}\n{text}") for text in TASKS[:2]]  # as `imitate` has them
    return [base.language.codec.encode_prompt(text) for text in texts for _ in range(3)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_server
@KINDS
def test_the_server_answers_with_the_weights_of_the_step(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    base = load_base(make_checkpoint(tmp_path / "model", kind, hidden=WIDE))
    sampler = ServedSampler(SERVER, base, tmp_path / "served")
    for reply in (REPLIES[0], REPLIES[1]):
        imitate(base.lm, base.language.codec, (reply,))
        sampler.synchronise(base.lm)
        ids = sampler.sample(_prompts(base), 4, 0.1, seed=1)
        assert [base.language.codec.decode(i) for i in ids] == [reply] * 6
        assert {i[-1] for i in ids} == {base.language.tokenizer.eos_token_id}
    assert len(sampler.sample(_prompts(base)[:1], 1, 1.0, seed=1)[0]) == 1  # cut: no end
    models = [path for path in (tmp_path / "served").iterdir() if path.is_dir()]
    assert models == [sampler._model]  # those of earlier steps are gone
    sampler.close()
    with pytest.raises(GeneratorError, match="did not answer"):
        sampler.sample(_prompts(base)[:1], 4, 1.0, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_server
@pytest.mark.parametrize("method", [SelfSupervised(), Contrastive(BUCKETS)], ids=lambda m: m.name)
def test_stages_learn_from_a_server_that_is_started_anew_after_each_update(
    tmp_path: Path, method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load_base(make_checkpoint(tmp_path / "model", "qwen2", hidden=WIDE))
    imitate(base.lm, base.language.codec)
    base.save(tmp_path / "model")
    started: list[Path] = []
    start = ServedSampler._start
    monkeypatch.setattr(ServedSampler, "_start", lambda self: (started.append(self._model), start(self)))
    setup = Setup(RECIPE, BUCKETS, tmp_path / "model", tmp_path / "out", TASKS, [])
    run = Stage(setup, method, start_accelerator(), ToyReferee())  # type: ignore[arg-type]
    assert isinstance(run.desk.sampler, ServedSampler)
    report = run.run()
    run.desk.sampler.close()
    assert report["replies"] == 32 and report["kinds"]["right"] > 4
    assert len(started) == len(set(started)) == 1 + report["steps"]  # each time with other weights


@KINDS
def test_files_with_other_weights_are_found(tmp_path: Path, kind: str) -> None:
    base = load_base(make_checkpoint(tmp_path / "model", kind))
    base.save(tmp_path / "served")
    files = check_model_dir(tmp_path / "served")
    check_weights(files, base.lm)
    last: Any = list(base.lm.parameters())[-1]
    with torch.no_grad():
        last.add_(1.0)
    with pytest.raises(WeightsDiffer, match="differ in"):
        check_weights(files, base.lm)
    with pytest.raises(WeightsDiffer, match="lack"):
        check_weights([f for f in files if f.suffix != ".safetensors"], base.lm)


def test_the_bundled_model_is_served_by_nobody_else(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        ServedSampler(SERVER, load_base(make_bundle(tmp_path / "bundle")), tmp_path / "served")
