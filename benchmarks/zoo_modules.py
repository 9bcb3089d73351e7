"""Modules of one to a dozen operators at sizes of real use: what `benchmarks.modules` compiles, one by one.

Own modules over torch.nn, where the headroom is: convolutions of every kind with what follows them, products with
epilogues, pooling, norms, scans, losses, long rows. `tiny` shrinks every size for dry runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Tensor, ...]]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    name: str
    make: Callable[[bool], Made]  # (tiny)
    trains: bool = False  # forward and backward, else an inference in eval mode


class Of(nn.Module):
    """A function of tensors and of the module's own layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*self.layers, *inputs)


def _drawn(tiny: bool, small: Shape, full: Shape) -> Tensor:
    return torch.randn(small if tiny else full)


def conv_bias_act(tiny: bool) -> Made:
    n = 8 if tiny else 64
    body = nn.Sequential(nn.Conv2d(n, 2 * n, 3, padding=1), nn.Hardtanh(-1.0, 1.0), nn.MaxPool2d(2))
    return body, (_drawn(tiny, (2, 8, 12, 12), (64, 64, 56, 56)),)


def conv_norm_residual(tiny: bool) -> Made:
    n = 8 if tiny else 128
    conv, norm = nn.Conv2d(n, n, 3, padding=1, bias=False), nn.BatchNorm2d(n)
    module = Of(lambda c, b, x: F.silu(b(c(x)) + x), conv, norm)
    return module, (_drawn(tiny, (2, 8, 10, 10), (32, 128, 28, 28)),)


