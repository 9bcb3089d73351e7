"""Convolutional networks as published, over torch.nn alone: what `benchmarks.models --suite cnn` measures.

Each gives its result in eval mode and its loss in training mode, so that an inference is what a user runs. What
draws random numbers (dropout, stochastic depth) is left out: contenders are compared with float64, tensor by
tensor. `layers` takes the first stages of a network, or its first levels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo import ZOO, Spec

Made = tuple[nn.Module, tuple[Tensor, ...]]
Act = Callable[[], nn.Module]


def conv_norm(
    inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1, act: Act | None = nn.ReLU
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation."""
    conv = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), *([act()] if act else []))


class Classifier(nn.Module):
    """Features, their mean over all places, a linear layer; logits, or the cross entropy in training."""

    def __init__(self, features: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean((2, 3)))
        return F.cross_entropy(logits, labels) if self.training else logits


def _images(features: nn.Module, width: int, tiny: bool) -> Made:
    classes, batch, side = (10, 2, 32) if tiny else (1000, 32, 224)
    inputs = (torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,)))
    return Classifier(features, width, classes), inputs


class Residual(nn.Module):
    """relu(body(x) + short(x))"""

    def __init__(self, body: nn.Module, short: nn.Module) -> None:
        super().__init__()
        self.body, self.short = body, short

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x))


def _bottleneck(inner: int, width: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        conv_norm(inner, width, 1),
        conv_norm(width, width, 3, stride),  # the stride in the 3x3, as frameworks ship it
        conv_norm(width, 4 * width, 1, act=None),
    )
    return Residual(body, _short(inner, 4 * width, stride))


def _short(inner: int, outer: int, stride: int) -> nn.Module:
    return nn.Identity() if inner == outer else conv_norm(inner, outer, 1, stride, act=None)


