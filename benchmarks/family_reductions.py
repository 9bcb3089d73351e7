"""What the families' benchmark measures, part two: pools, norms, scans, reductions."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.family_cases import Case, Run, cases


def max_pool(window: object, stride: object = None, padding: object = 0) -> Run:
    calls = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
    return lambda x: calls[x.dim() - 3](x, window, stride, padding)


def avg_pool(window: object, stride: object = None, padding: object = 0) -> Run:
    calls = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    return lambda x: calls[x.dim() - 3](x, window, stride, padding)


def _pool() -> Iterator[Case]:
    yield from cases(
        "pool",
        ("resnet50 stem", max_pool(3, 2, 1), "64x64x112x112"),
        ("resnet50 stem, batch 1", max_pool(3, 2, 1), "1x64x112x112"),
        ("vgg16 pool 1", max_pool(2), "32x64x224x224"),
        ("unet 2d pool 3", max_pool(2), "4x256x140x140"),
        ("densenet121 transition 1", avg_pool(2), "64x128x56x56"),
        ("inception-v3 average branch", avg_pool(3, 1, 1), "32x192x35x35"),
        ("inception-v3 stem", max_pool(3, 2), "32x192x71x71"),
        ("yolo-v4 spp 5", max_pool(5, 1, 2), "8x512x19x19"),
        ("yolo-v4 spp 13", max_pool(13, 1, 6), "8x512x19x19"),
        ("c3d pool 1", max_pool((1, 2, 2)), "8x64x16x112x112"),
        ("i3d pool 2a", max_pool((1, 3, 3), (1, 2, 2), (0, 1, 1)), "4x64x8x112x112"),
        ("unet 3d pool 1", max_pool(2), "2x64x64x64x64"),
        ("m5 audio pool", max_pool(4), "128x128x1998"),
        ("resnet-d shortcut", avg_pool(2), "32x512x28x28"),
        ("poolformer mixer", lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x, "32x64x56x56"),
    )


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, True)


def channel_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ConvNeXt's LayerNorm over the channels of NCHW."""
    mean = x.mean(1, keepdim=True)
    var = (x - mean).pow(2).mean(1, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-6) * weight[:, None, None] + bias[:, None, None]


def group_norm(groups: int, silu: bool = False) -> Run:
    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        made = F.group_norm(x, groups, weight, bias)
        return F.silu(made) if silu else made

    return run


def affine_instance_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, None, None, weight, bias)


def adain(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return F.instance_norm(x) * std[:, :, None, None] + mean[:, :, None, None]


def _norm_nchw() -> Iterator[Case]:
    yield from cases(
        "norm_nchw",
        ("convnext-t stage 1", channel_norm, "32x96x56x56 96 96"),
        ("convnext-b stage 3, batch 1", channel_norm, "1x512x14x14 512 512"),
        ("stable diffusion first block, silu", group_norm(32, True), "4x320x64x64 320 320"),
        ("stable diffusion decoder, silu", group_norm(32, True), "1x128x512x512 128 128"),
        ("detection head, 32 groups", group_norm(32), "8x256x100x136 256 256"),
        ("cyclegan block", lambda x: F.instance_norm(x).relu(), "1x256x64x64"),
        (
            "style transfer, first layer",
            lambda x, w, b: F.instance_norm(x, None, None, w, b),
            "8x32x256x256 32 32",
        ),
        ("adain", adain, "8x512x32x32 8x512 8x512"),
        ("unet 3d, 8 groups", group_norm(8), "2x64x32x64x64 64 64"),
        ("unet 3d instance norm, leaky relu", lambda x: F.leaky_relu(F.instance_norm(x), 0.01), "2x32x64x64x64"),
        ("superpoint descriptors", lambda x: F.normalize(x, dim=1), "16x256x60x80"),
    )
    yield from cases(
        "norm_nchw",
        ("resnet50 layer1 batch norm", batch_norm, "32x256x56x56* 256* 256*"),
        ("resnet50 layer4 batch norm", batch_norm, "64x2048x7x7* 2048* 2048*"),
        ("dcgan generator batch norm", batch_norm, "128x128x32x32* 128* 128*"),
        direction="forward",
    )
    yield from cases(
        "norm_nchw",
        ("resnet50 layer2 batch norm", batch_norm, "32x512x28x28* 512* 512*"),
        ("stable diffusion second block", group_norm(32), "4x640x32x32* 640* 640*"),
        direction="backward",
    )


def nerf_weights(density: Tensor, delta: Tensor) -> Tensor:
    """Volume rendering: opacity of each sample times what light is left before it."""
    left = torch.exp(-density.relu() * delta)
    passed = torch.cumprod(left + 1e-10, -1)
    return (1 - left) * passed


def nerf_cdf(weights: Tensor) -> Tensor:
    mass = weights.abs() + 1e-5
    return (mass / mass.sum(-1, keepdim=True)).cumsum(-1)


def segment_decay(a: Tensor) -> Tensor:
    """Mamba-2: exp of sums between two positions of a chunk."""
    total = a.cumsum(-1)
    later = torch.ones(a.shape[-1], a.shape[-1], device=a.device, dtype=torch.bool).tril()
    return torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(~later, -math.inf))


