"""Random small models around places: values read at computed or shifted indices, and what stands beside them.

    make_place_model(seed) -> module, inputs

A model is a few chains side by side: upsampling, rolls, flips, shifts, slices, concatenations, rotary halves
and pairs, embeddings of several tables, picked logits of shifted labels, position masks; with a few ordinary
operations before and behind. Measured on a model trained without: 30 of 53 held-out programs without a right
reply compute with positions, which one training region in ten did. structures.py cuts regions out and sizes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cudal1_trainer.tasks.architectures import ACTIVATIONS
from cudal1_trainer.tasks.product_models import DTYPES, Beside, Chain, Chains, Step, image_step, row_end, row_step

Made = tuple[Chain, Tensor]
VOCABULARY = 40


def make_place_model(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Four chains of one dtype and their inputs, on the CPU."""
    rng = random.Random(f"place model {seed}")
    torch.manual_seed(seed)
    dtype = rng.choice(DTYPES)
    makers = rng.choices((_image, _rows, _heads, _embedded, _labelled), (4, 4, 3, 4, 2), k=4)
    made = [make(rng) for make in makers]
    model = Chains([chain.to(dtype) for chain, _ in made])
    inputs = tuple(x.to(dtype).requires_grad_() if x.is_floating_point() else x for _, x in made)
    with torch.no_grad():
        model(*inputs)  # gives the tensors beside their shapes
    return model, inputs


def _around(rng: random.Random, place: list[Step], step: Callable[[], list[Step]]) -> list[Step]:
    """Up to two steps before and three behind; often none, so that the place stands alone."""
    before = [s for _ in range(rng.choice((0, 0, 0, 1, 2))) for s in step()]
    return [*before, *place, *(s for _ in range(rng.choice((0, 1, 1, 2, 3))) for s in step())]


def _image(rng: random.Random) -> Made:
    rank, width = rng.choice((1, 2, 2, 2, 3)), rng.choice((4, 6, 8))
    place = [_image_place(rank, rng) for _ in range(rng.choice((1, 1, 2)))]
    steps = _around(rng, place, lambda: image_step(width, rank, rng))
    side = rng.choice((6, 8, 12)) if rank < 3 else 6
    return Chain(nn.Identity(), steps), torch.randn(rng.choice((2, 3)), width, *[side] * rank)


def _image_place(rank: int, rng: random.Random) -> Step:
    kind, along, by = rng.random(), -rng.randint(1, rank), rng.choice((1, 1, 2, 3))
    if kind < 0.45:
        scale = rng.choice((2, 2, 2, 3, 4))
        mode = "nearest-exact" if rng.random() < 0.2 else "nearest"
        if rng.random() < 0.2:
            return lambda x: x.repeat_interleave(scale, along)
        if rng.random() < 0.3:
            return lambda x: F.interpolate(x, size=[n * scale for n in x.shape[2:]], mode=mode)
        return lambda x: F.interpolate(x, scale_factor=float(scale), mode=mode)
    steps: tuple[Step, ...] = (
        lambda x: x.roll(by, along),
        lambda x: x.roll((-by, by), (along, 1)),
        lambda x: x.flip(along),
        lambda x: F.pad(x, [by, by] * rank),
        lambda x: x.narrow(along, 1, x.shape[along] - 2),
        lambda x: x.reshape(x.shape[0], 2, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape),
        lambda x: x - x.roll(1, along),
        lambda x: torch.cat((x[:, 1:], x[:, :1]), 1),
    )
    return rng.choice(steps)


def _rows(rng: random.Random) -> Made:
    width = rng.choice((8, 12, 16))
    place = [_row_place(rng) for _ in range(rng.choice((1, 1, 2)))]
    steps = _around(rng, place, lambda: [row_step(width, rng)])
    shape = (rng.choice((2, 3)), rng.choice((6, 9)), width)
    ends = row_end(rng) if rng.random() < 0.5 else _picked(rng)
    return Chain(nn.Identity(), [*steps, *ends]), torch.randn(shape if rng.random() < 0.7 else shape[1:])


def _row_place(rng: random.Random) -> Step:
    by, along = rng.choice((1, 1, 2, 3)), rng.choice((-1, -2, -2))
    act = rng.choice(ACTIVATIONS)

    def shifted(x: Tensor) -> Tensor:  # a token sees the one before
        return torch.cat((torch.zeros_like(x.narrow(-2, 0, 1)), x.narrow(-2, 0, x.shape[-2] - 1)), -2)

    def gated(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * act(b), b), -1)

    def banded(x: Tensor) -> Tensor:
        rows, columns = torch.arange(x.shape[-2]), torch.arange(x.shape[-1])
        return x.masked_fill(columns[None] > rows[:, None] + by, low)

    def ramp(x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[along]).to(x.dtype)
        return x + 0.1 * (steps if along == -1 else steps[:, None])

    low = rng.choice((0.0, -1e4))
    steps: tuple[Step, ...] = (
        lambda x: x.roll(by, along),
        lambda x: x.roll(-by, along),
        lambda x: x * x.roll(by, along),
        lambda x: x.flip(along),
        lambda x: x.flip(along).cumsum(along),
        lambda x: torch.lerp(x, shifted(x), 0.25),
        shifted,
        gated,
        banded,
        ramp,
        rotated(rng),
        _paired(rng),
    )
    return rng.choice(steps)