def resnet50(layers: int, tiny: bool) -> Made:
    """He et al. 2016; ResNet-18 is in zoo.py."""
    width = 8 if tiny else 64
    stages: list[nn.Module] = [conv_norm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inner = width
    for i, count in enumerate((3, 4, 6, 3)[:layers]):
        for at in range(1 if tiny else count):
            stages.append(_bottleneck(inner, width * 2**i, 2 if at == 0 and i > 0 else 1))
            inner = 4 * width * 2**i
    return _images(nn.Sequential(*stages), inner, tiny)


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, squeezed, 1), nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale: Tensor = self.up(F.silu(self.down(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(scale)


class InvertedResidual(nn.Module):
    """Wider by a 1x1, depthwise, perhaps squeeze and excitation, narrower by a 1x1; plus x where shapes agree."""

    def __init__(
        self, inner: int, outer: int, factor: int, kernel: int, stride: int, act: Act, excited: bool
    ) -> None:
        super().__init__()
        width = inner * factor
        parts: list[nn.Module] = [conv_norm(inner, width, 1, act=act)] if factor != 1 else []
        parts.append(conv_norm(width, width, kernel, stride, width, act))
        if excited:
            parts.append(SqueezeExcite(width, max(1, inner // 4)))
        self.body = nn.Sequential(*parts, conv_norm(width, outer, 1, act=None))
        self.is_residual = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.is_residual else y


# factor, channels, blocks, stride of the first, kernel
MOBILENET_V2 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3))
MOBILENET_V2 += ((6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3))
EFFICIENTNET_B0 = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3))
EFFICIENTNET_B0 += ((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))


def _inverted(table: tuple[tuple[int, ...], ...], layers: int, tiny: bool, act: Act, excited: bool) -> Made:
    smaller = 4 if tiny else 1
    inner = 32 // smaller
    parts: list[nn.Module] = [conv_norm(3, inner, 3, 2, act=act)]
    for factor, channels, count, stride, kernel in table[:layers]:
        for at in range(1 if tiny else count):
            outer = channels // smaller
            parts.append(InvertedResidual(inner, outer, factor, kernel, stride if at == 0 else 1, act, excited))
            inner = outer
    parts.append(conv_norm(inner, 1280 // smaller, 1, act=act))
    return _images(nn.Sequential(*parts), 1280 // smaller, tiny)


def mobilenet_v2(layers: int, tiny: bool) -> Made:
    """Sandler et al. 2018."""
    return _inverted(MOBILENET_V2, layers, tiny, nn.ReLU6, False)


def efficientnet_b0(layers: int, tiny: bool) -> Made:
    """Tan and Le 2019."""
    return _inverted(EFFICIENTNET_B0, layers, tiny, nn.SiLU, True)


class UNet(nn.Module):
    """Ronneberger et al. 2015 (2D), Çiçek et al. 2016 (3D): padded and with batch norms, as both are used today.

    A level is two 3x3 convolutions; pooling down, transposed convolutions up; a class for every place.
    """

    def __init__(self, dims: int, levels: int, width: int, channels: int, classes: int) -> None:
        super().__init__()
        conv, up = (nn.Conv2d, nn.ConvTranspose2d) if dims == 2 else (nn.Conv3d, nn.ConvTranspose3d)
        norm = nn.BatchNorm2d if dims == 2 else nn.BatchNorm3d

        def level(inner: int, middle: int, outer: int) -> nn.Module:
            parts: list[nn.Module] = []
            for a, b in ((inner, middle), (middle, outer)):
                parts += [conv(a, b, 3, 1, 1, bias=False), norm(b), nn.ReLU()]
            return nn.Sequential(*parts)

        widths = [width * 2**i for i in range(levels + 1)]
        # in 3D the channels double in a level's second convolution already, and the way up keeps them
        middle = [w if dims == 2 else w // 2 for w in widths]
        self.down = nn.ModuleList(
            level(a, m, b) for a, m, b in zip([channels, *widths], middle, widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2) if dims == 2 else nn.MaxPool3d(2)
        turned = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        kept = [below if dims == 3 else at for below, at in turned]
        self.up = nn.ModuleList(up(below, k, 2, 2) for (below, _), k in zip(turned, kept, strict=True))
        self.join = nn.ModuleList(level(k + at, at, at) for (_, at), k in zip(turned, kept, strict=True))
        self.head = conv(width, classes, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        beside: list[Tensor] = []
        for level in self.down[:-1]:
            x = level(x)
            beside.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([beside.pop(), up(x)], 1))
        logits: Tensor = self.head(x)
        return F.cross_entropy(logits, labels) if self.training else logits


def unet2d(layers: int, tiny: bool) -> Made:
    width, batch, side = (8, 2, 32) if tiny else (64, 4, 256)
    model = UNet(2, min(layers, 2) if tiny else layers, width, 3, 3)
    return model, (torch.randn(batch, 3, side, side), torch.randint(0, 3, (batch, side, side)))


def unet3d(layers: int, tiny: bool) -> Made:
    width, batch, sides = (8, 1, (8, 16, 16)) if tiny else (64, 1, (64, 96, 96))
    model = UNet(3, min(layers, 2) if tiny else layers, width, 1, 3)
    return model, (torch.randn(batch, 1, *sides), torch.randint(0, 3, (batch, *sides)))


class GAN(nn.Module):
    """DCGAN (Radford et al. 2016): images from noise, or in training the generator's loss through the critic."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(layers)]  # of 64, 128, 256, 512 from the image inwards
        made: list[nn.Module] = [nn.ConvTranspose2d(100, widths[-1], 4, 1, 0, bias=False)]
        seen: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for small, large in zip(widths[-2::-1], widths[:0:-1], strict=True):
            made += [nn.BatchNorm2d(large), nn.ReLU(), nn.ConvTranspose2d(large, small, 4, 2, 1, bias=False)]
        for small, large in zip(widths, widths[1:], strict=False):
            seen += [nn.Conv2d(small, large, 4, 2, 1, bias=False), nn.BatchNorm2d(large), nn.LeakyReLU(0.2)]
        made += [nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.generator = nn.Sequential(*made)
        self.critic = nn.Sequential(*seen, nn.Conv2d(widths[-1], 1, 4, 1, 0, bias=False))

    def forward(self, noise: Tensor) -> Tensor:
        images: Tensor = self.generator(noise)
        return F.softplus(-self.critic(images)).mean() if self.training else images


def gan(layers: int, tiny: bool) -> Made:
    width, batch = (8, 2) if tiny else (64, 64)
    return GAN(layers, width), (torch.randn(batch, 100, 1, 1),)


CNNS: tuple[Spec, ...] = (
    Spec("efficientnet_b0", efficientnet_b0, 7),  # those that compile longest come first
    Spec("resnet50", resnet50, 4),
    Spec("mobilenet_v2", mobilenet_v2, 7),
    Spec("unet2d", unet2d, 4),
    Spec("unet3d", unet3d, 3),
    Spec("gan", gan, 4),
)

SPECS = {s.name: s for s in (*CNNS, *ZOO)}
