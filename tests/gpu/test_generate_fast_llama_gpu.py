"""The fast sampler on a GPU: captured stages give what transformers gives, in threads as well."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cudal1_compile.generate.fast_llama import FastLlama

pytestmark = pytest.mark.gpu


def make_model(seed: int) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=384,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=1024,
        max_position_embeddings=1024,
        initializer_range=0.06,
        bos_token_id=1,
        eos_token_id=3,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).cuda().train(False)


def make_prompts(lengths: list[int]) -> list[list[int]]:
    g = torch.Generator().manual_seed(1)
    return [torch.randint(4, 1024, (n,), generator=g).tolist() for n in lengths]


def reference(model: Any, prompt: list[int], max_new: int) -> list[int]:
    ids = torch.tensor([prompt], device="cuda")
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new, do_sample=False)
    return [int(t) for t in out[0, len(prompt) :]]


def test_greedy_equals_transformers_over_stage_borders() -> None:
    model = make_model(5)
    prompts = make_prompts([30, 75, 1, 200])
    sampler = FastLlama(FastLlama.from_model(model).weights, stage_steps=16)
    assert sampler.use_graphs
    assert sampler.sample(prompts * 2, 100, temperature=0) == [reference(model, p, 100) for p in prompts] * 2


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)])
def test_likelihoods_are_those_of_a_cpu(dtype: torch.dtype, most: float) -> None:
    """most: that the logarithm differs by, a token."""
    model = make_model(9)
    prompt, shared, *rest = make_prompts([500, 11, *range(1, 71)])
    replies = [[*shared, *ids] for ids in rest]
    found = FastLlama.from_model(model, dtype=dtype).score(prompt, replies)
    expected = FastLlama.from_model(model, "cpu", torch.float32).score(prompt, replies)
    for ids, a, b in zip(replies, found, expected, strict=True):
        assert abs(a - b) < most * len(ids)


def test_graphs_change_nothing_and_the_seed_decides() -> None:
    prompts = [p for p in make_prompts([40, 90]) for _ in range(16)]
    weights = FastLlama.from_model(make_model(6), dtype=torch.bfloat16).weights
    captured = FastLlama(weights, stage_steps=32)
    plain = FastLlama(weights, stage_steps=32)
    plain.use_graphs = False
    found = captured.sample(prompts, 90, 1.0, seed=3)
    assert found == plain.sample(prompts, 90, 1.0, seed=3)
    assert found != captured.sample(prompts, 90, 1.0, seed=4)


def test_capture_works_while_another_thread_uses_the_device() -> None:
    sampler = FastLlama.from_model(make_model(7), dtype=torch.bfloat16)
    prompts = make_prompts([20] * 4)
    expected = sampler.sample(prompts, 200, 0.0)
    stop = threading.Event()

    def work() -> None:
        x = torch.randn(256, 256, device="cuda")
        while not stop.is_set():
            x = (x @ x).tanh() + torch.empty(1 << 20, device="cuda").sum()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert sampler.sample(prompts, 200, 0.0) == expected
    finally:
        stop.set()
        thread.join(10)


def test_later_stages_take_the_memory_of_earlier_ones() -> None:
    """Each stage's graph has buffers of its own; without its predecessor's pool they would pile up."""
    sampler = FastLlama(FastLlama.from_model(make_model(8), dtype=torch.bfloat16).weights, stage_steps=8)
    prompts = make_prompts([200]) * 256
    sampler.sample(prompts, 64, 1.0)
    before = torch.cuda.memory_reserved()
    for seed in range(4):
        sampler.sample(prompts, 64, 1.0, seed)
    assert torch.cuda.memory_reserved() - before <= 64 << 20
