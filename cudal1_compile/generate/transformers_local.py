"""A generator over any local causal language model that transformers can load.

    prompt -> chat template, where the tokenizer has one -> generate -> text

Nothing is downloaded. It is slow next to the fast sampler, and makes no attempt to share prefixes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cudal1_compile.generate.errors import GeneratorError, ModelMissing, no_room, wants_memory
from cudal1_compile.generate.quiet import without_progress_bars

MAX_NEW_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class TransformersConfig:
    directory: Path
    device: str = "cpu"
    dtype: str = "auto"  # as in from_pretrained
    temperature: float = 0.8
    top_p: float = 1.0
    max_new_tokens: int = MAX_NEW_TOKENS
    budget_tokens: int | None = None  # of the prompt; None: the model's positions less max_new_tokens


class TransformersGenerator:
    def __init__(self, config: TransformersConfig) -> None:
        self.config = config
        self.model, self.tokenizer = load_checkpoint(config.directory, config.device, config.dtype)
        self.name = f"transformers:{config.directory.name}"
        positions = int(getattr(self.model.config, "max_position_embeddings", 4096))
        self.max_new_tokens = min(config.max_new_tokens, positions // 2)
        self.budget_tokens = config.budget_tokens or positions - self.max_new_tokens

    def count_tokens(self, text: str) -> int:
        return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def propose(self, prompts: Sequence[str], n: int, seed: int) -> list[list[str]]:
        return self.propose_until(prompts, n, seed, float("inf"))

    def propose_until(self, prompts: Sequence[str], n: int, seed: int, deadline: float) -> list[list[str]]:
        """Replies that the deadline cuts off are left out; the random state of the process is left as it was."""
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            return [self._propose_one(p, n, deadline) if time.monotonic() < deadline else [] for p in prompts]

    def _propose_one(self, prompt: str, n: int, deadline: float) -> list[str]:
        ids = torch.tensor([encode_turn(self.tokenizer, prompt)], device=self.model.device)
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=self.config.temperature > 0 or n > 1,
                temperature=max(self.config.temperature, 1e-4),
                top_p=self.config.top_p,
                top_k=0,
                num_return_sequences=n,
                max_new_tokens=self.max_new_tokens,
                pad_token_id=self._pad_id(),
                stopping_criteria=[_Deadline(deadline)],
            )
        late = time.monotonic() >= deadline
        return [text for row in out[:, ids.shape[1] :].tolist() if (text := self._decode(row, late)) is not None]

    def _decode(self, row: list[int], late: bool) -> str | None:
        ended = any(i in self._eos_ids() for i in row)
        if late and not ended and len(row) < self.max_new_tokens:
            return None
        return str(self.tokenizer.decode(row, skip_special_tokens=True))

    def _eos_ids(self) -> set[int]:
        eos = self.model.generation_config.eos_token_id
        return set(eos) if isinstance(eos, list) else {eos} if eos is not None else set()

    def _pad_id(self) -> int:
        """The tokenizer's, unless the model has no such token: one that was added to the tokenizer alone."""
        pad = self.tokenizer.pad_token_id
        has_it = pad is not None and pad < self.model.get_input_embeddings().num_embeddings
        return int(pad) if has_it else min(self._eos_ids(), default=0)


def encode_turn(tokenizer: Any, prompt: str) -> list[int]:
    """Through the chat template, where the tokenizer has one: what follows is the reply."""
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer(prompt)["input_ids"])
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


class _Deadline:
    """A stopping criterion of transformers: ends every row once the time is over."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    def __call__(self, ids: Tensor, scores: object, **_: object) -> Tensor:
        late = time.monotonic() >= self.deadline
        return torch.full((ids.shape[0],), late, dtype=torch.bool, device=ids.device)


def load_checkpoint(directory: Path, device: str, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer of a local directory; raises ModelMissing or GeneratorError, naming it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (directory / "config.json").is_file():
        raise ModelMissing(
            f"{directory} holds no config.json: expected the directory of a transformers checkpoint"
        )
    try:
        with without_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(str(directory), local_files_only=True, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise GeneratorError(f"{directory} cannot be loaded by transformers: {error}") from error
    try:
        return model.to(device).train(False), tokenizer
    except RuntimeError as error:
        if not wants_memory(error):
            raise
        raise no_room(error) from error
