"""Models whose graphs the tests of the passes run on: small, random weights, CPU. Not a test module itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], tuple[Callable[..., Any], list[Any]]]  # model and inputs, after torch.manual_seed
    train: bool = False
    dynamic: bool = False


class Block(nn.Module):
    """A transformer block with attention written out, so that softmax is in the graph."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, s, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(w, dim=2)
        q, k, v = (t.view(b, s, self.heads, w // self.heads).transpose(1, 2) for t in (q, k, v))
        mask = torch.ones(s, s, dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-2, -1)) * (w // self.heads) ** -0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(b, s, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.linear(x).chunk(2, dim=-1)
        return F.silu(gate) * up


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(self.stem(x))
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Rotary(nn.Module):
    def forward(self, q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = q.chunk(2, dim=-1)
        return q * cos + torch.cat((-high, low), dim=-1) * sin


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return self.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Classifier(nn.Module):
    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 50)
        self.smoothing = smoothing

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(x), target, label_smoothing=self.smoothing)


def transformers_model(kind: str) -> tuple[Callable[..., Any], list[Any]]:
    """gpt2, bert or llama from a tiny config."""
    import transformers as hf

    ids = torch.randint(0, 97, (2, 16))
    if kind == "gpt2":
        config = hf.GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False)
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        model: Any = hf.GPT2LMHeadModel(config)
    elif kind == "bert":
        model = hf.BertModel(
            hf.BertConfig(
                vocab_size=97,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=32,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    else:
        model = hf.LlamaForCausalLM(
            hf.LlamaConfig(
                vocab_size=97,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                max_position_embeddings=32,
                use_cache=False,
            )
        )

    def run(tokens: Tensor) -> Tensor:
        return model(tokens)[0]

    return run, [ids]


def _image(batch: int = 2, channels: int = 6, size: int = 8) -> Tensor:
    return torch.randn(batch, channels, size, size)


CASES = [
    Case("layer_norm", lambda: (nn.LayerNorm(48), [torch.randn(6, 7, 48)]), train=True),
    Case("rms_norm", lambda: (RMSNorm(48), [torch.randn(6, 7, 48)]), train=True),
    Case("rms_norm_bf16", lambda: (RMSNorm(48).bfloat16(), [torch.randn(6, 7, 48).bfloat16()]), train=True),
    Case("softmax_rows", lambda: (nn.Softmax(-1), [torch.randn(5, 40)]), train=True),
    Case("softmax_columns", lambda: (nn.Softmax(0), [torch.randn(40, 5)]), train=True),
    Case("log_softmax", lambda: (nn.LogSoftmax(1), [torch.randn(4, 9, 5)]), train=True),
    Case(
        "gelu_mlp",
        lambda: (nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)), [torch.randn(8, 16)]),
        train=True,
    ),
    Case(
        "mlp_norm",
        lambda: (
            nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 16)),
            [torch.randn(8, 16)],
        ),
        train=True,
    ),
    Case("attention", lambda: (Block(32, 4), [torch.randn(2, 16, 32)]), train=True),
    Case("attention_dynamic", lambda: (Block(32, 4), [torch.randn(3, 16, 32)]), dynamic=True),
    Case(
        "mha",
        lambda: (SelfAttention(), [torch.randn(2, 16, 32)]),
        train=True,
    ),
    Case("convnet_eval", lambda: (ConvNet().eval(), [torch.randn(2, 3, 16, 16)])),
    Case("convnet_train", lambda: (ConvNet(), [torch.randn(2, 3, 16, 16)]), train=True),
    Case(
        "batch_norm_channels_last",
        lambda: (nn.BatchNorm2d(6), [_image().to(memory_format=torch.channels_last)]),
        train=True,
    ),
    Case(
        "batch_norm_dynamic",
        lambda: (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)), [_image(3, 3)]),
        train=True,
        dynamic=True,
    ),
    Case("group_norm", lambda: (nn.GroupNorm(2, 6), [_image()]), train=True),
    Case(
        "group_norm_silu_pool",
        lambda: (nn.Sequential(nn.GroupNorm(3, 6), nn.SiLU(), nn.AvgPool2d(2)), [_image()]),
        train=True,
    ),
    Case("instance_norm", lambda: (nn.InstanceNorm2d(6, affine=True), [_image()]), train=True),
    Case(
        "pooling",
        lambda: (nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1), nn.Tanh()), [_image(size=12)]),
        train=True,
    ),
    Case("adaptive_pool", lambda: (nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(4)), [_image()])),
    Case("cross_entropy", lambda: (Classifier(), [torch.randn(12, 32), torch.randint(0, 50, (12,))]), train=True),
    Case(
        "label_smoothing",
        lambda: (Classifier(0.1), [torch.randn(12, 32), torch.randint(0, 50, (12,))]),
        train=True,
    ),
    Case(
        "rotary", lambda: (Rotary(), [torch.randn(2, 4, 8, 16), torch.rand(8, 16), torch.rand(8, 16)]), train=True
    ),
    Case(
        "embedding_norm",
        lambda: (nn.Sequential(nn.Embedding(30, 24), nn.LayerNorm(24)), [torch.randint(0, 30, (4, 7))]),
        train=True,
    ),
    Case(
        "swiglu",
        lambda: (SwiGLU(), [torch.randn(8, 16)]),
        train=True,
    ),
    Case(
        "cumsum",
        lambda: (lambda x: (x.cumsum(1) / (x.abs().sum(1, keepdim=True) + 1)).tanh(), [torch.randn(6, 20)]),
        train=True,
    ),
    Case(
        "argmax_mask", lambda: (lambda x: (x.argmax(-1), (x > 0).any(1), x.amin((0, 1))), [torch.randn(6, 20, 3)])
    ),
    Case(
        "mixed_dtypes",
        lambda: (
            lambda x, i, m: torch.where(m, x.half() * i, x.half() + 1).float().prod(1),
            [torch.randn(9, 12), torch.randint(0, 5, (12,)), torch.rand(9, 12) > 0.5],
        ),
    ),
    Case("gpt2", lambda: transformers_model("gpt2"), train=True),
    Case("bert", lambda: transformers_model("bert"), train=True),
    Case("llama", lambda: transformers_model("llama"), train=True),
]
