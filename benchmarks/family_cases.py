"""What the families' benchmark measures, part one: sums of products. Shapes of architectures as published.

A case is a function over tensors, and their shapes as text: `64x3x224x224 64x3x7x7`, `:bf16` behind a shape where
it is not f32, `*` behind what gets a gradient (then the backward graph is cut, or the forward one of training).
Layers are written down here, no weights are read. family_reductions.py and family_rows.py have the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.importer.capture import Kind

Run = Callable[..., Any]
Row = tuple[str, Run, str]


@dataclass(frozen=True, slots=True)
class Case:
    family: str
    name: str  # the architecture, the place in it
    run: Run
    shapes: str
    direction: Kind = "inference"
    device: str = "meta"  # where it is captured; on the CPU it really runs


def cases(family: str, *rows: Row, direction: Kind = "inference", device: str = "meta") -> Iterator[Case]:
    for name, run, shapes in rows:
        yield Case(family, name, run, shapes, direction, device)


def conv(stride: int = 1, padding: Any = 0, dilation: int = 1, groups: int = 1, then: Run | None = None) -> Run:
    """A convolution of as many dimensions as its input; (x, w[, bias[, what `then` takes behind the result]])."""

    def run(x: Tensor, w: Tensor, bias: Tensor | None = None, *rest: Tensor) -> Tensor:
        call = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
        made = call(x, w, bias, stride, padding, dilation, groups)
        return then(made, *rest) if then else made

    return run


def unbiased(stride: int = 1, padding: Any = 0, groups: int = 1, *, then: Run) -> Run:
    """As `conv` with `then`, without a bias."""
    plain = conv(stride, padding, 1, groups)
    return lambda x, w, *rest: then(plain(x, w), *rest)


def up(stride: int, padding: int = 0, extra: int = 0, then: Run | None = None) -> Run:
    """A transposed convolution; (x, w[, bias])."""

    def run(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        call = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.dim() - 3]
        made = call(x, w, bias, stride, padding, extra)
        return then(made) if then else made

    return run


def depthwise(stride: int = 1, padding: int = 1, dilation: int = 1) -> Run:
    return lambda x, w, *bias: conv(stride, padding, dilation, x.shape[1])(x, w, *bias)


def batch_norm(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """With running statistics, made positive here as a trained model's are."""
    return F.batch_norm(x, mean, var.abs() + 0.5, weight, bias)


def bn_relu(x: Tensor, *norm: Tensor) -> Tensor:
    return batch_norm(x, *norm).relu()


def bn_add_relu(x: Tensor, skip: Tensor, *norm: Tensor) -> Tensor:
    return (batch_norm(x, *norm) + skip).relu()


def _norm(channels: int) -> str:
    return f" {channels}" * 4


def _conv2d() -> Iterator[Case]:
    yield from cases(
        "conv2d",
        ("resnet50 stem, batch 64", conv(2, 3), "64x3x224x224 64x3x7x7"),
        ("resnet50 stem, batch 1", conv(2, 3), "1x3x224x224 64x3x7x7"),
        ("resnet50 layer1 3x3", conv(1, 1), "32x64x56x56 64x64x3x3"),
        ("resnet50 layer2 3x3 stride 2", conv(2, 1), "8x128x56x56 128x128x3x3"),
        ("resnet18 layer3 3x3, batch 1", conv(1, 1), "1x256x14x14 256x256x3x3"),
        ("resnet50 layer4 1x1", conv(), "64x512x7x7 2048x512x1x1"),
        ("vgg16 conv3_2", conv(1, 1), "16x256x56x56 256x256x3x3 256"),
        ("unet 2d encoder 1", conv(1, 1), "4x64x256x256 64x64x3x3 64"),
        ("unet 2d decoder 4, after the concatenation", conv(1, 1), "2x128x388x388 64x128x3x3 64"),
        ("efficientnet-b0 stem", conv(2, 1), "128x3x224x224 32x3x3x3"),
        ("convnext-t patches", conv(4), "32x3x224x224 96x3x4x4 96"),
        ("convnext-t downsampling", conv(2), "64x96x56x56 192x96x2x2 192"),
        ("inception-v3 1x7", conv(1, (0, 3)), "32x192x17x17 192x192x1x7"),
        ("deeplab-v3 rate 12", conv(1, 12, 12), "4x2048x33x33 256x2048x3x3"),
        ("resnext50 32 groups", conv(1, 1, 1, 32), "32x128x56x56 128x4x3x3"),
    )
    yield from cases(
        "conv2d",
        ("resnet18 layer1, gradient of the weight", conv(1, 1), "32x64x56x56 64x64x3x3*"),
        direction="backward",
    )


