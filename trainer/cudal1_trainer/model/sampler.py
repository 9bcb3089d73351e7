"""The bundled model's fast sampler on the weights of a model in training.

    sampler.synchronise(lm)        copies the weights, then asserts that the checksums are equal
    sampler.sample(prompts, ...)   ids of replies

The checksum adds up the bits of every weight in the sampler's dtype, layer by layer. It does not depend on the
order within a fused matrix, and it changes with every weight: a sampler one step behind is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaForCausalLM

from cudal1_compile.generate.fast_llama import FastLlama
from cudal1_compile.generate.linear import Linear
from cudal1_compile.generate.llama_weights import LlamaWeights, take_weights

FOREIGN_ROWS = 64
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


class WeightsDiffer(RuntimeError):
    """The sampler does not hold the trainer's weights."""


class Sampling(Protocol):
    """What writes the replies of stages 2 and 3."""

    def synchronise(self, lm: Any) -> None:
        """From now on with these weights. Raises WeightsDiffer."""

    def sample(
        self, prompts: Sequence[Sequence[int]], max_new: int, temperature: float, seed: int
    ) -> list[list[int]]: ...


class ForeignSampler:
    """transformers' own generate on the model in training itself: there are no second weights to be late."""

    def __init__(self, eos: int) -> None:
        self.eos = eos
        self._lm: Any = None

    def synchronise(self, lm: Any) -> None:
        self._lm = lm

    def sample(
        self, prompts: Sequence[Sequence[int]], max_new: int, temperature: float, seed: int
    ) -> list[list[int]]:
        """One reply a prompt, up to its end; at most FOREIGN_ROWS together. The random state stays as it was."""
        lm, kept = self._lm, self._lm.generation_config
        # a checkpoint's own settings (top_k, penalties) would sample from another policy than the one in training
        lm.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            temperature=temperature,
            top_k=0,
            max_new_tokens=max_new,
            eos_token_id=self.eos,
            pad_token_id=self.eos,
        )
        try:
            with torch.random.fork_rng(devices=[lm.device] if lm.device.type == "cuda" else []):
                torch.manual_seed(seed)
                groups = [prompts[i : i + FOREIGN_ROWS] for i in range(0, len(prompts), FOREIGN_ROWS)]
                return [reply for group in groups for reply in self._sample(group)]
        finally:
            lm.generation_config = kept

    def _sample(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[self.eos] * (width - len(p)) + list(p) for p in prompts], device=self._lm.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self._lm.device)
        with torch.inference_mode():
            replies = self._lm.generate(ids, attention_mask=mask)[:, width:].tolist()
        return [r[: r.index(self.eos) + 1] if self.eos in r else r for r in replies]


class Sampler:
    """On one device; float32 on a CPU, so that both compute the same, bfloat16 on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._fast: FastLlama | None = None

    def synchronise(self, lm: LlamaForCausalLM) -> None:
        """Raises WeightsDiffer."""
        self._fast = None  # frees the old weights first
        self._fast = FastLlama(take_weights(lm, self.device, self.dtype))
        self.check(lm)

    def check(self, lm: LlamaForCausalLM) -> None:
        assert self._fast is not None, "synchronise comes first"
        mine, theirs = checksum_of_weights(self._fast.weights), checksum_of_model(lm, self.dtype)
        if not torch.equal(mine, theirs.to(mine.device)):
            layer = int((mine != theirs.to(mine.device)).nonzero()[0])
            raise WeightsDiffer(
                f"sampler and trainer differ in part {layer} of {len(mine)} (layers, then the rest)"
            )

    def sample(
        self, prompts: Sequence[Sequence[int]], max_new: int, temperature: float, seed: int
    ) -> list[list[int]]:
        """One reply a prompt; equal prompts share their prefix."""
        assert self._fast is not None, "synchronise comes first"
        replies = self._fast.sample(prompts, max_new, temperature, seed)
        self._fast.graph = None  # a training step may need its memory
        return replies


def checksum_of_weights(weights: LlamaWeights) -> Tensor:
    parts: list[list[Tensor]] = []
    for layer in weights.layers:
        products = [_plain(p) for p in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        parts.append([layer.input_norm_D, layer.mlp_norm_D, *products])
    parts.append([weights.embed_VD, weights.norm_D, _plain(weights.head)])
    return torch.stack([_bits(p) for p in parts])


def checksum_of_model(lm: LlamaForCausalLM, dtype: torch.dtype) -> Tensor:
    parts = [[p.detach().to(dtype) for p in layer.parameters()] for layer in lm.model.layers]
    rest = [lm.model.embed_tokens.weight, lm.model.norm.weight, lm.lm_head.weight]
    parts.append([p.detach().to(dtype) for p in rest])
    return torch.stack([_bits(p) for p in parts])


def _plain(linear: Linear) -> Tensor:
    if linear.weight_ND is not None:
        return linear.weight_ND
    assert linear.packed is not None
    return linear.packed.to_dense()


def _bits(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack([t.contiguous().view(_BITS[t.dtype]).sum(dtype=torch.int64) for t in tensors]).sum()
