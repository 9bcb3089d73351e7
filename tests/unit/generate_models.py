"""Tiny checkpoints for the generator tests: a random Llama with this project's tokenizer form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from cudal1_compile.generate.tokens import SPECIAL_TOKENS

CHAT_TEMPLATE = "{% for m in messages %}<bos>{{ m['content'] }}<sep>{% endfor %}"
PART_BYTES = 15 * 1024 * 1024
ROWS = """region v1
dims d0=8192 d1=1024
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
out0 f32[d0,d1] = t1
"""
TEXTS = ["region v1\ndims d0=32 d1=64\n", "## Code\n```cuda\n__global__ void f() {}\n```\n"] * 20


def make_tokenizer(texts: list[str] = TEXTS) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", sep_token="<sep>", eos_token="<eos>"
    )


def save_model(model: Any, directory: Path, max_new: int) -> None:
    """Writes config, generation settings, index and parts of at most PART_BYTES, weights in bfloat16."""
    model.generation_config.update(do_sample=True, temperature=0.8, max_new_tokens=max_new)
    model.save_pretrained(str(directory), max_shard_size=PART_BYTES)


def make_checkpoint(
    directory: Path, chat: bool = False, positions: int = 256, max_new: int = 48, **changes: Any
) -> Any:
    """Writes the checkpoint in the bundled form and returns the model that was written."""
    torch.manual_seed(3)
    settings: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "max_position_embeddings": positions,
        "initializer_range": 0.4,
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings | changes)).to(torch.bfloat16).train(False)
    directory.mkdir(parents=True, exist_ok=True)
    save_model(model, directory, max_new)
    tokenizer = make_tokenizer()
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(str(directory))
    return model