def _picked(rng: random.Random) -> list[Step]:
    ends: tuple[Step, ...] = (
        lambda x: x[..., -1, :],
        lambda x: x[..., 0, :],
        lambda x: x.narrow(-2, 1, x.shape[-2] - 1) - x.narrow(-2, 0, x.shape[-2] - 1),
        lambda x: x[..., ::2],
        lambda x: x[..., : x.shape[-1] // 2] * x[..., x.shape[-1] // 2 :],
    )
    return [rng.choice(ends), rng.choice((*ACTIVATIONS, lambda x: x * 2.0))]


def _heads(rng: random.Random) -> Made:
    """Queries or keys with rotary tables; heads before or behind the tokens, sometimes several of one key."""
    width, shape = rng.choice((8, 12, 16)), (2, rng.choice((3, 4)), rng.choice((5, 7)))
    rotate, behind = (rotated if rng.random() < 0.6 else _paired)(rng), rng.random() < 0.5
    joined, given = rng.random() < 0.3, rng.random() < 0.6
    cos, sin = (Beside(torch.mul, None if rng.random() < 0.2 else -2) for _ in range(2))
    angle = torch.randn(shape[2], width)

    def turned(x: Tensor) -> Tensor:
        x = x.transpose(1, 2) if behind else x
        x = x[:, :, None].expand(-1, -1, 2, -1, -1).flatten(1, 2) if joined else x
        if given:
            return x * angle.cos().to(x.dtype) + rotate(x) * angle.sin().to(x.dtype)
        found: Tensor = cos(x) + sin(rotate(x))
        return found

    chain = Chain(nn.Identity(), _around(rng, [turned], lambda: [row_step(width, rng)]))
    chain.kept.extend([cos, sin])
    return chain, torch.randn(*((shape[0], shape[2], shape[1]) if behind else shape), width)


def rotated(rng: random.Random) -> Step:
    minus_first = rng.random() < 0.8

    def halves(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a) if minus_first else (b, -a), -1)

    return halves


def _paired(rng: random.Random) -> Step:
    flat = rng.random() < 0.5

    def pairs(x: Tensor) -> Tensor:
        if flat:
            return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        y = x.reshape(*x.shape[:-1], -1, 2)
        return torch.stack((-y[..., 1], y[..., 0]), -1).flatten(-2)

    return pairs


class Embedded(nn.Module):
    """Rows of one to three tables added up: words, places (counted or looked up), kinds; scaled or not."""

    def __init__(self, width: int, rng: random.Random) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(32, width)
        self.kinds, self.scale = nn.Embedding(4, width), rng.choice((1.0, 1.0, 1.0, width**0.5))
        self.with_places = rng.choice(("none", "counted", "offset", "looked up", "looked up"))
        self.with_kinds = rng.choice(("none", "first", "buffer", "of words", "of places"))
        self.register_buffer("place", torch.arange(24) % 17)
        self.register_buffer("kind", torch.arange(24) % 3)

    place: Tensor
    kind: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[-1]
        places = self.place[:length]
        x: Tensor = self.words(ids)
        x = x * self.scale if self.scale != 1.0 else x
        match self.with_kinds:
            case "first":
                x = x + self.kinds.weight[0]
            case "buffer":
                x = x + self.kinds(self.kind[:length])
            case "of words":
                x = x + self.kinds(ids % 3)
            case "of places":
                x = self.kinds(self.kind[places]) + x
        match self.with_places:
            case "counted":
                x = x + self.places(torch.arange(length))
            case "offset":
                x = x + self.places(torch.arange(length) + 2)
            case "looked up":
                x = x + self.places(places)
        return x


def _embedded(rng: random.Random) -> Made:
    width = rng.choice((8, 12, 16))
    steps = [row_step(width, rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    ends = row_end(rng) if rng.random() < 0.3 else []
    return Chain(Embedded(width, rng), [*steps, *ends]), torch.randint(0, VOCABULARY, (2, rng.choice((6, 9))))


def _labelled(rng: random.Random) -> Made:
    """Logits and labels, shifted or not, some of them ignored; the loss or each token's log-probability."""
    width, shape = rng.choice((11, 16)), (2, rng.choice((6, 9)))
    labels = torch.randint(0, width, shape)
    labels[:, -1] = -100 if rng.random() < 0.5 else 1
    shift, upcast, smooth = rng.random() < 0.6, rng.random() < 0.5, rng.choice((0.0, 0.0, 0.1))
    reduction, single = rng.choice(("mean", "mean", "sum", "none")), rng.random() < 0.25

    def loss(x: Tensor) -> Tensor:
        x, y = (x[:, :-1], labels[:, 1:]) if shift else (x, labels)
        x = (x.float() if upcast else x).flatten(0, 1)
        if single:
            picked = F.log_softmax(x, -1).gather(-1, y.clamp_min(0).flatten()[:, None])[:, 0]
            return picked * (y.flatten() != -100)
        return F.cross_entropy(x, y.flatten(), reduction=reduction, label_smoothing=smooth)

    steps = [row_step(width, rng) for _ in range(rng.choice((0, 0, 1)))]
    return Chain(nn.Identity(), [*steps, loss]), torch.randn(*shape, width)
