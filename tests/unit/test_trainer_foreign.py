"""Training from checkpoints of other architectures with tokenizers of their own, all weights or adapters only."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_toys import FAST, HOST, PROBES, RECIPE, SLOW, STAGE, TASKS, ToyReferee, imitate, make_tokenizer
from test_generate_serve import serve
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.generate.openai_client import OpenAIConfig, OpenAIGenerator
from cudal1_compile.generate.prompt import build_prompt, with_stages
from cudal1_compile.generate.transformers_local import TransformersGenerator
from cudal1_compile.kernel.candidate import Exemplar, parse_reply
from cudal1_trainer.data.corpus import row_of
from cudal1_trainer.data.pairs import Pair
from cudal1_trainer.model.base import load_base
from cudal1_trainer.model.language import load_language
from cudal1_trainer.recipe import DataRecipe, ModelRecipe, Recipe, StageRecipe, TrainRecipe
from cudal1_trainer.rl.contrastive import Contrastive
from cudal1_trainer.rl.self_supervised import SelfSupervised
from cudal1_trainer.rl.stage import Method, Setup, Stage, start_accelerator
from cudal1_trainer.scores.outcome import agrees
from cudal1_trainer.sft import supervised as sft
from cudal1_trainer.tasks.heldout import hold_out, write_heldout

CHAT = "{% for m in messages %}<|user|>{{ m['content'] }}<|reply|>{% endfor %}"
LONG = replace(STAGE, steps=24)


def make_checkpoint(directory: Path, kind: str, positions: int = 1024, hidden: int = 32) -> Path:
    """qwen2 with a chat template, gpt2 (biases, learned positions, transposed weights) without."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer(("<|end|>", "<|user|>", "<|reply|>"))
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")  # type: ignore[no-untyped-call]
    fast.chat_template = CHAT if kind == "qwen2" else None
    ids = {"vocab_size": len(fast), "bos_token_id": 0, "eos_token_id": 0}
    lm: Any
    if kind == "qwen2":
        heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
        sizes = {"hidden_size": hidden, "intermediate_size": 64, "max_position_embeddings": positions}
        lm = Qwen2ForCausalLM(Qwen2Config(**ids, **heads, **sizes))
    else:
        lm = GPT2LMHeadModel(GPT2Config(**ids, n_embd=hidden, n_layer=1, n_head=2, n_positions=positions))
    lm.save_pretrained(directory)
    fast.save_pretrained(directory)
    return directory


def _taught(directory: Path, kind: str) -> Path:
    """It writes each of the toys' replies equally often."""
    base = load_base(make_checkpoint(directory, kind))
    imitate(base.lm, base.language.codec)
    base.save(directory)
    return directory


@pytest.fixture(scope="module", params=["qwen2", pytest.param("gpt2", marks=pytest.mark.slow)])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _taught(tmp_path_factory.mktemp(request.param) / "model", request.param)


def make_stage(checkpoint: Path, out: Path, method: Method, stage: StageRecipe = LONG, lora: int = 0) -> Stage:
    recipe = replace(RECIPE, model=ModelRecipe(lora=lora))
    setup = Setup(recipe, stage, checkpoint, out, TASKS, PROBES)
    return Stage(setup, method, start_accelerator(), ToyReferee())  # type: ignore[arg-type]


def _replies(model: Path) -> list[str]:
    generator = make_generator(str(model))
    assert isinstance(generator, TransformersGenerator)
    prompt = build_prompt(HOST.facts(), TASKS[0], (), generator.budget_tokens, generator.count_tokens)
    return generator.propose([prompt], 8, seed=1)[0]


@pytest.mark.slow  # in every run: stage 1, and the stages with a toy
def test_stages_2_and_3_learn_and_the_result_is_a_generator(checkpoint: Path, tmp_path: Path) -> None:
    second = make_stage(checkpoint, tmp_path / "2", SelfSupervised()).run()
    assert second["before"]["right_1"] < 0.75 and second["after"]["right_1"] > 0.95
    third = make_stage(checkpoint, tmp_path / "3", Contrastive(LONG)).run()
    assert third["before"]["reward"] < 1.4 and third["after"]["reward"] > 2.0
    found = [parse_reply(text).code.strip() for text in _replies(tmp_path / "3" / "model")]
    assert found.count(FAST) > 5


