"""The bundled model's tokenizer: byte-level BPE over region texts and replies.

The index of a name is one token (`t12` is `t` and `12`), as is a dtype with the pointer it makes. Any other
number goes digit by digit: so a size such as 101444 is copied exactly, and a block size as everything else is
copied (as tokens of their own, a small model in few steps did not learn to copy block sizes: 0.3 of its replies
were right, against 0.7). No piece crosses a line. Every text round-trips: all 256 bytes are in the alphabet. This
module trains, saves and loads; how a prompt and a reply become one row of ids is told once for training and use,
in cudal1_compile.generate.tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from cudal1_compile.generate.tokens import BOS, EOS, PAD, SEP, SPECIAL_TOKENS, Codec
from cudal1_fx_passes.program.ir import DTYPES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SIZED = "|".join(sorted((d for d in DTYPES if d != "bool"), key=len, reverse=True))
_COPIED = "|".join(
    (
        rf"\b(?:{_SIZED})\b(?:\* __restrict__ [a-z]+)?",  # a dtype, or the parameter it makes
        r"\b[01]\.0(?!\d)",
        r"(?<=[a-z])\d{1,2}(?!\d)",  # the index of a name
        r"\d",
    )
)
# one of those | from a line break to the next of those | anything else up to the next of those
_PIECE = rf"{_COPIED}|\n[^\d\n]*?(?={_COPIED}|$)|(?:(?!{_COPIED})[^\d\n])+"


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
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=3,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _wrap(tokenizer)


def tokenizer_file(directory: Path) -> Path:
    """Raises ValueError where there is none."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"no tokenizer in {directory}: `cudal1 train --steps tokenizer --data ...` writes one")
    return path


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """Raises ValueError where there is none."""
    from transformers import PreTrainedTokenizerFast

    tokenizer_file(directory)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def codec_of(tokenizer: PreTrainedTokenizerFast) -> Codec:
    """The calls that lay out prompts and replies as rows of ids."""
    backend = tokenizer.backend_tokenizer
    assert isinstance(backend, Tokenizer)
    return Codec(backend)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    tokenizer.save_pretrained(str(directory))


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        sep_token=SEP,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
