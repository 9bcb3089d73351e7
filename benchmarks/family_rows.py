"""What the families' benchmark measures, part three: losses, long rows, rotary embedding, attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.family_cases import Case, cases


def focal(x: Tensor, target: Tensor) -> Tensor:
    """RetinaNet: gamma 2, alpha 0.25."""
    p = x.sigmoid()
    entropy = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    miss = p * (1 - target) + (1 - p) * target
    return ((0.25 * target + 0.75 * (1 - target)) * entropy * miss * miss).sum()


def dice(x: Tensor, target: Tensor) -> Tensor:
    p, axes = x.sigmoid(), tuple(range(2, x.dim()))
    return 1 - ((2 * (p * target).sum(axes) + 1) / (p.sum(axes) + target.sum(axes) + 1)).mean()


def distilled(student: Tensor, teacher: Tensor) -> Tensor:
    """At temperature 4."""
    return F.kl_div((student / 4).log_softmax(-1), (teacher / 4).softmax(-1), reduction="batchmean") * 16


def charbonnier(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt((x - y).pow(2) + 1e-6).mean()


def simsiam(p: Tensor, z: Tensor) -> Tensor:
    return -F.cosine_similarity(p, z, dim=-1).mean()


def kl_normal(mean: Tensor, log_var: Tensor) -> Tensor:
    return -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()


def _loss() -> Iterator[Case]:
    yield from cases(
        "loss",
        ("gpt2 tokens", F.cross_entropy, "4096x50257 4096:i64"),
        ("imagenet classes", F.cross_entropy, "1024x1000 1024:i64"),
        ("retinanet focal", focal, "8x120087x20 8x120087x20"),
        ("unet 3d dice", dice, "2x3x64x128x128 2x3x64x128x128"),
        ("distillation on imagenet", distilled, "1024x1000 1024x1000"),
        ("diffusion error", F.mse_loss, "64x4x64x64 64x4x64x64"),
        ("super-resolution charbonnier", charbonnier, "16x3x256x256 16x3x256x256"),
        ("dqn huber", F.smooth_l1_loss, "65536 65536"),
        ("variational autoencoder", kl_normal, "4096x512 4096x512"),
        ("facenet triplets", F.triplet_margin_loss, "8192x512 8192x512 8192x512"),
        ("simsiam", simsiam, "4096x2048 4096x2048"),
        ("multi-label", F.binary_cross_entropy_with_logits, "4096x1000 4096x1000"),
    )
    yield from cases("loss", ("simsiam", simsiam, "2048x2048* 2048x2048"), direction="backward")
    yield from cases(
        "loss",
        ("bert tokens", F.cross_entropy, "1024x30522* 1024:i64"),
        (
            "imagenet classes, smoothed",
            lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
            "512x1000* 512:i64",
        ),
        direction="backward",
        device="cpu",  # meta tensors lose this gradient
    )


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-7)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """In float32, as Llama's."""
    y = x.float()
    return weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _rows_long() -> Iterator[Case]:
    yield from cases(
        "rows_long",
        ("llama-3 softmax", lambda x: x.softmax(-1), "256x128256"),
        ("llama-3 softmax, batch 1", lambda x: x.softmax(-1), "1x128256"),
        ("qwen-2 log softmax", lambda x: x.log_softmax(-1), "128x151936:bf16"),
        ("gemma-2 capped softmax", lambda x: (30 * torch.tanh(x / 30)).softmax(-1), "64x256000"),
        ("mt5 logsumexp", lambda x: x.logsumexp(-1), "256x250112"),
        ("gpt2 softmax at temperature", lambda x: (x / 0.7).softmax(-1), "512x50257"),
        ("llama-3-405b rms norm", rms_norm, "512x16384:bf16 16384:bf16"),
        ("llama-3-405b inner rms norm", rms_norm, "128x53248:bf16 53248:bf16"),
        ("layer norm over a feature map", layer_norm, "16x64x128x128 64x128x128 64x128x128"),
        ("attention over 65,536 keys", lambda x: x.softmax(-1), "512x65536"),
        (
            "reads of a wave, standardised",
            lambda x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-7),
            "32x480000",
        ),
        (
            "weights standardised",
            lambda w: (w - w.mean(-1, True)) * torch.rsqrt(w.var(-1, keepdim=True) + 1e-8),
            "2048x18432",
        ),
        ("greedy token of llama-3", lambda x: x.argmax(-1), "256x128256"),
    )
    yield from cases(
        "rows_long",
        ("llama-3 log softmax", lambda x: x.log_softmax(-1), "128x128256*"),
        direction="backward",
    )


def rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


