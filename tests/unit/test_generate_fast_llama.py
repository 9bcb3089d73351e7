"""The fast sampler against transformers: equal tokens, equal distributions, no dependence on the batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cudal1_compile.generate import fast_llama
from cudal1_compile.generate.fast_llama import FastLlama, group_width
from cudal1_compile.generate.llama_weights import take_weights

Prompts = list[list[int]]


def make_model(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "initializer_range": 0.5,  # large enough that the next token depends on the whole context
        "bos_token_id": 1,
        "eos_token_id": 3,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }
    return LlamaForCausalLM(LlamaConfig(**settings | changes)).train(False)


def make_prompts(lengths: list[int], seed: int = 1, vocab: int = 97) -> Prompts:
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocab, (n,), generator=g).tolist() for n in lengths]


def reference(model: Any, prompt: list[int], max_new: int) -> list[int]:
    with torch.no_grad():
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new, do_sample=False)
    return [int(t) for t in out[0, len(prompt) :]]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_equals_transformers_token_for_token(seed: int) -> None:
    model = make_model(seed)
    prompts = make_prompts([1, 5, 17, 40, 17], seed)
    prompts.append(prompts[1])
    got = FastLlama(FastLlama.from_model(model).weights, stage_steps=7).sample(prompts, 60, temperature=0)
    expected = [reference(model, p, 60) for p in prompts]
    assert got == expected
    assert any(e[-1] == 3 for e in expected) or seed != 0, "seed 0 is meant to hold rows that end early"
    assert len({tuple(e) for e in expected}) == 5


def test_greedy_equals_transformers_for_the_shipped_configuration() -> None:
    model = make_model(
        5,
        vocab_size=1024,
        hidden_size=384,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=1024,
        initializer_range=0.06,
    )
    prompts = make_prompts([30, 75], 3, 1024)
    assert FastLlama.from_model(model).sample(prompts, 40, temperature=0) == [
        reference(model, p, 40) for p in prompts
    ]


def test_untied_head_and_other_theta() -> None:
    model = make_model(7, tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    prompts = make_prompts([9, 21])
    assert FastLlama.from_model(model).sample(prompts, 30, 0.0) == [reference(model, p, 30) for p in prompts]


def test_sampled_frequencies_are_the_softmax() -> None:
    model = make_model(2, initializer_range=0.2)
    prompt = make_prompts([12])[0]
    n, temperature = 4000, 0.7
    got = Counter(s[0] for s in FastLlama.from_model(model).sample([prompt] * n, 1, temperature, seed=11))
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([prompt])).logits[0, -1] / temperature, -1)
    for token in expected.topk(8).indices.tolist():
        p = float(expected[token])
        assert abs(got[token] - n * p) < 5 * (n * p * (1 - p)) ** 0.5 + 1, (token, got[token], n * p)


def test_second_token_is_conditioned_on_the_sampled_first() -> None:
    model = make_model(2, initializer_range=0.2)
    prompt = make_prompts([12])[0]
    rows = FastLlama.from_model(model).sample([prompt] * 6000, 2, 0.8, seed=5)
    first = Counter(r[0] for r in rows).most_common(1)[0][0]
    then = Counter(r[1] for r in rows if r[0] == first and len(r) > 1)
    total = sum(then.values())
    with torch.no_grad():
        expected = torch.softmax(model(torch.tensor([[*prompt, first]])).logits[0, -1] / 0.8, -1)
    for token in expected.topk(4).indices.tolist():
        p = float(expected[token])
        assert abs(then[token] - total * p) < 5 * (total * p * (1 - p)) ** 0.5 + 1


def test_seed_decides_and_temperature_holds_for_its_row() -> None:
    model = make_model(1)
    sampler = FastLlama.from_model(model)
    prompts = make_prompts([8, 8, 20])
    a = sampler.sample(prompts, 40, 1.0, seed=4)
    assert a == sampler.sample(prompts, 40, 1.0, seed=4)
    assert a != sampler.sample(prompts, 40, 1.0, seed=5)
    mixed = sampler.sample([prompts[0]] * 3, 40, [0.0, 1.0, 0.0], seed=9)
    assert mixed[0] == mixed[2] == reference(model, prompts[0], 40)
    assert mixed[1] != mixed[0]


def test_finished_rows_leave_and_greedy_ones_go_on() -> None:
    model = make_model(0)
    prompts = make_prompts([4, 30, 11, 11, 3]) * 6
    whole = FastLlama(FastLlama.from_model(model).weights, stage_steps=5, max_rows=9).sample(prompts, 80, 0.0)
    assert whole == [reference(model, p, 80) for p in prompts[:5]] * 6


def test_sampled_rows_keep_their_own_history_when_others_leave() -> None:
    """Every token must be likely after its own row's tokens: a row that took another's cache would not be."""
    model = make_model(3, initializer_range=0.6)
    prompts = [p for p in make_prompts([6, 20]) for _ in range(16)]
    temperature = 0.6
    rows = FastLlama(FastLlama.from_model(model).weights, stage_steps=4).sample(prompts, 70, temperature, seed=2)
    lengths = {len(r) for r in rows}
    assert len(lengths) > 5, "rows are meant to end at different steps"
    worst = 0.0
    for prompt, row in zip(prompts, rows, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + row])).logits[0, len(prompt) - 1 : -1] / temperature
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(row)), torch.tensor(row)]
        worst = min(worst, float(chosen.min()))
    assert worst > -14.0  # exp(-14): about one such token in a million draws


@pytest.mark.parametrize("heads", [2, 6])
def test_likelihoods_are_those_of_transformers(heads: int) -> None:
    model = make_model(heads, num_key_value_heads=heads)
    sampler = FastLlama.from_model(model)
    for seed, prompt in enumerate(make_prompts([2, 17, 60])):
        shared = make_prompts([9], seed + 50)[0]
        replies = [shared, shared[:4], *make_prompts([1, 5, 30], seed + 3)]
        replies += [[*shared, *r] for r in make_prompts([3] * fast_llama.SCORED, seed + 9)]
        got = sampler.score(prompt, replies)
        assert len(got) == len(replies) > fast_llama.SCORED
        for reply, found in zip(replies, got, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits, -1)[torch.arange(len(reply)), torch.tensor(reply)].sum()
            assert found == pytest.approx(float(expected), rel=1e-5, abs=1e-4)


def test_no_likelihood_comes_after_the_deadline_or_of_nothing() -> None:
    sampler = FastLlama.from_model(make_model())
    assert sampler.score([5, 6], [[7], [8]], deadline=time.monotonic()) == []
    assert sampler.score([5], []) == []
    with pytest.raises(ValueError, match="less than two tokens"):
        sampler.score([5], [[7]])
    with pytest.raises(ValueError, match="512"):
        sampler.score([5] * 500, [[7], [8] * 100])


def test_deadline_ends_a_run_and_marks_what_is_unfinished() -> None:
    sampler = FastLlama(FastLlama.from_model(make_model(4, eos_token_id=96)).weights, stage_steps=8)
    prompts = make_prompts([10, 12])
    ended = False
    for seconds in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6):  # a busy machine has no token after the first
        start = time.monotonic()
        got = sampler.sample_until(prompts, 500, 1.0, deadline=start + seconds)
        assert time.monotonic() - start < seconds + 1.3
        ended = ended or any(not s.finished and 0 < len(s.ids) < 500 for s in got)
    assert ended
    late = sampler.sample_until(prompts, 500, 1.0, deadline=start)
    assert [(s.ids, s.finished) for s in late] == [([], False)] * 2


def test_bad_arguments_are_refused_with_their_numbers() -> None:
    sampler = FastLlama.from_model(make_model())
    with pytest.raises(ValueError, match="512"):
        sampler.sample([[5] * 500], 100)
    with pytest.raises(ValueError, match="2 temperatures for 1"):
        sampler.sample([[5]], 4, [1.0, 1.0])
    with pytest.raises(ValueError, match="empty"):
        sampler.sample([[]], 4)
    with pytest.raises(ValueError, match="hidden_act='gelu'"):
        FastLlama.from_model(make_model(hidden_act="gelu"))
    assert sampler.sample([], 4) == []


def test_group_width_keeps_fillers_few() -> None:
    assert group_width([16, 16, 16]) == 16
    assert group_width([64] + [1] * 500) == 1
    assert group_width([8, 7, 8, 8]) == 8
    assert group_width([5]) == 5


def test_each_capture_takes_the_memory_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double of CUDA's graphs: what is captured does not run, and runs at each replay."""
    step, pools = fast_llama.decode_step, []
    capturing: list[Graph] = []

    class Graph:
        def capture_begin(self, pool: object, capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            pools.append(pool)
            capturing.append(self)

        def capture_end(self) -> None:
            capturing.clear()

        def pool(self) -> Graph:
            return self

        def replay(self) -> None:
            step(*self.captured)

    def run_or_capture(*args: Any) -> None:
        if capturing:
            capturing[0].captured = args
        else:
            step(*args)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(fast_llama, "decode_step", run_or_capture)
    plain = FastLlama(FastLlama.from_model(make_model(1)).weights, stage_steps=7)
    captured = FastLlama(plain.weights, stage_steps=7)
    captured.use_graphs = True
    prompts = make_prompts([8, 8, 20])
    for seed in (4, 5):
        assert captured.sample(prompts, 30, 1.0, seed) == plain.sample(prompts, 30, 1.0, seed)
    assert len(pools) >= 8 and pools[0] is None and len(set(map(id, pools))) == len(pools)
    assert captured.graph is not None and captured.graph not in pools


def test_it_gives_way_between_two_steps() -> None:
    asked: list[str] = []

    class Shared:
        @contextmanager
        def inside(self) -> Iterator[None]:
            asked.append("in")
            yield
            asked.append("out")

        def give_way(self) -> None:
            asked.append("way")

    sampler = FastLlama(take_weights(make_model()), shared=Shared())
    (reply,) = sampler.sample(make_prompts([5]), 7, temperature=0.0)
    assert asked == ["in", *["way"] * (1 + len(reply)), "out"], "behind the prompts, and each token"
    asked.clear()
    sampler.score([5, 6], make_prompts([4] * (fast_llama.SCORED + 1)))
    assert asked == ["in", "way", "way", "out"], "behind the prompt, and a tree"
