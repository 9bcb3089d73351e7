"""Tasks of our own at large sizes: one layer, or a short chain, over tensors of 0.1 to 8 GiB.

Each is a module as a user writes it and its inputs; half of them hold a tensor of over 1 GiB, none one of 2^31
elements or more. `size` gives each free size (batch, length, rows), so that a dry run on a CPU shrinks them all;
what a layer is made for (its channels) stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Size = Callable[[int], int]
Made = tuple[nn.Module, tuple[Tensor, ...]]
Maker = Callable[[Size], Made]


class Apply(nn.Module):
    """A function of tensors as a module, with layers before it if any."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.layers, *inputs)


def chain(*layers: nn.Module, of: tuple[int, ...]) -> Made:
    """Layers one after the other, over noise."""
    return (layers[0] if len(layers) == 1 else nn.Sequential(*layers)), (torch.randn(of),)


def on(function: Callable[..., Any], *inputs: Tensor) -> Made:
    return Apply(function), inputs


# convolutions


def conv1d_norm_gelu(s: Size) -> Made:
    return chain(nn.Conv1d(64, 128, 9, padding=4), nn.GroupNorm(8, 128), nn.GELU(), of=(s(160), 64, s(32768)))


def conv2d(s: Size) -> Made:
    return chain(nn.Conv2d(48, 96, 3, padding=1), of=(s(96), 48, s(256), s(256)))


def conv2d_norm_relu_pool(s: Size) -> Made:
    layers = nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(), nn.MaxPool2d(2)
    return chain(*layers, of=(s(192), 64, s(128), s(128)))


def depthwise2d_relu6(s: Size) -> Made:
    return chain(nn.Conv2d(256, 256, 3, padding=1, groups=256), nn.ReLU6(), of=(s(72), 256, s(128), s(128)))


def pointwise2d_hardswish(s: Size) -> Made:
    return chain(nn.Conv2d(128, 192, 1), nn.Hardswish(), of=(s(64), 128, s(160), s(160)))


def conv3d_leaky_mean(s: Size) -> Made:
    def run(conv: nn.Module, x: Tensor) -> Tensor:
        return F.leaky_relu(conv(x), 0.1).mean((2, 3, 4))

    return Apply(run, nn.Conv3d(16, 32, 3, padding=1)), (torch.randn(s(48), 16, s(32), s(96), s(96)),)


def conv3d_instance_norm_pool(s: Size) -> Made:
    layers = nn.Conv3d(8, 24, 3), nn.InstanceNorm3d(24, affine=True), nn.Sigmoid(), nn.AvgPool3d(2)
    return chain(*layers, of=(s(24), 8, s(48), s(112), s(112)))


def transposed1d(s: Size) -> Made:
    return chain(nn.ConvTranspose1d(128, 64, 4, stride=2, padding=1), of=(s(96), 128, s(32768)))


