"""How a text becomes the token sequence of the bundled model, in training and in use.

    <bos> prompt <sep> reply <eos>

The trainer writes its pairs, and every sampler its prompts, through these functions; a model that was
trained otherwise would be asked in a language it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from cudal1_compile.generate.errors import GeneratorError

PAD, BOS, SEP, EOS = "<pad>", "<bos>", "<sep>", "<eos>"
SPECIAL_TOKENS = (PAD, BOS, SEP, EOS)  # ids 0, 1, 2, 3


@dataclass(frozen=True)
class Codec:
    """A tokenizer with the four special tokens, turned into the calls that are needed."""

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        got = tuple(self.tokenizer.token_to_id(t) for t in SPECIAL_TOKENS)
        if got != (0, 1, 2, 3):
            raise ValueError(f"tokenizer: ids of {', '.join(SPECIAL_TOKENS)} are {got}, expected 0, 1, 2, 3")

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def encode_prompt(self, prompt: str) -> list[int]:
        """Ends in <sep>: what follows is the reply."""
        return [1, *self._ids(prompt), 2]

    def encode_reply(self, reply: str) -> list[int]:
        return [*self._ids(reply), 3]

    def decode(self, ids: Sequence[int]) -> str:
        """Up to <eos>; special tokens leave no text."""
        kept = ids[: ids.index(3)] if 3 in ids else ids
        return str(self.tokenizer.decode(list(kept), skip_special_tokens=True))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def load_codec(path: str) -> Codec:
    """Reads a tokenizer.json. Raises GeneratorError where it is damaged."""
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # tokenizers raises no other
        raise GeneratorError(f"the tokenizer {path} cannot be read: {error}. Put back a whole one") from error
    return Codec(tokenizer)