def running_mean(x: Tensor) -> Tensor:
    """Average attention network."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]


def position_ids(mask: Tensor) -> Tensor:
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)


def kept_mass(logits: Tensor) -> Tensor:
    """Top-p: probability mass before each of the sorted tokens."""
    p = logits.softmax(-1)
    return (p.cumsum(-1) - p > 0.9).logical_not() * p


def _scan() -> Iterator[Case]:
    yield from cases(
        "scan",
        ("nerf weights, coarse", nerf_weights, "4096x64 4096x64"),
        ("nerf weights, fine", nerf_weights, "65536x192 65536x192"),
        (
            "nerf cdf",
            lambda w: torch.cumsum((w.abs() + 1e-5) / (w.abs() + 1e-5).sum(-1, keepdim=True), -1),
            "8192x128",
        ),
        ("mamba-2 decay of chunks", segment_decay, "4x24x16x128"),
        ("gated linear attention, chunks of 64", lambda g: (F.logsigmoid(g) / 16).cumsum(-2), "4x16x32x64x64"),
        ("average attention network", running_mean, "16x512x512"),
        ("opt position ids", position_ids, "64x2048:i64"),
        ("switch transformer places", lambda m: m.cumsum(0) * m - 1, "8192x64"),
        ("top-p of gpt2", kept_mass, "64x50257"),
        ("top-p of llama-3", kept_mass, "8x128256"),
        ("returns to go", lambda r: r.flip(-1).cumsum(-1).flip(-1), "1024x1000"),
        ("fastspeech durations", lambda d: d.cumsum(-1) - d, "128x512:i64"),
        ("linear attention normaliser", lambda q, k: (q * k.cumsum(-2)).sum(-1), "8x12x1024x64 8x12x1024x64"),
        ("survival of hazards", lambda h: (1 - h.sigmoid()).cumprod(-1), "4096x120"),
    )


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    return (x * mask[..., None]).sum(1) / mask.sum(1)[:, None].clamp(min=1e-9)


def _reduction() -> Iterator[Case]:
    yield from cases(
        "reduction",
        ("squeeze-and-excitation, efficientnet-b0", lambda x: x.mean((2, 3)), "64x240x28x28"),
        ("global mean of resnet50, batch 1", lambda x: x.mean((2, 3)), "1x2048x7x7"),
        ("x3d mean over space and time", lambda x: x.mean((2, 3, 4)), "8x432x16x7x7"),
        ("bias gradient of gpt2", lambda g: g.sum(0), "8192x3072"),
        ("bias gradient of a convolution", lambda g: g.sum((0, 2, 3)), "32x256x56x56"),
        ("gradient norm of a weight", lambda g: (g * g).sum(), "4096x11008"),
        ("int8 scales by row", lambda w: w.abs().amax(-1) / 127, "11008x4096"),
        ("int8 scales by column", lambda w: w.abs().amax(0) / 127, "4096x11008"),
        ("greedy token of llama", lambda x: x.argmax(-1), "64x32000"),
        ("cbam spatial attention", lambda x: torch.cat([x.mean(1, True), x.amax(1, True)], 1), "32x256x56x56"),
        ("router z loss", lambda x: x.logsumexp(-1).pow(2).mean(), "16384x64"),
        ("barlow twins statistics", lambda z: (z - z.mean(0)) / (z.var(0) + 1e-5).sqrt(), "2048x8192"),
        (
            "sentence embedding",
            lambda x, m: (x * m[..., None]).sum(1) / m.sum(1)[:, None].clamp(min=1e-9),
            "64x384x768 64x384",
        ),
        ("adafactor rows", lambda g: (g * g + 1e-30).mean(-1), "8192x8192"),
    )


def reduction_cases() -> Iterator[Case]:
    for part in (_pool, _norm_nchw, _scan, _reduction):
        yield from part()
