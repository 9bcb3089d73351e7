"""The models that the benchmarks measure: real architectures at real sizes, random weights, one table.

`layers` scales depth only, so a shallow copy has the same regions as the full one. Each model is a module whose
call returns a loss-like tensor, and its inputs; `tiny` shrinks every size for dry runs on a CPU. Nothing is
downloaded: configurations come from transformers, weights from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class Spec:
    """One model at one dtype. `issue`: one of the five that the issue's table names."""

    name: str
    make: Callable[[int, bool], tuple[nn.Module, tuple[Tensor, ...]]]  # (layers, tiny)
    layers: int  # of the full model
    dtype: str = "f32"
    issue: bool = False


def build(spec: Spec, device: torch.device, layers: int | None = None, tiny: bool = False) -> Any:
    """The module in training mode and its inputs, on the device in the spec's dtype."""
    torch.manual_seed(0)
    module, inputs = spec.make(layers or spec.layers, tiny)
    dtype = DEVICE_DTYPES[spec.dtype]
    moved = tuple((x.to(dtype) if x.is_floating_point() else x).to(device) for x in inputs)
    return module.to(device=device, dtype=dtype), moved


class Loss(nn.Module):
    """A transformers model called with labels; returns its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = self.model(input_ids=ids, labels=labels, return_dict=False)[0]
        return loss


def _ids(vocab: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocab, (batch, length))


def gpt2(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    width, heads, vocab = (64, 2, 500) if tiny else (768, 12, 50257)
    config = GPT2Config(
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        vocab_size=vocab,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    config.use_cache = False
    ids = _ids(vocab, 2, 32) if tiny else _ids(vocab, 4, 512)
    return Loss(GPT2LMHeadModel(config)), (ids, ids.clone())


def bert(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import BertConfig, BertForMaskedLM

    width, heads, mlp, vocab = (64, 2, 128, 500) if tiny else (768, 12, 3072, 30522)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=mlp,
        vocab_size=vocab,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    config._attn_implementation = "eager"  # softmax stays visible
    ids = _ids(vocab, 2, 32) if tiny else _ids(vocab, 8, 384)
    return Loss(BertForMaskedLM(config)), (ids, ids.clone())


def llama(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    width, heads, kv, mlp, vocab = (64, 4, 2, 128, 500) if tiny else (1024, 16, 4, 2816, 32000)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        vocab_size=vocab,
    )
    config.use_cache = False
    ids = _ids(vocab, 2, 32) if tiny else _ids(vocab, 4, 1024)
    return Loss(LlamaForCausalLM(config)), (ids, ids.clone())


class _Residual(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        plain = stride == 1 and inner == outer
        self.short = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + self.short(x))


class ResNet(nn.Module):
    """ResNet-18's layout with a cross-entropy on top; `layers` stages of two blocks."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inner = width
        for i in range(layers):
            outer = width * 2**i
            blocks += [_Residual(inner, outer, 1 if i == 0 else 2), _Residual(outer, outer, 1)]
            inner = outer
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm(self.stem(x))))
        x = self.blocks(x).mean((2, 3))
        return F.cross_entropy(self.head(x), labels)


def resnet(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    width, classes, batch, side = (8, 10, 2, 32) if tiny else (64, 1000, 32, 224)
    return ResNet(layers, width, classes), (torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,)))


class NormedMLP(nn.Module):
    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return F.cross_entropy(self.head(x), labels)


def mlp(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    width, classes, batch = (64, 10, 16) if tiny else (1024, 1000, 4096)
    return NormedMLP(layers, width, classes), (torch.randn(batch, width), torch.randint(0, classes, (batch,)))


class UNetBlock(nn.Module):
    """Convolutions with group and instance norms over NCHW, SiLU, pooling and upsampling."""

    def __init__(self, layers: int, width: int, groups: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, width, 3, 1, 1)
        self.group = nn.ModuleList(nn.GroupNorm(groups, width) for _ in range(layers))
        self.instance = nn.ModuleList(nn.InstanceNorm2d(width, affine=True) for _ in range(layers))
        self.first = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(layers))
        self.second = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(layers))
        self.out = nn.Conv2d(width, 4, 3, 1, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.stem(x)
        for group, instance, first, second in zip(self.group, self.instance, self.first, self.second, strict=True):
            y = first(F.silu(group(x)))
            y = F.avg_pool2d(y, 2)
            y = second(F.leaky_relu(instance(y), 0.1))
            x = x + F.interpolate(y, scale_factor=2.0, mode="nearest")
        return F.mse_loss(self.out(x), target)


def unet(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    width, groups, batch, side = (16, 4, 2, 16) if tiny else (128, 32, 8, 96)
    shape = (batch, 4, side, side)
    return UNetBlock(layers, width, groups), (torch.randn(shape), torch.randn(shape))


class Head(nn.Module):
    """Normalisations and losses one after another: what classification and metric heads are made of."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.rms = nn.RMSNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.rms(F.mish(self.norm(x)))
        logits = self.out(x)
        smooth = F.cross_entropy(logits, labels, label_smoothing=0.1)
        kl = F.kl_div(F.log_softmax(logits, -1), F.softmax(logits.detach() * 0.5, -1), reduction="batchmean")
        cosine = F.cosine_similarity(x, x.roll(1, 0), dim=-1).mean()
        return smooth + 0.1 * kl + 0.1 * cosine + F.smooth_l1_loss(torch.tanh(x), torch.zeros_like(x))


def head(layers: int, tiny: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    width, classes, batch = (48, 10, 16) if tiny else (1023, 4999, 2048)  # sizes that no vector divides
    return Head(width, classes), (torch.randn(batch, width), torch.randint(0, classes, (batch,)))


ZOO: tuple[Spec, ...] = (
    Spec("gpt2", gpt2, 12, "f32", issue=True),
    Spec("bert", bert, 12, "f32", issue=True),
    Spec("llama", llama, 4, "bf16", issue=True),
    Spec("resnet18", resnet, 4, "f32", issue=True),
    Spec("mlp", mlp, 4, "f32", issue=True),
    Spec("gpt2_bf16", gpt2, 12, "bf16"),
    Spec("bert_f16", bert, 12, "f16"),
    Spec("llama_f32", llama, 4, "f32"),
    Spec("resnet18_bf16", resnet, 4, "bf16"),
    Spec("mlp_bf16", mlp, 4, "bf16"),
    Spec("unet", unet, 2, "f32"),
    Spec("unet_bf16", unet, 2, "bf16"),
    Spec("head", head, 1, "f32"),
    Spec("head_bf16", head, 1, "bf16"),
)
