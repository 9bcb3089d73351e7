"""Random small models in the manner of real ones, so that the partitioner cuts training regions out of them.

    make_model(seed) -> module, inputs

Token models (norms of several kinds, gated and plain MLPs, attention written out, rotary, gains, soft caps), image
models (convolutions with batch, group, instance and channel norms, squeeze-excitation, pooling, upsampling,
skips), dense layers over vectors and heads (losses of many kinds) are put together at random from parts, at tiny
sizes: structures.py gives the regions their sizes. The models of the benchmarks are not in here, and structures
held out are skipped anyway.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu,
    F.gelu,
    lambda x: F.gelu(x, approximate="tanh"),
    F.silu,
    F.mish,
    F.softplus,
    F.elu,
    torch.tanh,
    torch.sigmoid,
    F.hardswish,
    F.leaky_relu,
    lambda x: F.relu(x) ** 2,
    lambda x: x * torch.sigmoid(1.702 * x),
    lambda x: torch.tanh(x / 30.0) * 30.0,
    F.relu6,
    F.softsign,
    F.selu,
    F.logsigmoid,
)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16)


class RMS(nn.Module):
    """Root mean square norm as models write it, in float32 where the input is half."""

    def __init__(self, width: int, upcast: bool, shift: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) * 0.1 + (0.0 if shift else 1.0))
        self.upcast, self.shift = upcast, shift

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() if self.upcast else x
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        gain = 1.0 + self.weight.to(y.dtype) if self.shift else self.weight.to(y.dtype)
        return (y * gain).to(x.dtype)


class Whole(nn.Module):
    """Norm of the whole row by hand: mean and mean of squares, or standard deviation."""

    def __init__(self, width: int, deviation: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.deviation = deviation

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        if self.deviation:
            return self.weight * (x - mean) / (x.std(-1, keepdim=True) + 1e-6) + self.bias
        return self.weight * (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + 1e-6) + self.bias


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of NCHW."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        y = (x - mean) / torch.sqrt((x - mean).pow(2).mean(1, keepdim=True) + 1e-6)
        return y * self.weight[:, None, None] + self.bias[:, None, None]


def token_norm(width: int, rng: random.Random) -> nn.Module:
    made: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(width),
        lambda: nn.LayerNorm(width, elementwise_affine=False),
        lambda: nn.LayerNorm(width, bias=False),
        lambda: RMS(width, True, False),
        lambda: RMS(width, False, False),
        lambda: RMS(width, True, True),
        lambda: nn.RMSNorm(width),
        lambda: Whole(width, False),
        lambda: Whole(width, True),
        nn.Identity,
    ]
    return rng.choice(made)()


class Mlp(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        inner = width * rng.choice((2, 3, 4))
        bias = rng.random() < 0.6
        self.gated = rng.random() < 0.5
        self.act = rng.choice(ACTIVATIONS)
        self.up, self.gate = nn.Linear(width, inner, bias), nn.Linear(width, inner, bias)
        self.down = nn.Linear(inner, width, bias)
        self.inner = token_norm(inner, rng) if rng.random() < 0.2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.up(x))
        z: Tensor = self.down(self.inner(y * self.gate(x) if self.gated else y))
        return z


class Attention(nn.Module):
    """Softmax written out, with the variations that models use."""

    def __init__(self, width: int, heads: int, rng: random.Random) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, rng.random() < 0.5)
        self.out = nn.Linear(width, width, rng.random() < 0.5)
        self.norm_q = token_norm(width // heads, rng) if rng.random() < 0.3 else nn.Identity()
        self.norm_k = token_norm(width // heads, rng) if rng.random() < 0.3 else nn.Identity()
        self.rotary, self.causal = rng.random() < 0.4, rng.random() < 0.4
        self.cap, self.upcast, self.bias = rng.random() < 0.2, rng.random() < 0.4, rng.random() < 0.25
        self.gate = nn.Linear(width, width) if rng.random() < 0.2 else None

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        q, k = self.norm_q(q), self.norm_k(k)
        if self.rotary:
            q, k = _rotate(q), _rotate(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads)
        if self.cap:
            scores = 50.0 * torch.tanh(scores / 50.0)
        place = torch.arange(t, device=x.device)
        if self.bias:
            scores = scores - 0.1 * (place[:, None] - place[None]).abs().to(scores.dtype)
        if self.causal:
            scores = scores.masked_fill(place[None] > place[:, None], -1e4)
        weights = torch.softmax(scores.float() if self.upcast else scores, -1).to(x.dtype)
        y = (weights @ v).transpose(1, 2).reshape(b, t, d)
        y = y * torch.sigmoid(self.gate(x)) if self.gate is not None else y
        z: Tensor = self.out(y)
        return z


def _rotate(x: Tensor) -> Tensor:
    t, h = x.shape[-2], x.shape[-1] // 2
    rate = 10000.0 ** (-torch.arange(h, device=x.device, dtype=torch.float32) / h)
    angle = torch.arange(t, device=x.device, dtype=torch.float32)[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :h], x[..., h:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Block(nn.Module):
    """Norm, mixing, residual; norm, MLP, residual: before, after, both or in parallel."""

    def __init__(self, width: int, heads: int, rng: random.Random) -> None:
        super().__init__()
        self.norms = nn.ModuleList(token_norm(width, rng) for _ in range(4))
        self.mix = Attention(width, heads, rng) if rng.random() < 0.6 else nn.Linear(width, width)
        self.mlp = Mlp(width, rng)
        self.order = rng.choice(("pre", "post", "both", "parallel"))
        self.gain = nn.Parameter(torch.full((width,), 0.1)) if rng.random() < 0.3 else None
        self.scale = rng.choice((1.0, 1.0, 0.5, 0.7071))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norms
        if self.order == "parallel":
            y: Tensor = n[0](x)
            return x + self._gained(self.mix(y) + self.mlp(y))
        if self.order == "post":
            x = n[0](x + self._gained(self.mix(x)))
            z: Tensor = n[1](x + self._gained(self.mlp(x)))
            return z
        for norm, after, part in ((n[0], n[2], self.mix), (n[1], n[3], self.mlp)):
            y = part(norm(x))
            x = x * self.scale + self._gained(after(y) if self.order == "both" else y)
        return x

    def _gained(self, x: Tensor) -> Tensor:
        return x if self.gain is None else x * self.gain


class Tokens(nn.Module):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        heads = rng.choice((2, 4))
        width = heads * rng.choice((8, 12, 16))
        self.embed, self.place = nn.Embedding(50, width), nn.Embedding(64, width)
        self.kind = nn.Embedding(3, width)
        self.blocks = nn.Sequential(*(Block(width, heads, rng) for _ in range(rng.choice((1, 2)))))
        self.norm, self.head = token_norm(width, rng), nn.Linear(width, rng.choice((50, 51)), rng.random() < 0.5)
        self.places, self.kinds, self.scaled = rng.random() < 0.5, rng.random() < 0.2, rng.random() < 0.3
        self.loss = make_loss(rng)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x * math.sqrt(x.shape[-1]) if self.scaled else x
        if self.places:
            x = x + self.place(torch.arange(ids.shape[1], device=ids.device))
        if self.kinds:
            x = x + self.kind(labels % 3)
        logits = self.head(self.norm(self.blocks(x)))
        return self.loss(logits.flatten(0, 1), labels.flatten())


def image_norm(width: int, rng: random.Random) -> nn.Module:
    made: list[Callable[[], nn.Module]] = [
        lambda: nn.BatchNorm2d(width),
        lambda: nn.BatchNorm2d(width),
        lambda: nn.GroupNorm(rng.choice((1, 2, 4)), width),
        lambda: nn.InstanceNorm2d(width, affine=rng.random() < 0.5),
        lambda: ChannelNorm(width),
        nn.Identity,
    ]
    return rng.choice(made)()


class ImageBlock(nn.Module):
    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, 1, 1, bias=rng.random() < 0.4)
        self.second = nn.Conv2d(width, width, rng.choice((1, 3)), 1, "same", groups=rng.choice((1, width)))
        self.norms = nn.ModuleList(image_norm(width, rng) for _ in range(2))
        self.acts = (rng.choice(ACTIVATIONS), rng.choice(ACTIVATIONS))
        self.squeeze = nn.Linear(width, width) if rng.random() < 0.3 else None
        self.pre, self.residual = rng.random() < 0.4, rng.random() < 0.7
        self.gain = nn.Parameter(torch.full((width, 1, 1), 0.5)) if rng.random() < 0.25 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.pre:
            y = self.first(self.acts[0](self.norms[0](x)))
            y = self.second(self.acts[1](self.norms[1](y)))
        else:
            y = self.acts[0](self.norms[0](self.first(x)))
            y = self.norms[1](self.second(y))
        if self.squeeze is not None:
            y = y * torch.sigmoid(self.squeeze(y.mean((2, 3))))[:, :, None, None]
        y = y if self.gain is None else y * self.gain
        y = x + y if self.residual else y
        z: Tensor = y if self.pre else self.acts[1](y)
        return z


class Images(nn.Module):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        width = rng.choice((8, 12, 16))
        self.stem = nn.Conv2d(3, width, 3, rng.choice((1, 2)), 1)
        self.blocks = nn.ModuleList(ImageBlock(width, rng) for _ in range(2))
        self.between = rng.choice(("max", "avg", "none", "up", "concat"))
        self.merge = nn.Conv2d(2 * width, width, 1)
        self.head, self.loss = nn.Linear(width, 10), make_loss(rng)
        self.dense = nn.Conv2d(width, 3, 1) if rng.random() < 0.4 else None

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.blocks[0](x)
        match self.between:
            case "max":
                y = F.max_pool2d(y, 3, 2, 1)
            case "avg":
                y = F.avg_pool2d(y, 2)
            case "up":
                y = F.interpolate(y, scale_factor=2.0, mode="nearest")
            case "concat":
                y = self.merge(torch.cat((x, y), 1))
        y = self.blocks[1](y)
        if self.dense is not None:
            picture = self.dense(y)
            loss: Tensor = ((torch.tanh(picture) - 0.1) ** 2).mean() + 0.01 * picture.abs().mean()
            return loss
        return self.loss(self.head(y.mean((2, 3))), labels)


class Vectors(nn.Module):
    """Dense layers over a batch of vectors: norms over rows and over the batch, gates, pairs of rolled rows."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        width = rng.choice((12, 16, 24))
        self.layers = nn.ModuleList(
            nn.Linear(width, width, rng.random() < 0.5) for _ in range(rng.choice((1, 2, 3)))
        )
        self.norms = nn.ModuleList(self._norm(width, rng) for _ in self.layers)
        self.acts = [rng.choice(ACTIVATIONS) for _ in self.layers]
        self.last, self.head = token_norm(width, rng), nn.Linear(width, 10, rng.random() < 0.5)
        self.rolled, self.residual = rng.random() < 0.5, rng.random() < 0.4
        self.clip, self.scale = rng.choice((0.0, 0.0, 1.0)), rng.choice((1.0, 0.1, 2.0))
        self.loss = make_loss(rng)

    def _norm(self, width: int, rng: random.Random) -> nn.Module:
        return rng.choice((nn.BatchNorm1d(width), nn.BatchNorm1d(width, affine=False), token_norm(width, rng)))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for layer, norm, act in zip(self.layers, self.norms, self.acts, strict=True):
            y = act(norm(layer(x)))
            x = x + y if self.residual else y
        x = self.last(x)
        if self.clip:
            x = x.clamp(-self.clip, self.clip)
        loss = self.loss(self.head(x) * self.scale, labels)
        if not self.rolled:
            return loss
        near = F.cosine_similarity(x, x.roll(1, 0), dim=-1)
        return loss + 0.1 * near.mean() + F.huber_loss(torch.tanh(x), torch.zeros_like(x))