def conv_group_norm(tiny: bool) -> Made:
    n = 8 if tiny else 96
    body = nn.Sequential(nn.Conv2d(n // 2, n, 3, padding=1), nn.GroupNorm(8, n), nn.Mish())
    return body, (_drawn(tiny, (2, 4, 10, 10), (16, 48, 64, 64)),)


def depthwise_chain(tiny: bool) -> Made:
    n = 8 if tiny else 240
    body = nn.Sequential(nn.Conv2d(n, n, 5, padding=2, groups=n, bias=False), nn.BatchNorm2d(n), nn.Hardswish())
    return body, (_drawn(tiny, (2, 8, 9, 9), (32, 240, 28, 28)),)


def convnext_block(tiny: bool) -> Made:
    n = 8 if tiny else 192

    def block(conv: nn.Module, norm: nn.Module, up: nn.Module, down: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = down(F.gelu(up(norm(conv(x).permute(0, 2, 3, 1)))))
        return x + y.permute(0, 3, 1, 2)

    layers = (nn.Conv2d(n, n, 7, padding=3, groups=n), nn.LayerNorm(n), nn.Linear(n, 4 * n), nn.Linear(4 * n, n))
    return Of(block, *layers), (_drawn(tiny, (1, 8, 9, 9), (16, 192, 28, 28)),)


def transposed_conv(tiny: bool) -> Made:
    n = 8 if tiny else 128
    body = nn.Sequential(nn.ConvTranspose2d(n, n // 2, 2, 2), nn.LeakyReLU(0.2))
    return body, (_drawn(tiny, (1, 8, 6, 6), (8, 128, 64, 64)),)


def transposed_conv3d(tiny: bool) -> Made:
    n = 8 if tiny else 64
    body = nn.Sequential(nn.ConvTranspose3d(n, n // 2, 2, 2), nn.BatchNorm3d(n // 2), nn.ReLU())
    return body, (_drawn(tiny, (1, 8, 3, 4, 4), (2, 64, 16, 32, 32)),)


def conv3d_pool(tiny: bool) -> Made:
    n = 8 if tiny else 32
    body = nn.Sequential(nn.Conv3d(n // 2, n, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2))
    return body, (_drawn(tiny, (1, 4, 4, 6, 6), (4, 16, 16, 64, 64)),)


def conv1d_dilated(tiny: bool) -> Made:
    n = 8 if tiny else 128
    conv = nn.Conv1d(n, 2 * n, 3, padding=4, dilation=4)

    def gated(conv: nn.Module, x: Tensor) -> Tensor:
        a, b = conv(x).chunk(2, 1)
        return torch.tanh(a) * torch.sigmoid(b) + x

    return Of(gated, conv), (_drawn(tiny, (1, 8, 32), (16, 128, 8192)),)


def linear_gelu(tiny: bool) -> Made:
    n = 32 if tiny else 1024
    return nn.Sequential(nn.Linear(n, 4 * n), nn.GELU()), (_drawn(tiny, (8, 32), (4096, 1024)),)


def linear_row_max(tiny: bool) -> Made:
    n = 32 if tiny else 2048
    module = Of(lambda f, x: torch.logsumexp(F.mish(f(x)), 1, keepdim=True), nn.Linear(n, n))
    return module, (_drawn(tiny, (8, 32), (1024, 2048)),)


def matrix_vector(tiny: bool) -> Made:
    n = 64 if tiny else 16384
    return Of(lambda a, b: F.relu(a @ b)), (torch.randn(n // 4, n) / n**0.5, torch.randn(n))


def batched_small(tiny: bool) -> Made:
    b, n = (2, 8) if tiny else (512, 64)
    module = Of(lambda x, y: torch.softmax(torch.bmm(x, y) * 0.125, -1))
    return module, (torch.randn(b, n, n), torch.randn(b, n, n))


def max_pool3d(tiny: bool) -> Made:
    return nn.MaxPool3d(3, 2, 1), (_drawn(tiny, (1, 4, 5, 8, 8), (8, 32, 32, 64, 64)),)


def average_pool2d(tiny: bool) -> Made:
    return nn.AvgPool2d(5, 1, 2), (_drawn(tiny, (1, 4, 9, 9), (32, 64, 112, 112)),)


def instance_norm(tiny: bool) -> Made:
    n = 4 if tiny else 64
    module = Of(lambda m, x, y: m(x) * y + y, nn.InstanceNorm2d(n))
    shape = ((2, 4, 8, 8), (32, 64, 96, 96))
    return module, (_drawn(tiny, *shape), _drawn(tiny, *shape))


def norm_of_images(tiny: bool) -> Made:
    shape = (4, 8, 8) if tiny else (64, 64, 64)
    return nn.LayerNorm(shape), (_drawn(tiny, (2, 4, 8, 8), (64, 64, 64, 64)),)


def rms_norm_channels(tiny: bool) -> Made:
    module = Of(lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5))
    return module, (_drawn(tiny, (2, 8, 6, 6), (32, 96, 112, 112)),)


def running_sum(tiny: bool) -> Made:
    module = Of(lambda x, m: torch.cumsum(torch.where(m, x, 0.0), 1))
    x = _drawn(tiny, (4, 64), (256, 32768))
    return module, (x, torch.rand(x.shape) > 0.3)


def running_product(tiny: bool) -> Made:
    module = Of(lambda x: torch.cumprod(1.0 + 0.001 * torch.tanh(x), 0))
    return module, (_drawn(tiny, (64, 8), (2048, 4096)),)


def reversed_sum(tiny: bool) -> Made:
    module = Of(lambda x: torch.flip(torch.cumsum(torch.flip(x, (1,)), 1), (1,)))
    return module, (_drawn(tiny, (4, 64), (512, 16384)),)


def long_softmax(tiny: bool) -> Made:
    return Of(lambda x: torch.softmax(x * 0.5, -1)), (_drawn(tiny, (2, 300), (64, 262144)),)


def l2_normalised(tiny: bool) -> Made:
    return Of(lambda x: F.normalize(x, dim=1)), (_drawn(tiny, (4, 300), (512, 131072)),)


def product_of_columns(tiny: bool) -> Made:
    module = Of(lambda x: torch.amin(x.abs() + 0.5, 1) * x.mean(1))
    return module, (_drawn(tiny, (4, 20, 8), (128, 1024, 256)),)


def largest_place(tiny: bool) -> Made:
    return Of(lambda x: torch.argmax(x, 1)), (_drawn(tiny, (4, 20, 8), (128, 1024, 256)),)


def class_loss(tiny: bool) -> Made:
    rows, classes = (8, 10) if tiny else (8192, 4096)
    loss = Of(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1))
    return loss, (torch.randn(rows, classes), torch.randint(0, classes, (rows,)))


def triplet_loss(tiny: bool) -> Made:
    shape = (8, 32) if tiny else (8192, 1024)
    loss = Of(lambda a, p, n: F.triplet_margin_loss(a, p, n, margin=0.7))
    return loss, (torch.randn(shape), torch.randn(shape), torch.randn(shape))


def divergence(tiny: bool) -> Made:
    shape = (8, 32) if tiny else (8192, 2048)
    loss = Of(lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean"))
    return loss, (torch.randn(shape), torch.randn(shape))


def train_norm_act(tiny: bool) -> Made:
    n = 8 if tiny else 64
    module = Of(lambda m, x: F.relu(m(x)).square().mean(), nn.BatchNorm2d(n))
    return module, (_drawn(tiny, (2, 8, 8, 8), (64, 64, 56, 56)).requires_grad_(),)


def train_depthwise(tiny: bool) -> Made:
    n = 8 if tiny else 144
    parts = (nn.Conv2d(n, n, 3, padding=1, groups=n, bias=False), nn.BatchNorm2d(n))
    module = Of(lambda c, m, x: F.silu(m(c(x))).mean(), *parts)
    return module, (_drawn(tiny, (2, 8, 8, 8), (32, 144, 56, 56)).requires_grad_(),)


MODULES: tuple[ModuleSpec, ...] = (
    ModuleSpec("conv_bias_act", conv_bias_act),
    ModuleSpec("depthwise_chain", depthwise_chain),
    ModuleSpec("running_sum", running_sum),
    ModuleSpec("instance_norm", instance_norm),
    ModuleSpec("transposed_conv", transposed_conv),
    ModuleSpec("linear_gelu", linear_gelu),
    ModuleSpec("max_pool3d", max_pool3d),
    ModuleSpec("train_norm_act", train_norm_act, trains=True),
    ModuleSpec("long_softmax", long_softmax),
    ModuleSpec("conv3d_pool", conv3d_pool),
    ModuleSpec("conv_group_norm", conv_group_norm),
    ModuleSpec("triplet_loss", triplet_loss),
    ModuleSpec("convnext_block", convnext_block),
    ModuleSpec("average_pool2d", average_pool2d),
    ModuleSpec("linear_row_max", linear_row_max),
    ModuleSpec("train_depthwise", train_depthwise, trains=True),
    ModuleSpec("running_product", running_product),
    ModuleSpec("transposed_conv3d", transposed_conv3d),
    ModuleSpec("norm_of_images", norm_of_images),
    ModuleSpec("conv1d_dilated", conv1d_dilated),
    ModuleSpec("matrix_vector", matrix_vector),
    ModuleSpec("class_loss", class_loss),
    ModuleSpec("l2_normalised", l2_normalised),
    ModuleSpec("conv_norm_residual", conv_norm_residual),
    ModuleSpec("rms_norm_channels", rms_norm_channels),
    ModuleSpec("batched_small", batched_small),
    ModuleSpec("product_of_columns", product_of_columns),
    ModuleSpec("reversed_sum", reversed_sum),
    ModuleSpec("largest_place", largest_place),
    ModuleSpec("divergence", divergence),
)
