"""Random small models around what a trained model still wrote wrongly, each put together from many forms.

    make_hard_model(seed) -> module, inputs

A model is three chains side by side: an image upsampled, joined with a skip and normed; two norms joined; queries
and keys turned by rotary tables, whole or in part; losses of shifted labels; several losses in one number; scans;
pooling; embeddings with their norm; layers along either axis, so that tensors meet that lie turned. Measured on
the seventh session's model: 60 of 79 held-out programs with a wrong reply in eight, and its worst families, are of
these kinds, most of which were under 1% of what was drawn (labels shifted by padding 0.02%, running products
0.05%, scans of integers and windows beside a plain axis none); on the ninth's: gradients of turned keys (two of
four programs have no right reply; 0.2% of what was drawn), tensors that lie turned (0.66 of the replies right).
structures.py cuts regions out and sizes them. Patterns that are held out are skipped there.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cudal1_trainer.tasks.architectures import ACTIVATIONS, Loss, image_norm, make_loss, token_norm
from cudal1_trainer.tasks.place_models import Embedded, Made, rotated
from cudal1_trainer.tasks.product_models import (
    AVG_POOL,
    BATCH_NORM,
    DTYPES,
    MAX_POOL,
    Beside,
    Chain,
    Chains,
    Step,
    image_step,
    row_step,
)

VOCABULARY = 40
IGNORED = -100
PROJECTED = 6  # columns of what layers make of turned queries, and of keys


class Other(nn.Module):
    """Joins a second tensor of the same shape that has a gradient, after steps of its own."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], step: Step | None = None) -> None:
        super().__init__()
        self.join, self.step = join, step or nn.Identity()
        self.register_parameter("other", None)

    other: nn.Parameter

    def forward(self, x: Tensor) -> Tensor:
        if self.other is None:
            self.other = nn.Parameter(torch.randn_like(x))
        return self.join(x, self.step(self.other))


