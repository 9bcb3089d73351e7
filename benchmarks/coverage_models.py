"""Models as their packages define them: random weights, the packages' own classes, usual widths, fewer layers.

Inference returns the model's logits or states, training the loss whose gradients are taken. Nothing is
downloaded. Packages are imported when a model is made. Batches are such that a call takes 2 to 100 ms on an
H100; `tiny` shrinks batches, lengths and depths for a dry run on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Model:
    """make(tiny) -> module and inputs, on the CPU in float32. `dtype`: what both are converted to."""

    name: str
    make: Callable[[bool], Made]
    dtype: torch.dtype = torch.float32

    @property
    def train(self) -> bool:
        return self.name.endswith(".train")


class Named(nn.Module):
    """A transformers model called with named inputs; `field`: what of its output is returned."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], field: str) -> None:
        super().__init__()
        self.model, self.names, self.field = model, names, field

    def forward(self, *inputs: Tensor) -> Any:
        return getattr(self.model(**dict(zip(self.names, inputs, strict=True))), self.field)


class Loss(nn.Module):
    """An image model under a cross-entropy."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.model(images), labels)


def _ids(vocab: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocab, (batch, length))


def _transformers(
    name: str, names: tuple[str, ...], field: str, config: Mapping[str, Any], inputs: Callable[[int], Any]
) -> Callable[[bool], Made]:
    """name: of the class, which knows its config's class; `inputs` gets the divisor of batches and lengths."""

    def make(tiny: bool) -> Made:
        import transformers

        kind: Any = getattr(transformers, name)
        settings = {k: min(v, 1) if tiny and k.endswith(("layers", "n_layer")) else v for k, v in config.items()}
        made = kind(kind.config_class(**settings))
        made.config.use_cache = False
        if getattr(made, "loss_type", "") is None:
            made.loss_type = "ForCausalLM"  # what it falls back to, but with a warning that breaks the graph
        return Named(made, names, field), inputs(16 if tiny else 1)

    return make