Loss = Callable[[Tensor, Tensor], Tensor]


def make_loss(rng: random.Random) -> Loss:
    smoothing = rng.choice((0.0, 0.0, 0.1))
    plain: Loss = lambda x, y: F.cross_entropy(x, y, label_smoothing=smoothing)  # noqa: E731
    upcast: Loss = lambda x, y: F.cross_entropy(x.float(), y)  # noqa: E731
    return rng.choice(
        (plain, upcast, _z_loss, _focal, _binary, _distilled, _margin, _divergence, _entropy, _hinge)
    )


def _z_loss(x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), y) + 1e-4 * torch.logsumexp(x.float(), -1).pow(2).mean()


def _focal(x: Tensor, y: Tensor) -> Tensor:
    log_p = F.log_softmax(x, -1).gather(-1, y[:, None])[:, 0]
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def _binary(x: Tensor, y: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, F.one_hot(y, x.shape[-1]).to(x.dtype))


def _distilled(x: Tensor, y: Tensor) -> Tensor:
    teacher = torch.softmax(x.detach() / 2.0, -1)
    return (teacher * (teacher.clamp_min(1e-6).log() - F.log_softmax(x / 2.0, -1))).sum(-1).mean()


def _margin(x: Tensor, y: Tensor) -> Tensor:
    unit = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return F.smooth_l1_loss(unit, F.one_hot(y, x.shape[-1]).to(x.dtype)) + F.relu(1.0 - x.amax(-1)).mean()