def make_hard_model(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Three chains of one dtype and their inputs, on the CPU."""
    rng = random.Random(f"hard model {seed}")
    torch.manual_seed(seed)
    dtype = rng.choice(DTYPES)
    makers = (
        *(_upsampled, _two_norms, _turned, _shifted, _several_losses),
        *(_scanned, _counted, _pooled, _looked_up, _crossed),
    )
    made = [make(rng) for make in rng.choices(makers, (3, 3, 6, 5, 4, 2, 1, 6, 5, 4), k=3)]
    model = Chains([chain.to(dtype) for chain, _ in made])
    inputs = tuple(x.to(dtype).requires_grad_() if x.is_floating_point() else x for _, x in made)
    with torch.no_grad():
        model(*inputs)  # gives the tensors beside their shapes
    return model, inputs


def _few(rng: random.Random, step: Callable[[], list[Step]], counts: tuple[int, ...] = (0, 0, 1, 2)) -> list[Step]:
    return [s for _ in range(rng.choice(counts)) for s in step()]


def _image(rng: random.Random, rank: int, width: int) -> Tensor:
    side = rng.choice((6, 8, 12)) if rank < 3 else 6
    return torch.randn(rng.choice((2, 3)), width, *[side + i for i in range(rank)])


def _upsampled(rng: random.Random) -> Made:
    """Nearest places, a skip that is added, scaled or beside it, a norm over groups, an activation."""
    rank, width, scale = rng.choice((1, 2, 2, 2, 3)), rng.choice((4, 6, 8)), rng.choice((2, 2, 3))
    up: Step = lambda x: F.interpolate(x, scale_factor=float(scale), mode="nearest")  # noqa: E731
    sized: Step = lambda x: F.interpolate(x, size=[scale * n for n in x.shape[2:]])  # noqa: E731
    gate = lambda x, y: x * torch.sigmoid(y)  # noqa: E731
    steps = [*_few(rng, lambda: image_step(width, rank, rng)), rng.choice((up, up, sized))]
    joins = (torch.add, torch.add, torch.add, torch.sub, gate, torch.maximum, torch.mul)
    steps += [Other(rng.choice(joins))] if rng.random() < 0.8 else []
    norms = (nn.GroupNorm(2, width), nn.GroupNorm(2, width), nn.GroupNorm(1, width), BATCH_NORM[rank - 1](width))
    steps += [rng.choice(norms)] if rng.random() < 0.7 else []
    steps += [rng.choice(ACTIVATIONS)] if rng.random() < 0.7 else []
    steps += _few(rng, lambda: image_step(width, rank, rng), (0, 0, 0, 1))
    return Chain(nn.Identity(), steps), _image(rng, rank, width)


def _two_norms(rng: random.Random) -> Made:
    """Both branches of a residual normed, or a norm behind another."""
    width = rng.choice((6, 8, 12))
    images = rng.random() < 0.65
    same = rng.random() < 0.5

    def norm() -> nn.Module:
        if not images:
            return token_norm(width, rng)
        return nn.BatchNorm2d(width) if same else image_norm(width, rng)

    joins = (torch.add, torch.add, torch.add, torch.sub, torch.mul)
    act = rng.choice(ACTIVATIONS)
    step = norm() if rng.random() < 0.75 else rng.choice(ACTIVATIONS)
    steps: list[Step] = [norm(), *([act] if rng.random() < 0.25 else []), Other(rng.choice(joins), step)]
    steps += [rng.choice(ACTIVATIONS)] if rng.random() < 0.75 else []
    steps += [norm()] if rng.random() < 0.2 else []
    x = _image(rng, 2, width) if images else torch.randn(2, rng.choice((6, 9)), width)
    return Chain(nn.Identity(), steps), x


def cut(rng: random.Random) -> Step:
    """Halves by slices, as most models write them: their gradients are padded and added, chunks' are joined."""
    minus_first = rng.random() < 0.8

    def halves(x: Tensor) -> Tensor:
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        return torch.cat((-b, a) if minus_first else (b, -a), -1)

    return halves


class Turned(nn.Module):
    """Queries and keys turned, the keys shared by several heads; scores of both."""

    def __init__(self, shape: tuple[int, int, int, int], rng: random.Random) -> None:
        super().__init__()
        batch, heads, length, width = shape
        self.shared, self.behind, self.early = rng.choice((1, 2, 2)), rng.random() < 0.4, rng.random() < 0.25
        self.swapped = rng.random() < 0.5  # of the keys: tokens before heads
        self.keys = nn.Parameter(
            torch.randn(batch, *((length, heads) if self.swapped else (heads, length)), width)
        )
        self.part = width if rng.random() < 0.55 else rng.choice((width // 2, width // 4))
        self.pairs, self.rotate = rng.random() < 0.35, (rotated if rng.random() < 0.4 else cut)(rng)
        rows = (length,) if rng.random() < 0.7 else (batch, 1, length)
        half = (self.part // 2,) if self.pairs else (self.part,)
        self.angled, self.upcast = rng.random() < 0.4, rng.random() < 0.5
        self.register_buffer("cos", torch.randn(*rows, *half))
        self.register_buffer("sin", torch.randn(*rows, *half))
        self.norm = token_norm(width, rng) if rng.random() < 0.25 else nn.Identity()
        self.alone = rng.random() < 0.3
        inner = heads * self.shared * width
        self.ends = nn.ModuleList(nn.Linear(inner, PROJECTED) for _ in range(2)) if rng.random() < 0.55 else None

    cos: Tensor
    sin: Tensor

    def forward(self, x: Tensor) -> Tensor:
        q = self.turn(self.norm(x.transpose(1, 2) if self.behind else x))
        if self.alone:
            return q
        keys = self.keys.transpose(1, 2) if self.swapped else self.keys
        k = self.turn(self.many(keys)) if self.early else self.many(self.turn(keys))
        if self.ends is None:
            return q @ k.mT
        first, second = (end(y.transpose(1, 2).flatten(2)) for end, y in zip(self.ends, (q, k), strict=True))
        return torch.cat((first, second), -1)  # their gradients come with tokens before heads

    def many(self, keys: Tensor) -> Tensor:
        return keys[:, :, None].expand(-1, -1, self.shared, -1, -1).flatten(1, 2) if self.shared > 1 else keys

    def turn(self, x: Tensor) -> Tensor:
        cos, sin = (self.cos.cos(), self.cos.sin()) if self.angled else (self.cos, self.sin)
        dtype = x.dtype
        x = x.float() if self.upcast else x
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        y, rest = x[..., : self.part], x[..., self.part :]
        if self.pairs:
            a, b = y[..., ::2], y[..., 1::2]
            y = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
        else:
            y = y * cos + self.rotate(y) * sin
        return (torch.cat((y, rest), -1) if rest.shape[-1] else y).to(dtype)


def _turned(rng: random.Random) -> Made:
    batch, heads, length, width = 2, rng.choice((2, 3)), rng.choice((5, 7)), rng.choice((16, 24, 32))
    layer = Turned((batch, heads, length, width), rng)
    many = heads * layer.shared
    x = torch.randn(*((batch, length, many) if layer.behind else (batch, many, length)), width)
    columns = length if layer.ends is None else 2 * PROJECTED
    return Chain(layer, _few(rng, lambda: [row_step(columns, rng)], (0, 0, 1)) if not layer.alone else []), x


class Crossed(nn.Module):
    """Layers along channels and along tokens in turn: biases, gains and residuals of tensors that lie turned."""

    def __init__(self, length: int, width: int, rng: random.Random) -> None:
        super().__init__()
        ends = rng.choice((width, 10)), rng.choice((length, length, 4))
        self.first, self.second = nn.Linear(width, ends[0]), nn.Linear(length, ends[1])
        self.norm = token_norm(rng.choice((width, ends[0])), rng) if ends[0] == width else nn.Identity()
        acts: tuple[Step, ...] = (nn.Identity(), *ACTIVATIONS)
        self.acts = [rng.choice(acts) for _ in range(2)]
        self.gain = nn.Parameter(torch.randn(ends[0], length)) if rng.random() < 0.5 else None
        self.scales = nn.Parameter(torch.randn(ends[0], 1)) if rng.random() < 0.4 else None
        self.saved, self.back, self.early = rng.random() < 0.5, rng.random() < 0.6, rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        y = self.acts[0](self.norm(self.first(x)) if self.early else self.first(self.norm(x)))
        turned = y.transpose(1, 2)
        y = turned if self.gain is None else turned + self.gain
        y = y if self.scales is None else y * self.scales
        z: Tensor = self.acts[1](self.second(y))
        z = z * turned if self.saved and z.shape == turned.shape else z
        return z.transpose(1, 2).contiguous() if self.back else z


def _crossed(rng: random.Random) -> Made:
    length, width = rng.choice((5, 7, 9)), rng.choice((8, 12))
    layer = Crossed(length, width, rng)
    steps: list[Step] = [lambda x: x.transpose(-1, -2), Other(rng.choice((torch.add, torch.mul, torch.sub)))]
    ends: tuple[list[Step], ...] = ([], [], [rng.choice(ACTIVATIONS)], steps)
    return Chain(layer, rng.choice(ends)), torch.randn(rng.choice((2, 3)), length, width)


class Shifted(nn.Module):
    """A loss of the next token's label; labels come padded, sliced or as they are."""

    def __init__(self, shape: tuple[int, int], width: int, rng: random.Random) -> None:
        super().__init__()
        self.how, self.after = rng.choice(("padded", "padded", "padded", "sliced", "given")), make_loss(rng)
        self.kind = rng.choice(("cross", "cross", "cross", "tokens", "weighted", "z", "entropy"))
        self.smooth, self.reduction = rng.choice((0.0, 0.0, 0.1)), rng.choice(("mean", "mean", "sum", "none"))
        self.upcast, self.cap, self.scale = rng.random() < 0.5, rng.random() < 0.25, rng.choice((1.0, 1.0, 0.5))
        self.register_buffer("labels", torch.randint(0, width, shape))
        self.register_buffer("weight", torch.rand(shape))

    labels: Tensor
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale if self.scale != 1.0 else x
        x = x.float() if self.upcast else x
        x = 15.0 * torch.tanh(x / 15.0) if self.cap else x
        y = self.labels
        if self.how == "padded":
            y = F.pad(y, (0, 1), value=IGNORED)[..., 1:].contiguous()
        elif self.how == "sliced":
            x, y = x[:, :-1], y[:, 1:]
        flat, wanted = x.flatten(0, 1), y.flatten()
        return self.loss(flat, wanted)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        kept = y != IGNORED
        match self.kind:
            case "cross":
                return F.cross_entropy(x, y, reduction=self.reduction, label_smoothing=self.smooth)
            case "tokens":
                picked: Tensor = F.log_softmax(x, -1).gather(-1, y.clamp_min(0)[:, None])[:, 0] * kept
                return picked
            case "weighted":
                each = F.cross_entropy(x, y, reduction="none")
                weight = self.weight.flatten()[: y.shape[0]].to(each.dtype)
                return (each * weight).sum() / weight.sum()
            case "z":
                return F.cross_entropy(x, y) + 1e-3 * (torch.logsumexp(x, -1) ** 2 * kept).mean()
        p = F.log_softmax(x, -1)
        return F.cross_entropy(x, y) - 0.1 * ((p.exp() * p).sum(-1) * kept).sum() / kept.sum()


def _shifted(rng: random.Random) -> Made:
    width, shape = rng.choice((11, 16)), (2, rng.choice((6, 9)))
    steps = _few(rng, lambda: [row_step(width, rng)], (0, 0, 0, 1))
    return Chain(nn.Identity(), [*steps, Shifted(shape, width, rng)]), torch.randn(*shape, width)


class Losses(nn.Module):
    """Two or three losses of rows and of what was computed before them, in one number."""

    def __init__(self, rows: int, width: int, rng: random.Random) -> None:
        super().__init__()
        self.register_buffer("labels", torch.randint(0, width, (rows,)))
        self.inner = nn.ModuleList(token_norm(width, rng) for _ in range(rng.choice((0, 1, 1))))
        self.batch = nn.BatchNorm1d(width) if rng.random() < 0.4 else None
        self.act, self.smooth, self.by = (
            rng.choice(ACTIVATIONS),
            rng.choice((0.0, 0.1, 0.1)),
            rng.choice((1, 2, -1)),
        )
        self.ignore = rng.random() < 0.6
        self.made: list[Loss] = [make_loss(rng), self.smoothed, self.smoothed, *(_terms(self.by))]
        self.terms = rng.sample(self.made, rng.choice((2, 2, 3)))
        self.parts = [rng.choice((1.0, 0.9, 0.1, 0.01)) for _ in self.terms]

    labels: Tensor

    def smoothed(self, x: Tensor, y: Tensor) -> Tensor:
        y = torch.where(y == 3, IGNORED, y) if self.ignore else y
        return F.cross_entropy(x, y, label_smoothing=self.smooth)

    def forward(self, x: Tensor) -> Tensor:
        x = self.batch(x) if self.batch is not None else x
        x = self.act(x)
        for norm in self.inner:
            x = norm(x)
        found = [part * term(x, self.labels).float() for part, term in zip(self.parts, self.terms, strict=True)]
        return sum(found[1:], found[0])


def _terms(by: int) -> list[Loss]:
    """Of rows alone: pairs of rolled rows, sizes of values, spread, margins."""
    return [
        lambda x, y: F.cosine_similarity(x, x.roll(by, 0), dim=-1).mean(),
        lambda x, y: 1.0 - F.cosine_similarity(torch.tanh(x), x.roll(by, 0), dim=-1).mean(),
        lambda x, y: F.huber_loss(torch.tanh(x), torch.zeros_like(x)),
        lambda x, y: F.mse_loss(x, x.roll(by, 0).detach()),
        lambda x, y: x.abs().mean() + x.float().var(0).mean(),
        lambda x, y: F.relu(1.0 - (x.amax(-1) - x.amin(-1))).mean(),
        lambda x, y: torch.logsumexp(x.float(), -1).pow(2).mean(),
        lambda x, y: (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)).sum(0).square().mean(),
    ]


def _several_losses(rng: random.Random) -> Made:
    rows, width = rng.choice((6, 8, 11)), rng.choice((9, 12, 16))
    return Chain(nn.Identity(), [Losses(rows, width, rng)]), torch.randn(rows, width)


def _scanned(rng: random.Random) -> Made:
    """Running sums and products of values, with what stands before and behind them."""
    width, along = rng.choice((8, 12)), rng.choice((-1, -1, -2))
    step = lambda: [row_step(width, rng)]  # noqa: E731
    before: tuple[list[Step], ...] = (
        [],
        [],
        [lambda x: torch.softmax(x, along)],
        [lambda x: torch.exp(-F.relu(x)) + 1e-6],
        [lambda x: 1.0 - torch.sigmoid(x)],
        [lambda x: x - x.mean(along, keepdim=True)],
        [lambda x: x / x.abs().amax(along, keepdim=True).clamp_min(1e-6)],
        [lambda x: F.softplus(x)],
    )
    scans: tuple[Step, ...] = (
        lambda x: x.cumsum(along),
        lambda x: x.cumsum(along) - x,
        lambda x: x.cumprod(along),
        lambda x: x.cumprod(along) * x,
        lambda x: (1.0 - x) * x.cumprod(along),
        lambda x: x.float().cumsum(along).to(x.dtype),
        lambda x: x.flip(along).cumsum(along).flip(along),
        lambda x: x.cumsum(along) / torch.arange(1, x.shape[-1] + 1) if along == -1 else x.cumsum(along),
    )
    behind: tuple[list[Step], ...] = (
        [],
        [lambda x: x / x.sum(along, keepdim=True)],
        [lambda x: (x < 0.9).to(x.dtype) * x],
        [lambda x: torch.where(x > 0.5, x, 0.0)],
        [lambda x: x - x.amax(along, keepdim=True)],
        [Beside(torch.mul)],
        [Other(torch.mul)],
        [Beside(torch.add, -1)],
        [lambda x: x.mean(along)],
    )
    steps = [*_few(rng, step), *rng.choice(before), rng.choice(scans), *rng.choice(behind), *_few(rng, step)]
    shape = (rng.choice((2, 3)), rng.choice((6, 9)), width)
    return Chain(nn.Identity(), steps), torch.randn(shape if rng.random() < 0.6 else shape[1:])


def _counted(rng: random.Random) -> Made:
    """Running counts: of tokens kept, of starts, of lengths; places and masks made of them."""
    first, low, high = rng.choice((0, 1, 2)), rng.choice((1, 2, 3)), rng.choice((9, 20, 33))
    narrow = rng.choice((torch.int32, torch.int64, torch.int64))
    ends: tuple[Step, ...] = (
        lambda n: n.cumsum(-1),
        lambda n: n.cumsum(-1) - n,
        lambda n: n.cumsum(-1) * n + first,
        lambda n: (n > 0).to(narrow).cumsum(-1) - 1,
        lambda n: (n != low).to(narrow).cumsum(-1).to(narrow) * (n != low),
        lambda n: torch.where(n == low, first, n.cumsum(-1) - 1),
        lambda n: torch.where(n.cumsum(-1) < high, n, 0),
        lambda n: (n.cumsum(0) <= high).to(torch.float32) * 0.5,
        lambda n: n.clamp(0, low).cumsum(-1).clamp(max=high),
        lambda n: (n[:, 1:] != n[:, :-1]).to(narrow).cumsum(-1),
        lambda n: n.flip(-1).cumsum(-1).flip(-1),
        lambda n: n.cumsum(0) + n.cumsum(1),
    )
    return Chain(nn.Identity(), [rng.choice(ends)]), torch.randint(0, 9, (rng.choice((3, 5)), rng.choice((7, 12))))


def _pooled(rng: random.Random) -> Made:
    """Windows that tile, overlap or leave gaps, padded or not; behind a norm, beside what they read."""
    rank, width = rng.choice((1, 2, 2, 2, 3, 3)), rng.choice((4, 6))
    window = [rng.choice((1, 2, 2, 3, 3, 3, 4)) for _ in range(rank)]
    window = [3] * rank if max(window) == 1 or rng.random() < 0.5 else window
    same = rng.random() < 0.3
    step = [1 if same else rng.choice((1, 2, 2, n)) for n in window]
    padding = [n // 2 if n > 1 and (same or rng.random() < 0.5) else 0 for n in window]
    kept = all(n % 2 for n in window) and same
    further = rng.random() < 0.2  # a last window that begins inside and ends outside
    whole = rng.random() < 0.5
    largest: Step = lambda x: MAX_POOL[rank - 1](x, window, step, padding, 1, further)  # noqa: E731

    def average(x: Tensor) -> Tensor:
        y = x.float() if rank == 3 else x  # CPUs pool means in three dims in float32 only
        return AVG_POOL[rank - 1](y, window, step, padding, further, whole).to(x.dtype)

    pool = rng.choice((largest, average))
    forms: list[Step] = [pool, pool, pool, lambda x: largest(x) + average(x)]
    forms += [lambda x: x * torch.sigmoid(x.amax((2, *range(3, 2 + rank)), keepdim=True))]
    if rank == 2:
        forms += [lambda x: x * torch.sigmoid(F.adaptive_max_pool2d(x, 1) + F.adaptive_avg_pool2d(x, 1))]
        forms += [nn.LocalResponseNorm(3)]
    if kept:
        forms += [lambda x: pool(x) - x, lambda x: pool(x) - x, lambda x: x + 0.5 * pool(x), lambda x: x * pool(x)]
    steps = _few(rng, lambda: image_step(width, rank, rng), (0, 0, 1))
    if rng.random() < 0.35:  # as behind a stem
        steps += [BATCH_NORM[rank - 1](width), rng.choice(ACTIVATIONS)]
    steps += [rng.choice(forms), *_few(rng, lambda: image_step(width, rank, rng), (0, 0, 1, 1))]
    return Chain(nn.Identity(), steps), _image(rng, rank, width)


def _looked_up(rng: random.Random) -> Made:
    width = rng.choice((8, 12, 16))
    steps: list[Step] = [token_norm(width, rng), *_few(rng, lambda: [row_step(width, rng)], (0, 0, 1))]
    return Chain(Embedded(width, rng), steps), torch.randint(0, VOCABULARY, (2, rng.choice((6, 9))))
