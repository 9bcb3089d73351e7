"""Small versions of published architectures from transformers, random in width, depth, dtype and attention.

    make_published(seed) -> module, inputs

What a partitioner cuts out of them is what users' models hold: masks built from positions, shifted and padded
labels, rotary of several kinds, norms of many spellings, upcasts in odd places. Weights are random. The
architectures of the benchmarks (GPT-2, BERT, Llama) are not among them; held-out structures are skipped anyway.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)

# what every token model is given; keys that a configuration does not know are harmless
_TOKENS: dict[str, Any] = {
    "vocab_size": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "decoder_start_token_id": 0,
}
DECODERS = (
    "OPT GPTNeoX GPTJ Bloom Falcon Mistral Qwen2 Qwen3 Gemma Gemma2 Phi Phi3 StableLm Olmo Olmo2 Cohere Granite "
    "Starcoder2 Persimmon CodeGen BioGpt XGLM Nemotron Glm Helium Mpt GPTBigCode Gemma3 SmolLM3 Ernie4_5 Exaone4"
)
ENCODERS = (
    "Roberta DistilBert Albert Electra MPNet RoFormer ModernBert DebertaV2 Camembert XLMRoberta MobileBert "
    "Ernie ConvBert SqueezeBert LayoutLM MegatronBert RemBert"
)
PAIRS = "T5 Bart Pegasus Marian MBart Blenderbot PLBart M2M100 UMT5"
PICTURES = (
    "ViT DeiT Beit ConvNext ConvNextV2 ResNet RegNet MobileNetV1 MobileNetV2 Swin Swinv2 PoolFormer Dinov2 "
    "EfficientNet Segformer Cvt Pvt Levit Bit FocalNet MobileViT Van Dinov2WithRegisters IJepa TextNet HGNetV2"
)
_ALL = (("decoder", DECODERS), ("encoder", ENCODERS), ("pair", PAIRS), ("picture", PICTURES))
KINDS = [(kind, name) for kind, names in _ALL for name in names.split()]


class Published(nn.Module):
    """Calls the model with the inputs' names; gives its loss, or a loss of its first result."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], both: bool) -> None:
        super().__init__()
        self.model, self.names, self.both = model, names, both

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        found = self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)
        if not self.training:
            first: Tensor = found[0]
            return first
        loss = found[0] if found[0].ndim == 0 else found[0].float().square().mean()
        return (loss, found[1]) if self.both and loss is found[0] and isinstance(found[1], Tensor) else loss