def _divergence(x: Tensor, y: Tensor) -> Tensor:
    target = torch.softmax(x.detach() * 0.5, -1)
    return F.kl_div(F.log_softmax(x, -1), target, reduction="batchmean") + F.cross_entropy(x, y)


def _entropy(x: Tensor, y: Tensor) -> Tensor:
    p = torch.softmax(x.float(), -1)
    loss: Tensor = F.nll_loss(p.clamp_min(1e-9).log(), y) - 0.01 * torch.special.entr(p).sum(-1).mean()
    return loss


def _hinge(x: Tensor, y: Tensor) -> Tensor:
    return F.multi_margin_loss(x.float(), y) + 1e-3 * x.float().std(-1).mean()


def make_model(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A module in training mode whose call gives a loss, and its inputs, on the CPU."""
    rng = random.Random(f"model {seed}")
    torch.manual_seed(seed)
    dtype = rng.choice(DTYPES)
    kind = rng.random()
    if kind < 0.2:
        rows = rng.choice((6, 8, 12))
        vectors = Vectors(rng)
        x = torch.randn(rows, vectors.head.in_features)
        return vectors.to(dtype), (x.to(dtype), torch.randint(0, 10, (rows,)))
    if kind < 0.65:
        batch, length = rng.choice((2, 3)), rng.choice((8, 16, 24))
        ids = torch.randint(0, 50, (batch, length))
        return Tokens(rng).to(dtype), (ids, ids.roll(1, 1))
    side = rng.choice((8, 12, 16))
    images = torch.randn(2, 3, side, side).to(dtype)
    return Images(rng).to(dtype), (images, torch.randint(0, 10, (2,)))
