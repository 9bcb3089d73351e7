"""The tokenizer: exact round trip, what is copied is one token, special tokens, reload through transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cudal1_compile.generate.tokens import SPECIAL_TOKENS
from cudal1_trainer.model.tokenizer import codec_of, load_tokenizer, save_tokenizer, train_tokenizer

TEXTS = [
    "region v1\ndims d0=101444 d1=77\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n",
    "## Code\n```cuda\n// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, out0)\n"
    "__global__ void k(const f32* in0, bf16* out0 DIMS) {\n    float t12 = ld(in0 + i) * 0.044715f;\n}\n```\n",
] * 20


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, 512)


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_round_trips(text: str) -> None:
    tokenizer = _shared()
    if any(s in text for s in SPECIAL_TOKENS):
        return
    text = text.encode("utf-8", "ignore").decode()
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", TEXTS[:2])
def test_corpus_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_digits_of_a_size_are_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    pieces = tokenizer.convert_ids_to_tokens(encode(tokenizer, "d0=101444"))
    assert pieces[-6:] == list("101444")


@pytest.mark.parametrize("text", ["t12", "f32", "0.0"])
def test_what_is_copied_is_one_token(text: str) -> None:
    tokenizer = train_tokenizer([f"cast({text}, in0) = {text};"] * 20, 512)
    pieces = tokenizer.convert_ids_to_tokens(encode(tokenizer, f"cast({text}, in0)"))
    assert text.lstrip("t") in pieces


def test_a_dtype_is_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    pieces = tokenizer.convert_ids_to_tokens(encode(tokenizer, "in0 f32[d0,d1]"))
    assert "f32" in pieces


def test_special_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    codec = codec_of(tokenizer)
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert codec.encode_prompt("x")[0] == tokenizer.bos_token_id
    assert codec.encode_prompt("x")[-1] == tokenizer.sep_token_id
    assert codec.encode_reply("x")[-1] == tokenizer.eos_token_id


def test_reloads_through_transformers(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    for again in (load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))):
        assert again.encode(TEXTS[1], add_special_tokens=False) == encode(tokenizer, TEXTS[1])
        assert again.decode(encode(tokenizer, TEXTS[1])) == TEXTS[1]
        assert again.eos_token_id == 3


_CACHE: list[PreTrainedTokenizerFast] = []


def _shared() -> PreTrainedTokenizerFast:
    if not _CACHE:
        _CACHE.append(train_tokenizer(TEXTS, 512))
    return _CACHE[0]


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return codec_of(tokenizer).encode_reply(text)[:-1]
