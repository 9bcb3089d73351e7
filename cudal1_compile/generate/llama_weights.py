"""The weights of a small Llama, laid out for the sampler: fused projections, one dtype, one device.

    config.json, or a transformers model's   -> LlamaSettings
    tensors by transformers' names           -> LlamaWeights

Only the plain Llama configuration is taken (SiLU, no biases, default rotary embedding); anything else is
refused with its name, because the sampler would silently compute something different.

Legend: D hidden, V vocabulary, H query heads, K key/value heads, E size of a head, F MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cudal1_compile.generate.linear import Linear


@dataclass(frozen=True)
class LlamaSettings:
    """What config.json says of a plain llama."""

    vocab: int  # V
    hidden: int  # D
    mlp: int  # F
    layers: int
    heads: int  # H
    kv_heads: int  # K
    head_dim: int  # E
    eps: float
    theta: float  # of the rotary embedding
    max_positions: int
    is_tied: bool  # the head is the embedding
    eos_ids: tuple[int, ...]


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
    settings = read_settings(model.config.to_dict())
    return arrange(settings, model.state_dict(), device or model.device, dtype or model.dtype)


def read_settings(config: Mapping[str, Any]) -> LlamaSettings:
    """From config.json's fields, of transformers 4 or 5; raises ValueError for what is no plain llama."""
    _check_plain(config)
    hidden, heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
    eos = config.get("eos_token_id", 2)
    return LlamaSettings(
        _count(config, "vocab_size"),
        hidden,
        _count(config, "intermediate_size"),
        _count(config, "num_hidden_layers"),
        heads,
        _count(config, "num_key_value_heads", heads),
        _count(config, "head_dim", hidden // heads),
        _number(config, "rms_norm_eps", 1e-6),
        _number({**config, **_rope(config)}, "rope_theta", 10_000.0),
        _count(config, "max_position_embeddings", 2048),
        bool(config.get("tie_word_embeddings", False)),
        tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )


def check_tensors(settings: LlamaSettings, tensors: Mapping[str, Tensor]) -> None:
    """Raises ValueError where one is missing, or is not what the settings say."""
    for name, shape in _shapes(settings).items():
        tensor = tensors.get(name)
        if tensor is None:
            raise ValueError(f"there is no tensor {name}: config.json asks for one of {list(shape)}")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"tensor {name} is {list(tensor.shape)}: config.json asks for {list(shape)}")


def arrange(
    settings: LlamaSettings, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> LlamaWeights:
    """Copies the tensors. Raises ValueError as `check_tensors`."""
    check_tensors(settings, tensors)

    def place(*names: str) -> Tensor:
        return torch.cat([tensors[n].detach() for n in names]).to(device=device, dtype=dtype).contiguous()

    def layer(number: int) -> LayerWeights:
        block = f"model.layers.{number}."
        q, k, v, o = (f"{block}self_attn.{x}_proj.weight" for x in "qkvo")
        gate, up, down = (f"{block}mlp.{x}_proj.weight" for x in ("gate", "up", "down"))
        return LayerWeights(
            place(f"{block}input_layernorm.weight"),
            Linear(place(q, k, v)),
            Linear(place(o)),
            place(f"{block}post_attention_layernorm.weight"),
            Linear(place(gate, up)),
            Linear(place(down)),
        )

    embed = "model.embed_tokens.weight"
    return LlamaWeights(
        place(embed),
        tuple(layer(i) for i in range(settings.layers)),
        place("model.norm.weight"),
        Linear(place(embed if settings.is_tied else "lm_head.weight")),
        _inverse_frequency(settings, device),
        settings.heads,
        settings.kv_heads,
        settings.head_dim,
        settings.eps,
        settings.max_positions,
        settings.eos_ids,
    )


def _shapes(s: LlamaSettings) -> dict[str, tuple[int, ...]]:
    """Of every tensor that there must be, by transformers' name."""
    own = {
        "input_layernorm": (s.hidden,),
        "self_attn.q_proj": (s.heads * s.head_dim, s.hidden),
        "self_attn.k_proj": (s.kv_heads * s.head_dim, s.hidden),
        "self_attn.v_proj": (s.kv_heads * s.head_dim, s.hidden),
        "self_attn.o_proj": (s.hidden, s.heads * s.head_dim),
        "post_attention_layernorm": (s.hidden,),
        "mlp.gate_proj": (s.mlp, s.hidden),
        "mlp.up_proj": (s.mlp, s.hidden),
        "mlp.down_proj": (s.hidden, s.mlp),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (s.vocab, s.hidden)}
    found |= {f"model.layers.{i}.{name}.weight": shape for i in range(s.layers) for name, shape in own.items()}
    head = {} if s.is_tied else {"lm_head.weight": (s.vocab, s.hidden)}
    return {**found, "model.norm.weight": (s.hidden,), **head}


def _inverse_frequency(settings: LlamaSettings, device: torch.device) -> Tensor:
    steps = torch.arange(0, settings.head_dim, 2, dtype=torch.float32, device="cpu")
    theta = torch.tensor(settings.theta, dtype=torch.float32, device="cpu")
    return torch.pow(theta, steps / settings.head_dim).reciprocal().to(device)


def _check_plain(config: Mapping[str, Any]) -> None:
    if config.get("model_type") != "llama":
        raise ValueError(f"model type {config.get('model_type')!r}: the fast sampler knows llama only")
    activation, rope = config.get("hidden_act", "silu"), _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    wrong = [
        text
        for text, bad in (
            (f"hidden_act={activation!r}", activation != "silu"),
            ("attention_bias", config.get("attention_bias")),
            ("mlp_bias", config.get("mlp_bias")),
            (f"rope_type={kind!r}", kind != "default"),
        )
        if bad
    ]
    if wrong:
        raise ValueError(f"llama with {', '.join(wrong)}: the fast sampler computes the plain configuration only")


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 writes rope_parameters, 4 rope_theta and rope_scaling."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, Mapping):
        raise ValueError(f"rope_parameters={found!r}: expected an object of settings")
    return found


def _count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r}: expected a whole number from 1 on")
    return value


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if type(value) not in (int, float) or not value > 0:
        raise ValueError(f"{name}={value!r}: expected a number above 0")
    return float(value)