def test_a_model_without_stage_1_is_told_how_to_compare(checkpoint: Path, tmp_path: Path) -> None:
    """Else every reply to a prompt with variants would contradict them."""
    desk = make_stage(checkpoint, tmp_path, Contrastive(LONG)).desk
    shown = [Exemplar(SLOW, 0.94), Exemplar(FAST, 1.2)]
    prompts = [desk.codec.decode(desk.prompt_ids(TASKS[0], variants)[0]) for variants in (shown, [])]
    told = [re.findall(r"^Fastest so far: .*$", prompt, re.M) for prompt in prompts]
    assert len(told[0]) == 1 and not told[1] and agrees(told[0][0], shown)
    region = desk.codec.count(build_prompt(HOST.facts(), TASKS[0], (), 1000, desk.codec.count))
    tight = replace(desk, budget=region + 1)  # without room for variants
    assert tight.prompt_ids(TASKS[0], shown)[1] == [] and tight.fits(TASKS[0])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("uvicorn") is None, reason="transformers[serving] is not installed")
def test_what_was_trained_answers_behind_a_server(tmp_path: Path) -> None:
    """The form in which stages save is one that an OpenAI-compatible server loads."""
    make_stage(_taught(tmp_path / "base", "gpt2"), tmp_path / "out", Contrastive(LONG)).run()
    model = tmp_path / "out" / "model"
    with serve(model) as address:
        generator = OpenAIGenerator(OpenAIConfig(address, str(model), max_tokens=8, chat=False))
        replies = generator.propose([build_prompt(HOST.facts(), TASKS[0], (), 1000, len)], 8, seed=1)[0]
    assert [parse_reply(text).code.strip() for text in replies].count(FAST) > 5


def test_adapters_alone_are_trained_saved_and_merged(checkpoint: Path, tmp_path: Path) -> None:
    short = replace(LONG, steps=6, lr=2e-2)
    stage = make_stage(checkpoint, tmp_path, Contrastive(short), short, lora=8)
    frozen = {n: p.detach().clone() for n, p in stage.base.lm.named_parameters() if not p.requires_grad}
    stage.run()
    assert all(torch.equal(p, frozen[n]) for n, p in stage.base.lm.named_parameters() if n in frozen)
    state = torch.load(tmp_path / "state.pt", weights_only=True)["model"]
    assert all("lora_" in n for n in state) and all(w.any() for n, w in state.items() if "lora_B" in n)
    again = make_stage(checkpoint, tmp_path, Contrastive(short), short, lora=8)
    assert again.standing.step == 6  # goes on from the adapters
    ids = torch.tensor([again.base.language.codec.encode_prompt(TASKS[0])])
    bases = (again.base, load_base(tmp_path / "model"), load_base(checkpoint))
    adapted, merged, first = (base.lm(ids).logits for base in bases)
    torch.testing.assert_close(merged, adapted.float(), rtol=0.1, atol=0.1)  # bf16 files
    assert (first - merged).abs().max() > 0.3


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("lora", [0, pytest.param(8, marks=pytest.mark.slow)])
def test_stage_1_goes_on_from_a_checkpoint(checkpoint: Path, tmp_path: Path, lora: int) -> None:
    write_heldout(hold_out([]), tmp_path / "data" / "heldout.json")
    data = DataRecipe(max_tokens=1000, family="pointwise", pool=2, chunk_tokens=12_000, workers=1)
    train = TrainRecipe(steps=40, tokens_per_step=2048, lr=3e-3, warmup_steps=3, compile=False)
    recipe = Recipe("foreign", model=ModelRecipe(lora=lora), data=data, train=train)
    report = sft.train(recipe, tmp_path / "data", tmp_path / "out", checkpoint)
    plots = {path.stem for path in (tmp_path / "out" / "plots").glob("*.png")}
    assert plots == {"loss", "lr", "tokens_per_s"}
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert report["steps"] == 40 and rows[-1]["loss"] < 0.95 * rows[0]["loss"]
    assert len(_replies(tmp_path / "out" / "model")) == 8


def test_a_model_with_room_is_taught_with_the_instructions_that_it_is_asked_with(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "qwen2", positions=32_768)
    language, generator = load_language(model), make_generator(str(model))
    assert isinstance(generator, TransformersGenerator)
    asked = build_prompt(HOST.facts(), TASKS[0], (), generator.budget_tokens, generator.count_tokens)
    taught = row_of(language, Pair("plain", with_stages(f"{HOST.facts()}\n{TASKS[0]}"), "reply"))
    assert language.preface == instruction_block() and asked.startswith(language.preface)
    assert list(taught.ids[: taught.prompt]) == language.codec.encode_prompt(asked)
    assert taught.ids[-1] == language.tokenizer.eos_token_id


def test_without_peft_adapters_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ValueError, match=r"pip install 'cudal1\[lora\]'"):
        load_base(make_checkpoint(tmp_path / "model", "gpt2"), lora=4)
