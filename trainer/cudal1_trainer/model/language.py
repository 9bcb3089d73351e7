"""How prompts and replies become ids, and back: the bundled model's own codec, or a foreign tokenizer's.

A foreign model is asked as in use (transformers_local.py): through its chat template where it has one, with the
instruction block where it has room. Nothing of transformers is imported before it is needed: processes that make
rows for an own bundle do without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cudal1_compile.generate.factory import is_own
from cudal1_compile.generate.instructions import instruction_block
from cudal1_compile.generate.prompt import INSTRUCTED_TOKENS
from cudal1_compile.generate.tokens import load_codec
from cudal1_compile.generate.transformers_local import MAX_NEW_TOKENS, encode_turn
from cudal1_trainer.model.tokenizer import load_tokenizer


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
    """`preface`: what a training pair's prompt lacks of a prompt in use. `tokenizer`: transformers' own, which is
    saved beside a model; None where only rows of ids are made."""

    codec: Coder
    preface: str = ""
    tokenizer: Any = None


def load_language(directory: Path) -> Language:
    """Without the weights. Raises ValueError for a tokenizer without a token that ends a text."""
    if is_own(directory):
        codec = load_codec(str(directory / "tokenizer.json"))
        return Language(codec, tokenizer=load_tokenizer(directory))
    from transformers import AutoConfig, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer in {directory} names no eos_token: nothing could end a reply")
    positions = AutoConfig.from_pretrained(str(directory), local_files_only=True).max_position_embeddings
    room = positions - min(MAX_NEW_TOKENS, positions // 2)
    preface = instruction_block() if room >= INSTRUCTED_TOKENS else ""
    return Language(ForeignCodec(tokenizer), preface, tokenizer)