def rotary_of_heads(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads stand behind the positions in memory, as a linear layer leaves them."""
    return rotary(x.transpose(1, 2), cos, sin)


def rotary_both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotary(q, cos, sin), rotary(k, cos, sin)


def rotary_from_angles(x: Tensor, positions: Tensor, rates: Tensor) -> Tensor:
    angle = positions[:, None] * rates
    angle = torch.cat([angle, angle], -1)
    return rotary(x, angle.cos(), angle.sin())


def rotary_partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """GPT-NeoX: the first part of a head only."""
    turned = cos.shape[-1]
    return torch.cat([rotary(x[..., :turned], cos, sin), x[..., turned:]], -1)


def rotary_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """GPT-J: neighbours are a pair; cos and sin of half a head's width."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def _rotary_embedding() -> Iterator[Case]:
    yield from cases(
        "rotary_embedding",
        ("llama-7b", rotary, "2x32x2048x128 2048x128 2048x128"),
        ("llama-7b bf16", rotary, "4x32x2048x128:bf16 2048x128:bf16 2048x128:bf16"),
        ("llama-7b, one token", rotary, "64x32x1x128:bf16 1x128:bf16 1x128:bf16"),
        ("llama-3-8b, heads behind positions", rotary_of_heads, "1x8192x32x128:bf16 8192x128:bf16 8192x128:bf16"),
        ("mistral keys", rotary_of_heads, "4x4096x8x128:bf16 4096x128:bf16 4096x128:bf16"),
        ("qwen-2 queries and keys", rotary_both, "2x28x2048x128 2x4x2048x128 2048x128 2048x128"),
        ("from angles", rotary_from_angles, "2x16x1024x64 1024 32"),
        ("gpt-neox-20b, a quarter", rotary_partial, "2x64x2048x96 2048x24 2048x24"),
        ("pythia-1b, a quarter", rotary_partial, "8x8x1024x256:f16 1024x64:f16 1024x64:f16"),
        ("gpt-j", rotary_interleaved, "2x16x2048x64 2048x32 2048x32"),
        ("roformer", rotary_interleaved, "16x12x512x64 512x32 512x32"),
    )
    yield from cases(
        "rotary_embedding",
        ("llama-7b", rotary, "2x32x1024x128* 1024x128 1024x128"),
        ("llama-7b bf16", rotary, "2x32x4096x128:bf16* 4096x128:bf16 4096x128:bf16"),
        direction="backward",
    )


def causal(scores: Tensor, scale: float, window: int = 0) -> Tensor:
    places = torch.arange(scores.shape[-1], device=scores.device)
    behind = places[:, None] - places[None, :]
    seen = (behind >= 0) & (behind < window) if window else behind >= 0
    return (scores * scale).masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)


def alibi(scores: Tensor, slopes: Tensor) -> Tensor:
    places = torch.arange(scores.shape[-1], device=scores.device)
    distance = (places[None, :] - places[:, None]).to(scores.dtype)
    return (scores * 0.125 + slopes[:, None, None] * distance).softmax(-1)


def shifted_windows(scores: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """Swin: scores [windows of all images, heads, places, places], a mask a window."""
    split = scores.view(-1, mask.shape[0], *scores.shape[1:]) + bias
    return (split + mask[None, :, None]).softmax(-1).view(scores.shape)


def capped(scores: Tensor, mask: Tensor) -> Tensor:
    """Gemma 2."""
    return (torch.tanh(scores * 0.0625 / 50) * 50 + mask).softmax(-1)


def in_float(scores: Tensor, mask: Tensor) -> Tensor:
    return (scores * 0.088388 + mask).float().softmax(-1).to(scores.dtype)


def _attention_piece() -> Iterator[Case]:
    yield from cases(
        "attention_piece",
        ("gpt2 causal softmax", lambda x: causal(x, 0.125), "4x12x512x512"),
        ("gpt2 causal softmax, batch 1", lambda x: causal(x, 0.125), "1x12x1024x1024"),
        ("bert masked softmax", lambda x, m: (x * 0.125 + m).softmax(-1), "8x12x384x384 8x1x1x384"),
        ("llama-7b masked softmax in float", in_float, "1x32x1024x1024:bf16 1x1x1024x1024:bf16"),
        ("mistral sliding window", lambda x: causal(x, 0.0884, 256), "1x32x1024x1024"),
        ("mpt alibi", alibi, "2x32x512x512 32"),
        ("t5 relative bias", lambda x, b: (x + b).softmax(-1), "16x12x512x512 1x12x512x512"),
        ("swin-t stage 1 shifted windows", shifted_windows, "2048x3x49x49 3x49x49 64x49x49"),
        ("gemma-2 soft cap", capped, "1x16x1024x1024 1x1x1024x1024"),
        ("vit-b/16 softmax", lambda x: (x * 0.125).softmax(-1), "64x12x197x197"),
        ("sigmoid attention", lambda x: (x * 0.125 - 7.0).sigmoid(), "4x12x1024x1024"),
        ("decoding, 8192 keys", lambda x, m: (x * 0.088388 + m).softmax(-1), "32x32x1x8192 32x1x1x8192"),
    )
    yield from cases(
        "attention_piece",
        ("gpt2 causal softmax", lambda x: causal(x, 0.125), "4x12x384x384*"),
        ("bert masked softmax", lambda x, m: (x * 0.125 + m).softmax(-1), "8x12x256x256* 8x1x1x256"),
        direction="backward",
    )


def row_cases() -> Iterator[Case]:
    for part in (_loss, _rows_long, _rotary_embedding, _attention_piece):
        yield from part()