def transposed2d_bias_clamp(s: Size) -> Made:
    class Decode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
            self.shift = nn.Parameter(torch.zeros(32, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.up(x)
            return ((y + self.shift) * 2.0).clamp(-1.0, 1.0) / 2.0

    return Decode(), (torch.randn(s(160), 64, s(128), s(128)),)


def transposed3d_norm_relu(s: Size) -> Made:
    layers = nn.ConvTranspose3d(32, 16, 3, stride=2, padding=1), nn.BatchNorm3d(16), nn.ReLU()
    return chain(*layers, of=(s(40), 32, s(24), s(64), s(64)))


# norms


def batch_norm(s: Size) -> Made:
    return chain(nn.BatchNorm2d(64, track_running_stats=False), of=(s(256), 64, s(256), s(256)))


def group_norm(s: Size) -> Made:
    return chain(nn.GroupNorm(16, 64), of=(s(160), 64, s(320), s(320)))


def layer_norm(s: Size) -> Made:
    return chain(nn.LayerNorm(6144), of=(s(131072), 6144))


def rms_norm_bf16(s: Size) -> Made:
    norm = nn.RMSNorm(8192, eps=1e-6, dtype=torch.bfloat16)
    return norm, (torch.randn(s(65536), 8192, dtype=torch.bfloat16),)


# pooling


def max_pool1d(s: Size) -> Made:
    return chain(nn.MaxPool1d(5, stride=2, padding=2), of=(s(64), 96, s(49152)))


def max_pool2d(s: Size) -> Made:
    return chain(nn.MaxPool2d(3, stride=2, padding=1), of=(s(64), 64, s(384), s(384)))


def avg_pool3d(s: Size) -> Made:
    return chain(nn.AvgPool3d(3, stride=2, padding=1), of=(s(32), 32, s(64), s(128), s(128)))


# scans


def cumsum(s: Size) -> Made:
    return on(lambda x: torch.cumsum(x, 1), torch.randn(s(32768), s(24576)))


def reverse_cumsum(s: Size) -> Made:
    return on(lambda x: torch.cumsum(x.flip(1), 1).flip(1), torch.randn(s(24576), s(16384)))


# softmax and losses


def softmax(s: Size) -> Made:
    return on(lambda x: F.softmax(x, -1), torch.randn(s(8192), s(131072)))


def log_softmax(s: Size) -> Made:
    return on(lambda x: F.log_softmax(x / 0.7, 1), torch.randn(s(24576), s(32000)))


def cross_entropy(s: Size) -> Made:
    classes = s(50000)
    return on(F.cross_entropy, torch.randn(s(8192), classes), torch.randint(0, classes, (s(8192),)))


def kl_divergence(s: Size) -> Made:
    def run(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean")

    return on(run, torch.randn(s(16384), s(16000)), torch.randn(s(16384), s(16000)))


def cosine_triplet(s: Size) -> Made:
    def run(anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
        gap = F.cosine_similarity(anchor, far) - F.cosine_similarity(anchor, near)
        return F.relu(gap + 0.2).mean()

    return on(run, *(torch.randn(s(65536), s(4096)) for _ in range(3)))


# products


def matmul_square(s: Size) -> Made:
    return on(torch.matmul, torch.randn(s(8192), s(8192)), torch.randn(s(8192), s(8192)))


def matmul_square_bf16(s: Size) -> Made:
    half = torch.bfloat16
    return on(
        torch.matmul,
        torch.randn(s(16384), s(16384), dtype=half),
        torch.randn(s(16384), s(16384), dtype=half),
    )


def matrix_vector(s: Size) -> Made:
    return on(torch.mv, torch.randn(s(32768), s(24576)), torch.randn(s(24576)))


def batched_softmax_bf16(s: Size) -> Made:
    def run(q: Tensor, k: Tensor) -> Tensor:
        return F.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.125, dim=-1)

    rows = tuple(torch.randn(s(128), s(2048), 64, dtype=torch.bfloat16) for _ in range(2))
    return on(run, *rows)


def linear_gelu_bf16(s: Size) -> Made:
    linear = nn.Linear(2048, 8192, dtype=torch.bfloat16)
    return nn.Sequential(linear, nn.GELU()), (torch.randn(s(32768), 2048, dtype=torch.bfloat16),)


def linear_layer_norm(s: Size) -> Made:
    return chain(nn.Linear(1024, 2048), nn.LayerNorm(2048), nn.Tanh(), of=(s(262144), 1024))


# activations and reductions


def gelu(s: Size) -> Made:
    return chain(nn.GELU(), of=(s(40960), s(49152)))


def hard_sigmoid(s: Size) -> Made:
    return chain(nn.Hardsigmoid(), of=(s(24576), s(65536)))


def argmax_rows(s: Size) -> Made:
    return on(lambda x: x.argmax(-1), torch.randn(s(131072), s(8192)))


MAKERS: tuple[Maker, ...] = (
    *(conv1d_norm_gelu, conv2d, conv2d_norm_relu_pool),
    *(depthwise2d_relu6, pointwise2d_hardswish, conv3d_leaky_mean, conv3d_instance_norm_pool),
    *(transposed1d, transposed2d_bias_clamp, transposed3d_norm_relu),
    *(batch_norm, group_norm, layer_norm, rms_norm_bf16),
    *(max_pool1d, max_pool2d, avg_pool3d),
    *(cumsum, reverse_cumsum),
    *(softmax, log_softmax, cross_entropy, kl_divergence, cosine_triplet),
    *(matmul_square, matmul_square_bf16, matrix_vector, batched_softmax_bf16),
    *(linear_gelu_bf16, linear_layer_norm),
    *(gelu, hard_sigmoid, argmax_rows),
)
