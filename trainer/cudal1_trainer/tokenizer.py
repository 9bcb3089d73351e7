"""The bundled model's tokenizer: byte-level BPE over region texts and replies.

A piece never crosses a line or a digit, a digit is always one token (a size such as 101444 is copied digit
by digit), and a dtype (`f32`, `bf16`, ...) stays in one piece. Every text round-trips exactly: all 256 bytes
are in the alphabet. A training row reads

    <bos> prompt <sep> reply <eos>

and a sampler gives the model `<bos> prompt <sep>`. This module trains, saves, loads and lays out rows; it
does not build prompts (cudal1_compile.generate.prompt) or pairs (corpus.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from cudal1_fx_passes.program import DTYPES

PAD, BOS, SEP, EOS = "<pad>", "<bos>", "<sep>", "<eos>"
SPECIAL = (PAD, BOS, SEP, EOS)  # ids 0 to 3, in this order
PAD_ID, BOS_ID, SEP_ID, EOS_ID = range(4)

_SIZED = "|".join(sorted((d for d in DTYPES if d != "bool"), key=len, reverse=True))
_DTYPE = rf"\b(?:{_SIZED})\b"
_VALUE = r"\b(?:in|out|[a-z])(?=\d)"  # the letters of a value's or an axis' name: t of t12
# a dtype | a digit | a name's letters | a line break with its indentation | anything else up to one of those
_PIECE = rf"{_DTYPE}|\d|{_VALUE}|\n *|(?:(?!{_DTYPE}|{_VALUE})[^\d\n])+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Trains on an iterator of texts; the result holds at most `vocab_size` tokens, the four special included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=10,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer)


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    tokenizer.save_pretrained(str(directory))


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of a text, no special token added."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def encode_prompt(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """What a sampler feeds the model: <bos> prompt <sep>."""
    return [BOS_ID, *encode(tokenizer, prompt), SEP_ID]


def encode_reply(tokenizer: PreTrainedTokenizerFast, reply: str) -> list[int]:
    return [*encode(tokenizer, reply), EOS_ID]


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        sep_token=SEP,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