def _conv3d() -> Iterator[Case]:
    yield from cases(
        "conv3d",
        ("unet 3d encoder 1, first", conv(1, 1), "2x1x64x128x128 32x1x3x3x3 32"),
        ("unet 3d encoder 1, second", conv(1, 1), "2x32x64x64x64 64x32x3x3x3 64"),
        ("unet 3d encoder 2", conv(1, 1), "2x64x32x32x32 128x64x3x3x3 128"),
        ("unet 3d bottom", conv(1, 1), "2x256x16x16x16 512x256x3x3x3 512"),
        ("unet 3d decoder, after the concatenation", conv(1, 1), "1x192x32x64x64 64x192x3x3x3 64"),
        ("c3d conv1", conv(1, 1), "8x3x16x112x112 64x3x3x3x3 64"),
        ("c3d conv3a", conv(1, 1), "16x128x8x28x28 256x128x3x3x3 256"),
        ("i3d stem", conv(2, 3), "4x3x16x224x224 64x3x7x7x7"),
        ("r(2+1)d spatial", conv(1, (0, 1, 1)), "8x64x16x56x56 144x64x1x3x3"),
        ("r(2+1)d temporal", conv(1, (1, 0, 0)), "8x144x16x56x56 64x144x3x1x1"),
        ("slowfast fast pathway stem", conv(1, (2, 3, 3)), "4x3x32x112x112 8x3x5x7x7"),
        ("v-net 5x5x5", conv(1, 2), "1x16x64x64x64 16x16x5x5x5 16"),
        ("resnet3d-18 layer2 stride 2", conv(2, 1), "16x64x16x56x56 128x64x3x3x3"),
    )


def _conv_transposed() -> Iterator[Case]:
    yield from cases(
        "conv_transposed",
        ("dcgan 4 to 8", up(2, 1), "128x1024x4x4 1024x512x4x4"),
        ("dcgan 8 to 16, batch 16", up(2, 1), "16x512x8x8 512x256x4x4"),
        ("dcgan 16 to 32", up(2, 1), "128x256x16x16 256x128x4x4"),
        ("dcgan last", up(2, 1), "128x128x32x32 128x3x4x4"),
        ("cyclegan up 1", up(2, 1, 1), "1x256x64x64 256x128x3x3 128"),
        ("pix2pix up 6", up(2, 1), "4x512x32x32 512x128x4x4 128"),
        ("unet 2d up 1", up(2), "2x1024x28x28 1024x512x2x2 512"),
        ("unet 2d up 4", up(2), "4x128x128x128 128x64x2x2 64"),
        ("unet 3d up 2", up(2), "2x128x16x32x32 128x128x2x2x2 128"),
        ("v-net up", up(2), "1x64x32x32x32 64x32x2x2x2 32"),
        ("3d-gan 16 to 32", up(2, 1), "16x128x16x16x16 128x64x4x4x4"),
        ("wavegan 1024 to 4096", up(4, 11, 1), "64x128x1024 128x64x25 64"),
        ("hifi-gan first", up(8, 4), "16x512x256 512x256x16 256"),
        ("mask r-cnn mask head", up(2), "512x256x14x14 256x256x2x2 256"),
    )


