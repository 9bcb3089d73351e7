"""The language model: a small Llama from transformers, its loss over replies, and the bundle on disk.

A bundle is what `LlamaForCausalLM.from_pretrained(directory)` and the compiler's own loader read: bf16
safetensors in parts of at most PART_BYTES, their index, config.json and the tokenizer's files.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.modeling_utils import AttentionInterface

from cudal1_trainer.model.tokenizer import save_tokenizer
from cudal1_trainer.recipe import ModelRecipe

log = logging.getLogger(__name__)

MAX_NEW = 320  # tokens of a reply, a design with edits: the longest of 300 has 283
CAUSAL = "cudal1_causal"  # attention in training; a bundle's reader chooses its own
PART_BYTES = 14 * 2**20  # of one file of weights; the repository takes files of at most 15 MiB


def build_model(recipe: ModelRecipe, vocab: int) -> LlamaForCausalLM:
    """A fresh model; the output and residual projections start small, scaled by depth."""
    config = LlamaConfig(
        vocab_size=-(-vocab // 64) * 64,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.mlp,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=recipe.max_positions,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=3,
    )
    config._attn_implementation = CAUSAL
    model = LlamaForCausalLM(config)
    shrink = 1.0 / math.sqrt(2 * recipe.layers)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.mul_(shrink)
    return model


def causal_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **rest: Any
) -> tuple[Tensor, None]:
    """SDPA over rows of one sequence each. transformers' own "sdpa" looks for packed sequences in the positions,
    and so waits for the device in every step."""
    found = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=rest["scaling"], enable_gqa=True
    )
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(CAUSAL, causal_attention)


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


class ReplyLoss(nn.Module):
    """Mean cross-entropy of the reply's ids. One module, so that data-parallel wrappers see one forward."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        self._no_split_modules = lm._no_split_modules  # layers that sharding.py cuts one by one

    def forward(self, tokens_BT: Tensor, places_N: Tensor, ids_N: Tensor) -> Tensor:
        """places_N: flat places in [0, B*T) whose next id belongs to a reply; ids_N: those ids."""
        hidden_BTD = self.lm.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
        picked_ND = hidden_BTD.flatten(0, 1).index_select(0, places_N)
        return self.score(picked_ND, ids_N)

    def score(self, picked_ND: Tensor, ids_N: Tensor) -> Tensor:
        return functional.cross_entropy(self.lm.get_output_embeddings()(picked_ND).float(), ids_N)


def compile_blocks(loss: ReplyLoss) -> None:
    """Compiles each decoder layer and the head with dynamic sizes; what fails to compile runs eagerly."""
    torch._dynamo.config.suppress_errors = True
    torch._dynamo.config.recompile_limit = 64
    for layer in loss.lm.model.layers:
        layer.compile(dynamic=True)
    loss.score = torch.compile(loss.score, dynamic=True)  # type: ignore[method-assign]


def save_bundle(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, directory: Path, max_new: int = MAX_NEW
) -> list[Path]:
    """Writes the bundle and returns its weight files; `model` itself stays as it is."""
    max_new = min(max_new, model.config.max_position_embeddings // 2)
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("model*.safetensors*"):
        old.unlink()
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config.update(do_sample=True, temperature=0.8, max_new_tokens=max_new)  # type: ignore[no-untyped-call]
    copy.bfloat16().save_pretrained(str(directory), max_shard_size=PART_BYTES)
    save_tokenizer(tokenizer, directory)
    parts = sorted(directory.glob("model*.safetensors"))
    for part in parts:
        size = part.stat().st_size
        if size > 15 * 2**20:
            raise ValueError(f"{part.name} has {size} bytes: one weight alone is over the 15 MiB of a file")
    log.info("%d weight files, %d bytes in all", len(parts), sum(p.stat().st_size for p in parts))
    return parts
