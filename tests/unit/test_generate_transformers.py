"""Any local checkpoint through transformers: chat templates, seeds, deadlines, missing files."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from generate_models import make_checkpoint
from transformers import LlamaForCausalLM

from cudal1_compile.generate.errors import GeneratorError, ModelMissing
from cudal1_compile.generate.transformers_local import TransformersConfig, TransformersGenerator, encode_turn
from cudal1_compile.generate.vllm_local import VllmConfig, VllmGenerator


def open_generator(path: Path, chat: bool, temperature: float = 0.9, max_new: int = 24) -> TransformersGenerator:
    make_checkpoint(path, chat)
    return TransformersGenerator(TransformersConfig(path, temperature=temperature, max_new_tokens=max_new))


@pytest.mark.parametrize("chat", [False, True])
def test_n_replies_a_prompt_decided_by_the_seed(tmp_path: Path, chat: bool) -> None:
    generator = open_generator(tmp_path / "m", chat)
    prompts = ["region v1\ndims d0=4\n", "## Code"]
    found = generator.propose(prompts, 3, seed=5)
    assert [len(g) for g in found] == [3, 3]
    assert found == generator.propose(prompts, 3, seed=5)
    assert found != generator.propose(prompts, 3, seed=6)
    assert "<eos>" not in "".join(found[0])


def test_the_chat_template_is_applied(tmp_path: Path) -> None:
    plain = encode_turn(open_generator(tmp_path / "plain", chat=False).tokenizer, "dims")
    chat = encode_turn(open_generator(tmp_path / "chat", chat=True).tokenizer, "dims")
    assert chat == [1, *plain, 2]


def test_a_token_that_the_tokenizer_alone_has_pads_nothing(tmp_path: Path) -> None:
    """Where replies end apart, the model reads what pads the shorter ones."""
    generator = open_generator(tmp_path / "m", chat=False)
    known = generator._pad_id()
    generator.tokenizer.add_tokens([f"<{i}>" for i in range(64)])
    generator.tokenizer.add_special_tokens({"pad_token": "<added>"})
    assert generator.tokenizer.pad_token_id >= generator.model.config.vocab_size > known
    assert generator._pad_id() in generator._eos_ids()
    assert len(generator.propose(["dims"], 8, seed=1)[0]) == 8


def test_the_random_state_of_the_process_is_left_alone(tmp_path: Path) -> None:
    generator = open_generator(tmp_path / "m", chat=False)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    generator.propose(["dims"], 2, seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_the_deadline_ends_generation(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "m", positions=4096, eos_token_id=None)
    generator = TransformersGenerator(TransformersConfig(tmp_path / "m", max_new_tokens=2000))
    start = time.monotonic()
    assert generator.propose_until(["a", "b"], 2, 0, start + 0.5) == [[], []]
    assert time.monotonic() - start < 3.0


def test_missing_and_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="holds no config.json"):
        TransformersGenerator(TransformersConfig(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "nothing-known"}')
    with pytest.raises(GeneratorError, match="cannot be loaded"):
        TransformersGenerator(TransformersConfig(tmp_path))


def test_a_device_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: LlamaForCausalLM, device: str) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    make_checkpoint(tmp_path)
    monkeypatch.setattr(LlamaForCausalLM, "to", fail)
    with pytest.raises(GeneratorError, match="no room for the generator: OutOfMemoryError: CUDA out"):
        TransformersGenerator(TransformersConfig(tmp_path))


def test_vllm_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # import then raises ImportError, installed or not
    with pytest.raises(GeneratorError, match=r"pip install 'cudal1\[vllm\]'"):
        VllmGenerator(VllmConfig("somewhere"))
