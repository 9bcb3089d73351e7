"""The weights of a small Llama, laid out for the sampler: fused projections, one dtype, one device.

Only the plain Llama configuration is taken (SiLU, no biases, default rotary embedding); anything else is
refused with its name, because the sampler would silently compute something different.

Legend: D hidden, V vocabulary, H query heads, K key/value heads, E size of a head, F MLP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cudal1_compile.generate.linear import Linear


@dataclass(frozen=True)
class LayerWeights:
    input_norm_D: Tensor
    qkv: Linear  # query, key and value rows stacked: D -> (H + 2 K) * E
    out: Linear  # H * E -> D
    mlp_norm_D: Tensor
    gate_up: Linear  # D -> 2 F
    down: Linear  # F -> D


@dataclass(frozen=True)
class LlamaWeights:
    embed_VD: Tensor
    layers: tuple[LayerWeights, ...]
    norm_D: Tensor
    head: Linear  # D -> V
    inverse_frequency_E2: Tensor  # float32, of the rotary embedding
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    eos_ids: tuple[int, ...]

    @property
    def device(self) -> torch.device:
        return self.embed_VD.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_VD.dtype


def take_weights(model: Any, device: torch.device | None = None, dtype: torch.dtype | None = None) -> LlamaWeights:
    """Copies the weights of a transformers LlamaForCausalLM; raises ValueError for another architecture."""
    config = model.config
    _check_config(config)
    device = device or model.device
    dtype = dtype or model.dtype

    def place(*parts: Tensor) -> Tensor:
        return torch.cat([p.detach() for p in parts]).to(device=device, dtype=dtype).contiguous()

    layers = []
    for block in model.model.layers:
        attention, mlp = block.self_attn, block.mlp
        layers.append(
            LayerWeights(
                place(block.input_layernorm.weight),
                Linear(place(attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)),
                Linear(place(attention.o_proj.weight)),
                place(block.post_attention_layernorm.weight),
                Linear(place(mlp.gate_proj.weight, mlp.up_proj.weight)),
                Linear(place(mlp.down_proj.weight)),
            )
        )
    eos = config.eos_token_id
    return LlamaWeights(
        place(model.model.embed_tokens.weight),
        tuple(layers),
        place(model.model.norm.weight),
        Linear(place(model.lm_head.weight)),
        _inverse_frequency(config, device),
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.rms_norm_eps,
        config.max_position_embeddings,
        tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )


def _inverse_frequency(config: Any, device: torch.device) -> Tensor:
    theta = float(config.rope_parameters["rope_theta"])
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    frequency = torch.pow(torch.tensor(theta), steps / config.head_dim)
    return frequency.reciprocal().to(device)


def _check_config(config: Any) -> None:
    if config.model_type != "llama":
        raise ValueError(f"model type {config.model_type!r}: the fast sampler knows llama only")
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    wrong = [
        text
        for text, bad in (
            (f"hidden_act={config.hidden_act!r}", config.hidden_act != "silu"),
            ("attention_bias", config.attention_bias),
            ("mlp_bias", config.mlp_bias),
            (f"rope_type={rope!r}", rope != "default"),
        )
        if bad
    ]
    if wrong:
        raise ValueError(f"llama with {', '.join(wrong)}: the fast sampler computes the plain configuration only")