def _conv_depthwise() -> Iterator[Case]:
    yield from cases(
        "conv_depthwise",
        ("mobilenet-v1 first", depthwise(), "64x32x112x112 32x1x3x3"),
        ("mobilenet-v1 stride 2, batch 1", depthwise(2), "1x128x56x56 128x1x3x3"),
        ("mobilenet-v2 96 channels stride 2", depthwise(2), "64x96x112x112 96x1x3x3"),
        ("mobilenet-v2 144 channels", depthwise(), "32x144x56x56 144x1x3x3"),
        ("mobilenet-v3 240 channels 5x5", depthwise(1, 2), "64x240x14x14 240x1x5x5"),
        ("efficientnet-b0 240 channels 5x5", depthwise(1, 2), "32x240x28x28 240x1x5x5"),
        ("efficientnet-b0 672 channels stride 2", depthwise(2, 2), "128x672x14x14 672x1x5x5"),
        ("convnext-t stage 1 7x7", depthwise(1, 3), "32x96x56x56 96x1x7x7 96"),
        ("convnext-t stage 3 7x7, batch 1", depthwise(1, 3), "1x384x14x14 384x1x7x7 384"),
        ("convnext-b stage 2 7x7", depthwise(1, 3), "64x256x28x28 256x1x7x7 256"),
        ("conformer 31", depthwise(1, 15), "32x512x400 512x1x31 512"),
        ("mobilenet-v1 pointwise 64 to 128", conv(), "64x64x56x56 128x64x1x1"),
        ("mobilenet-v2 pointwise 96 to 24", conv(), "32x96x56x56 24x96x1x1"),
        ("efficientnet-b0 pointwise 40 to 240", conv(), "64x40x28x28 240x40x1x1"),
        ("x3d channel-wise 3x3x3", depthwise(), "8x54x16x56x56 54x1x3x3x3"),
    )


def _conv_chain() -> Iterator[Case]:
    """What stands behind a convolution in the model, as far as one region goes."""
    silu_in_norm = unbiased(1, 1, then=lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)))
    yield from cases(
        "conv_chain",
        ("resnet50 stem, norm, relu", unbiased(2, 3, then=bn_relu), "32x3x224x224 64x3x7x7" + _norm(64)),
        (
            "resnet18 layer1, norm, residual, relu",
            unbiased(1, 1, then=bn_add_relu),
            "32x64x56x56 64x64x3x3 32x64x56x56" + _norm(64),
        ),
        (
            "mobilenet-v2 depthwise, norm, relu6",
            lambda x, w, *n: batch_norm(depthwise()(x, w), *n).clamp(0, 6),
            "64x144x56x56 144x1x3x3" + _norm(144),
        ),
        (
            "efficientnet-b0 depthwise, norm, silu",
            lambda x, w, *n: F.silu(batch_norm(depthwise(1, 2)(x, w), *n)),
            "32x240x28x28 240x1x5x5" + _norm(240),
        ),
        ("stable diffusion block, norm, silu", silu_in_norm, "4x320x32x32 320x320x3x3 320 320"),
        (
            "cyclegan block, instance norm, relu",
            conv(1, 1, then=lambda x: F.instance_norm(x).relu()),
            "1x256x64x64 256x256x3x3 256",
        ),
        (
            "pix2pix encoder, instance norm, leaky relu",
            conv(2, 1, then=lambda x: F.leaky_relu(F.instance_norm(x), 0.2)),
            "4x64x128x128 128x64x4x4 128",
        ),
        (
            "unet 3d encoder, norm, relu",
            unbiased(1, 1, then=bn_relu),
            "2x32x32x64x64 64x32x3x3x3" + _norm(64),
        ),
        ("segmentation head, softmax", conv(then=lambda x: x.softmax(1)), "4x64x256x256 21x64x1x1 21"),
        (
            "mobilenet-v2 head, norm, relu6, mean",
            lambda x, w, *n: batch_norm(conv()(x, w), *n).clamp(0, 6).mean((2, 3)),
            "64x320x7x7 1280x320x1x1" + _norm(1280),
        ),
        (
            "squeezenet head, relu, mean",
            conv(then=lambda x: x.relu().mean((2, 3))),
            "32x512x13x13 1000x512x1x1 1000",
        ),
        ("dcgan last, tanh", up(2, 1, then=torch.tanh), "128x64x32x32 64x3x4x4"),
        (
            "dcgan 16 to 32, norm, relu",
            lambda x, w, *n: bn_relu(up(2, 1)(x, w), *n),
            "128x256x16x16 256x128x4x4" + _norm(128),
        ),
        (
            "wavenet gate",
            conv(1, 2, 2, then=lambda x, y: x.tanh() * y.sigmoid()),
            "8x64x4096 64x64x3 64 8x64x4096",
        ),
        (
            "unet 3d head, sigmoid",
            conv(then=torch.sigmoid),
            "1x32x64x128x128 3x32x1x1x1 3",
        ),
    )