def make_published(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module and its inputs, on the CPU; architectures come by turns. Raises what transformers raises."""
    rng = random.Random(f"published {seed}")
    torch.manual_seed(seed)
    kind, name = KINDS[seed % len(KINDS)]
    make = _picture if kind == "picture" else _tokens
    model, inputs = make(kind, name, rng)
    model = model.to(rng.choice(DTYPES))
    dtype = next(model.parameters()).dtype
    cast = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    return Published(model, tuple(cast), rng.random() < 0.5), tuple(cast.values())


def _build(config: Any, suffixes: tuple[str, ...], name: str, rng: random.Random) -> nn.Module:
    """The first of the class's heads that this version of transformers has."""
    heads = [s for s in suffixes if hasattr(transformers, name + s)]
    if not heads:
        raise ValueError(f"transformers {transformers.__version__} has none of {name} with {', '.join(suffixes)}")
    cls = getattr(transformers, name + rng.choice(heads))
    fused = rng.random() < 0.5 and getattr(cls, "_supports_sdpa", False)
    config._attn_implementation = "sdpa" if fused else "eager"
    model: nn.Module = cls(config)
    return model


def _config(name: str, values: Mapping[str, Any]) -> Any:
    suffix = "TextConfig" if name == "Gemma3" else "Config"
    cls = getattr(transformers, name + suffix)
    if name == "Falcon":  # computes it, and refuses to be told
        values = {k: v for k, v in values.items() if k != "head_dim"}
    config = cls(**values)
    config.use_cache = False
    return config


def _tokens(kind: str, name: str, rng: random.Random) -> tuple[nn.Module, dict[str, Tensor]]:
    heads = rng.choice((2, 4))
    width, layers = heads * rng.choice((8, 16)), rng.choice((1, 2))
    inner = width * rng.choice((2, 3, 4))
    values = _TOKENS | _sizes(width, heads, layers, inner, rng)
    config = _config(name, values)
    suffixes = {
        "decoder": ("ForCausalLM", "ForCausalLM", "ForSequenceClassification"),
        "encoder": ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
        "pair": ("ForConditionalGeneration", "MTModel", "MTForConditionalGeneration"),
    }[kind]
    model = _build(config, suffixes, name, rng)
    batch, length = rng.choice((2, 3)), rng.choice((12, 16, 24))
    ids = torch.randint(3, 96, (batch, length))
    inputs = {"input_ids": ids}
    if rng.random() < 0.6:
        inputs["attention_mask"] = torch.ones_like(ids)
    return model, inputs | _labels(type(model).__name__, ids, rng)


def _sizes(width: int, heads: int, layers: int, inner: int, rng: random.Random) -> dict[str, Any]:
    """The same sizes under all the names that configurations use for them."""
    found: dict[str, Any] = dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size"), width)
    found |= dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads"), heads)
    found |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), heads)
    found |= dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), layers)
    found |= dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), layers)
    found |= dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim"), inner)
    found |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), inner)
    found |= {"num_key_value_heads": rng.choice((heads, heads // 2)), "head_dim": width // heads}
    found |= {"d_kv": width // heads, "word_embed_proj_dim": width, "rotary_dim": width // heads // 2}
    found |= {"hidden_dropout": 0.0, "n_positions": 64, "sliding_window": rng.choice((8, 64))}
    found |= {"true_hidden_size": width, "intra_bottleneck_size": width}
    return found | {"feed_forward_proj": rng.choice(("relu", "gated-gelu"))}


def _labels(head: str, ids: Tensor, rng: random.Random) -> dict[str, Tensor]:
    if rng.random() < 0.2:
        return {}
    if head.endswith("SequenceClassification"):
        return {"labels": torch.randint(0, 2, ids.shape[:1])}
    if head.endswith("TokenClassification"):
        return {"labels": torch.randint(0, 2, ids.shape)}
    if head.endswith("QuestionAnswering"):
        ends = ("start_positions", "end_positions")
        return {name: torch.randint(0, ids.shape[1], ids.shape[:1]) for name in ends}
    return {"labels": ids.roll(1, 1)}


def _picture(kind: str, name: str, rng: random.Random) -> tuple[nn.Module, dict[str, Tensor]]:
    width, heads = rng.choice((16, 32)), 2
    values = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": 2}
    values |= {
        "intermediate_size": 3 * width,
        "image_size": 32,
        "patch_size": rng.choice((4, 8)),
        "num_labels": 10,
    }
    wide = [width, 2 * width]
    staged: dict[str, dict[str, Any]] = {
        "ConvNext": {"hidden_sizes": wide, "depths": [1, 1], "num_stages": 2},
        "ConvNextV2": {"hidden_sizes": wide, "depths": [1, 1], "num_stages": 2},
        "ResNet": {
            "embedding_size": width,
            "hidden_sizes": wide,
            "depths": [1, 2],
            "layer_type": rng.choice(("basic", "bottleneck")),
        },
        "RegNet": {"embedding_size": width, "hidden_sizes": wide, "depths": [1, 1], "groups_width": 8},
        "Swin": {"embed_dim": width, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 2},
        "Swinv2": {"embed_dim": width, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 2},
        "FocalNet": {"embed_dim": width, "hidden_sizes": wide, "depths": [1, 1], "focal_levels": [2, 2]}
        | {"focal_windows": [3, 3], "patch_size": 2},
        "MobileNetV1": {"depth_multiplier": 0.25, "min_depth": 8},
        "MobileNetV2": {"depth_multiplier": 0.25, "min_depth": 8},
        "Bit": {"embedding_size": width, "hidden_sizes": wide, "depths": [1, 1], "num_groups": 4},
        "EfficientNet": {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320},
    }
    side = 64 if name in _AS_THEY_ARE else 32
    known = {"image_size": side} if name in _AS_THEY_ARE else values
    config = _config(name, staged.get(name, known) | {"num_labels": 10})
    model = _build(config, ("ForImageClassification",), name, rng)
    inputs = {"pixel_values": torch.randn(2, getattr(config, "num_channels", 3), side, side)}
    if rng.random() < 0.8:
        inputs["labels"] = torch.randint(0, 10, (2,))
    return model, inputs


_AS_THEY_ARE = ("PoolFormer", "Segformer", "Cvt", "Pvt", "Levit", "MobileViT", "Van", "TextNet", "HGNetV2")
