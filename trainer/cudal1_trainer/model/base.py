"""The checkpoint that training begins with: an own bundle, or any causal language model of transformers.

    load_base(directory, lora)    model, tokenizer, and how texts become ids
    base.sampler(device)          the fast sampler for an own bundle, else transformers' generate
    base.save(directory)          in the form it came in, adapters merged

With `lora` > 0 a foreign model's own weights stay as they are and adapters of that rank are trained (peft, extra
`lora`). An own bundle is small: all of it is trained.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cudal1_compile.generate.factory import is_own
from cudal1_compile.generate.model_files import check_ids, check_model_dir, model_digest
from cudal1_compile.generate.transformers_local import load_checkpoint
from cudal1_trainer.model.language import Language, load_language
from cudal1_trainer.model.model import CAUSAL, build_model, save_bundle
from cudal1_trainer.model.sampler import ForeignSampler, Sampler, Sampling
from cudal1_trainer.model.tokenizer import codec_of, load_tokenizer
from cudal1_trainer.recipe import Recipe


@dataclass(frozen=True)
class Base:
    """A model in training. `adapted`: peft's wrapper around `lm`, where only adapters are trained."""

    lm: Any
    language: Language
    digest: str = ""  # of the checkpoint's files
    foreign: bool = False
    adapted: Any = None

    def sampler(self, device: torch.device) -> Sampling:
        if self.foreign:
            return ForeignSampler(self.language.tokenizer.eos_token_id)
        return Sampler(device)

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
    return Base(build_model(recipe.model, len(found)), Language(codec_of(found), tokenizer=found))


def load_base(directory: Path, lora: int = 0) -> Base:
    """On the CPU. Raises ModelMissing or GeneratorError; ValueError where `lora` is asked for without peft."""
    digest, language = model_digest(check_model_dir(directory)), load_language(directory)
    if is_own(directory):
        lm, tokenizer = load_checkpoint(directory, "cpu", "float32")
        check_ids(directory, len(tokenizer), lm.config.vocab_size)
        lm.set_attn_implementation(CAUSAL)
        return Base(lm, language, digest)
    lm, _ = load_checkpoint(directory, "cpu", "auto" if lora else "float32")
    return Base(lm, language, digest, True, _add_adapters(lm, lora) if lora else None)


def _add_adapters(lm: Any, rank: int) -> Any:
    """On every linear layer but the head; freezes everything else."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ValueError(f"model.lora={rank} needs peft: pip install 'cudal1[lora]' ({error})") from None
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(lm, config)