LLAMA = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
}
BERT = {"num_hidden_layers": 6, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GPT2 = {"n_layer": 6, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
T5 = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 4, "num_decoder_layers": 4}
WHISPER = {
    "d_model": 768,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 12,
    "decoder_attention_heads": 12,
    "encoder_ffn_dim": 3072,
    "decoder_ffn_dim": 3072,
}
MODERN_BERT = {"num_hidden_layers": 6, "attention_dropout": 0.0, "reference_compile": False}
WAV2VEC2 = {
    "num_hidden_layers": 4,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "layerdrop": 0.0,
    "final_dropout": 0.0,
}

DEEPER = {**LLAMA, "num_hidden_layers": 8}

IDS = ("input_ids",)
TEXTS = ("input_ids", "decoder_input_ids")
HEARD = ("input_features", "decoder_input_ids")
LABELLED = ("input_ids", "labels")


def _causal(batch: int, length: int, vocab: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda by: (_ids(vocab, max(1, batch // by), max(8, length // by)),)


def _labelled(batch: int, length: int, vocab: int) -> Callable[[int], tuple[Tensor, ...]]:
    def make(by: int) -> tuple[Tensor, ...]:
        ids = _ids(vocab, max(1, batch // by), max(8, length // by))
        return ids, ids.clone()

    return make


def _pair(batch: int, length: int, shorter: int, vocab: int) -> Callable[[int], tuple[Tensor, ...]]:
    """For encoder and decoder."""
    return lambda by: tuple(_ids(vocab, max(1, batch // by), max(8, n // by)) for n in (length, shorter))


def _speech(by: int) -> tuple[Tensor, ...]:
    """Thirty seconds, which the encoder's positions are made for, and what is said in them."""
    return torch.randn(max(1, 8 // by), 80, 3000), _ids(51865, max(1, 8 // by), max(8, 128 // by))


def _waves(by: int) -> tuple[Tensor, ...]:
    """Ten seconds."""
    return (torch.randn(max(1, 8 // by), 160_000 // by),)


def _images(model: nn.Module, batch: int, tiny: bool, side: int = 224) -> Made:
    return model, (torch.randn(2 if tiny else batch, 3, side, side),)


def _labelled_images(model: nn.Module, batch: int, tiny: bool) -> Made:
    images = torch.randn(2 if tiny else batch, 3, 224, 224)
    return Loss(model), (images, torch.randint(0, 1000, (len(images),)))


def _timm(name: str, batch: int, train: bool = False) -> Callable[[bool], Made]:
    def make(tiny: bool) -> Made:
        import timm  # type: ignore[import-not-found,unused-ignore]

        model: nn.Module = timm.create_model(name, pretrained=False)
        return (_labelled_images if train else _images)(model, batch, tiny)

    return make


def _torchvision(name: str, batch: int, train: bool = False) -> Callable[[bool], Made]:
    def make(tiny: bool) -> Made:
        import torchvision  # type: ignore[import-not-found,unused-ignore]

        model: nn.Module = getattr(torchvision.models, name)(weights=None)
        return (_labelled_images if train else _images)(model, batch, tiny)

    return make


def r3d_18(tiny: bool) -> Made:
    from torchvision.models.video import r3d_18 as made  # type: ignore[import-not-found,unused-ignore]

    side, batch = (32, 1) if tiny else (112, 8)
    return made(weights=None), (torch.randn(batch, 3, 16, side, side),)


def _graph(name: str) -> Callable[[bool], Made]:
    """A random graph with a loop at each node, as torch_geometric's AddSelfLoops leaves it."""

    def make(tiny: bool) -> Made:
        from torch_geometric.nn import models  # type: ignore[import-not-found,unused-ignore]

        nodes, edges = (200, 800) if tiny else (100_000, 1_600_000)
        own = torch.arange(nodes)
        links = torch.cat([torch.randint(0, nodes, (2, edges)), torch.stack([own, own])], 1)
        model: nn.Module = getattr(models, name)(128, 256, 3, 64, add_self_loops=False)
        return model, (torch.randn(nodes, 128), links)

    return make


HALF, FULL = torch.bfloat16, torch.float32

LLAMA_LM, GPT2_LM, BERT_LM = "LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM"

HUGGING_FACE: tuple[tuple[str, Callable[[bool], Made], torch.dtype], ...] = (
    ("llama", _transformers(LLAMA_LM, IDS, "logits", LLAMA, _causal(4, 1024, 32000)), HALF),
    ("llama_16_tokens", _transformers(LLAMA_LM, IDS, "logits", DEEPER, _causal(1, 16, 32000)), HALF),
    ("gpt2", _transformers(GPT2_LM, IDS, "logits", GPT2, _causal(8, 512, 50257)), FULL),
    ("bert", _transformers(BERT_LM, IDS, "logits", BERT, _causal(16, 384, 30522)), FULL),
    (
        "modernbert",
        _transformers("ModernBertForMaskedLM", IDS, "logits", MODERN_BERT, _causal(16, 1024, 50368)),
        HALF,
    ),
    ("t5", _transformers("T5ForConditionalGeneration", TEXTS, "logits", T5, _pair(16, 512, 128, 32128)), FULL),
    ("whisper", _transformers("WhisperForConditionalGeneration", HEARD, "logits", WHISPER, _speech), FULL),
    ("wav2vec2", _transformers("Wav2Vec2ForCTC", ("input_values",), "logits", WAV2VEC2, _waves), FULL),
    ("bert.train", _transformers(BERT_LM, LABELLED, "loss", BERT, _labelled(16, 256, 30522)), FULL),
    ("gpt2.train", _transformers(GPT2_LM, LABELLED, "loss", GPT2, _labelled(4, 512, 50257)), FULL),
)
IMAGES: tuple[tuple[str, Callable[[bool], Made]], ...] = (
    ("vit", _timm("vit_base_patch16_224", 64)),
    ("convnext", _timm("convnext_tiny", 64)),
    ("vit.train", _timm("vit_small_patch16_224", 64, train=True)),
    ("convnext.train", _timm("convnext_tiny", 32, train=True)),
    ("resnet50", _torchvision("resnet50", 64)),
    ("mobilenet_v3", _torchvision("mobilenet_v3_large", 256)),
    ("resnet18.train", _torchvision("resnet18", 64, train=True)),
    ("r3d_18", r3d_18),
)
MODELS = (
    *(Model(name, make, dtype) for name, make, dtype in HUGGING_FACE),
    *(Model(name, make) for name, make in IMAGES),
    Model("gcn", _graph("GCN")),
)
