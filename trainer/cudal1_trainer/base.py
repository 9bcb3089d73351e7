"""The checkpoint that training begins with: an own bundle, or any causal language model of transformers.

    load_base(directory, lora)    model, tokenizer, and how texts become ids
    base.sampler(device)          the fast sampler for an own bundle, else transformers' generate
    base.save(directory)          in the form it came in, adapters merged

A foreign model is asked as in use (transformers_local.py): through its chat template where it has one, with the
instruction block where it has room. With `lora` > 0 its own weights stay as they are and adapters of that rank are
trained (peft, extra `lora`). An own bundle is small: all of it is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoConfig, AutoTokenizer

from cudal1_compile.generate.bundled import check_model_dir, find_code_token, load_model, model_digest
from cudal1_compile.generate.factory import is_own
from cudal1_compile.generate.fast_llama import Cooling
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.generate.prompt import INSTRUCTED_TOKENS
from cudal1_compile.generate.tokens import Codec, load_codec
from cudal1_compile.generate.transformers_local import MAX_NEW_TOKENS, encode_turn, load_checkpoint
from cudal1_trainer.model import CAUSAL, build_model, save_bundle
from cudal1_trainer.recipe import Recipe
from cudal1_trainer.sampler import ForeignSampler, Sampler, Sampling
from cudal1_trainer.tokenizer import codec_of, load_tokenizer


class Coder(Protocol):
    """How prompts and replies become ids. tokens.py's Codec is the bundled model's."""

    def count(self, text: str) -> int: ...

    def encode_prompt(self, prompt: str) -> list[int]: ...

    def encode_reply(self, reply: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class ForeignCodec:
    """A checkpoint's own tokenizer."""

    tokenizer: Any

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def encode_prompt(self, prompt: str) -> list[int]:
        return encode_turn(self.tokenizer, prompt)

    def encode_reply(self, reply: str) -> list[int]:
        return [*self._ids(reply), self.tokenizer.eos_token_id]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True)
class Language:
    """`preface`: what a training pair's prompt lacks of a prompt in use."""

    tokenizer: Any
    codec: Coder
    preface: str = ""


@dataclass(frozen=True)
class Base:
    """A model in training. `adapted`: peft's wrapper around `lm`, where only adapters are trained."""

    lm: Any
    language: Language
    digest: str = ""  # of the checkpoint's files
    foreign: bool = False
    adapted: Any = None

    @property
    def code_token(self) -> int | None:
        """That opens a reply's code; None for a foreign model, whose replies are as warm in the code."""
        codec = self.language.codec
        return find_code_token(codec) if isinstance(codec, Codec) else None

    def sampler(self, device: torch.device, code_temperature: float = 1.0) -> Sampling:
        if self.foreign:
            return ForeignSampler(self.language.tokenizer.eos_token_id)
        return Sampler(device, Cooling(self.code_token, code_temperature) if self.code_token is not None else None)

    def save(self, directory: Path) -> None:
        """The model in training stays as it is."""
        if not self.foreign:
            save_bundle(self.lm, self.language.tokenizer, directory)
            return
        whole = copy.deepcopy(self.adapted or self.lm).cpu()
        whole = whole.merge_and_unload() if self.adapted is not None else whole
        whole.to(torch.bfloat16).save_pretrained(str(directory))
        self.language.tokenizer.save_pretrained(str(directory))


def fresh_base(recipe: Recipe, tokenizer: Path) -> Base:
    """Random weights of the recipe's size."""
    found = load_tokenizer(tokenizer)
    return Base(build_model(recipe.model, len(found)), Language(found, codec_of(found)))


def load_base(directory: Path, lora: int = 0) -> Base:
    """On the CPU. Raises ModelMissing or GeneratorError; ValueError where `lora` is asked for without peft."""
    digest = model_digest(check_model_dir(directory))
    if is_own(directory):
        lm = load_model(directory).float()
        lm.set_attn_implementation(CAUSAL)
        return Base(lm, load_language(directory), digest)
    lm, _ = load_checkpoint(directory, "cpu", "auto" if lora else "float32")
    return Base(lm, load_language(directory), digest, True, _add_adapters(lm, lora) if lora else None)


def load_language(directory: Path) -> Language:
    """Without the weights. Raises ValueError for a tokenizer without a token that ends a text."""
    if is_own(directory):
        return Language(load_tokenizer(directory), load_codec(str(directory / "tokenizer.json")))
    tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer in {directory} names no eos_token: nothing could end a reply")
    positions = AutoConfig.from_pretrained(str(directory), local_files_only=True).max_position_embeddings
    room = positions - min(MAX_NEW_TOKENS, positions // 2)
    return Language(tokenizer, ForeignCodec(tokenizer), instruction_block() if room >= INSTRUCTED_TOKENS else "")


def _add_adapters(lm: Any, rank: int) -> Any:
    """On every linear layer but the head; freezes everything else."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"model.lora={rank} needs peft: pip install 'cudal1[lora]' ({error})") from None
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(lm, config)