def linear(then: Run | None = None) -> Run:
    """(x, w[, bias[, what `then` takes behind the result]])."""

    def run(x: Tensor, w: Tensor, bias: Tensor | None = None, *rest: Tensor) -> Tensor:
        made = F.linear(x, w, bias)
        return then(made, *rest) if then else made

    return run


def _product_f32() -> Iterator[Case]:
    yield from cases(
        "product_f32",
        ("llama-7b attention output", linear(), "4096x4096 4096x4096"),
        ("llama-7b up", linear(), "4096x4096 11008x4096"),
        ("llama-7b down", linear(), "4096x11008 4096x11008"),
        ("llama-13b attention output", linear(), "4096x5120 5120x5120"),
        ("llama-65b attention output", linear(), "4096x8192 8192x8192"),
        ("llama-3-8b up", linear(), "4096x4096 14336x4096"),
        ("gpt-neox-20b dense", linear(), "4096x6144 6144x6144 6144"),
        ("falcon-7b, 8192 tokens", linear(), "8192x4544 4544x4544"),
        ("gpt-j up, gelu", linear(lambda x: F.gelu(x, approximate="tanh")), "4096x4096 16384x4096 16384"),
        ("muon, one step", torch.mm, "4096x4096 4096x11008"),
        ("shampoo, two experts", torch.bmm, "2x4096x4096 2x4096x4096"),
        ("not transposed", torch.mm, "4096x4096 4096x4096"),
    )
    yield from cases(
        "product_f32",
        ("llama-7b attention output, gradient of the weight", linear(), "4096x4096 4096x4096*"),
        direction="backward",
    )


def _product_half() -> Iterator[Case]:
    gelu = linear(lambda x: F.gelu(x, approximate="tanh"))
    yield from cases(
        "product_half",
        ("llama-7b attention output", linear(), "2048x4096:bf16 4096x4096:bf16"),
        (
            "llama-7b gate",
            lambda x, w, y: F.silu(F.linear(x, w)) * y,
            "2048x4096:bf16 11008x4096:bf16 2048x11008:bf16",
        ),
        ("llama-7b down, one token", linear(), "1x11008:bf16 4096x11008:bf16"),
        ("llama-3-8b keys, 16 tokens", linear(), "16x4096:bf16 1024x4096:bf16"),
        ("gpt2 up, gelu", gelu, "4096x768:bf16 3072x768:bf16 3072:bf16"),
        ("bert-base queries", linear(), "3072x768:f16 768x768:f16 768:f16"),
        ("bert-large down, residual", linear(torch.add), "4096x4096:f16 1024x4096:f16 1024:f16 4096x1024:f16"),
        ("vit-b/16 up, gelu", linear(F.gelu), "12608x768:f16 3072x768:f16 3072:f16"),
        ("t5-base up, relu", lambda x, w: F.linear(x, w).relu(), "8192x768:bf16 3072x768:bf16"),
        ("gpt2 scores", lambda q, k: torch.bmm(q, k.mT) * 0.125, "96x512x64:bf16 96x512x64:bf16"),
        ("gpt2 values", torch.bmm, "96x512x512:bf16 96x512x64:bf16"),
        ("mixtral experts", torch.bmm, "8x512x4096:bf16 8x4096x1024:bf16"),
        ("clip logits", lambda a, b, s: a @ b.mT * s.exp(), "4096x512:f16 4096x512:f16 1:f16"),
    )


def product_cases() -> Iterator[Case]:
    for part in (_conv2d, _conv3d, _conv_transposed, _conv_depthwise, _conv_chain, _product_f32, _product_half):
        yield from part()
