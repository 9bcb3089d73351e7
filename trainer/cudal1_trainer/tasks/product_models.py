"""Random small models around sums of products: convolutions of every kind, matrix products, and what follows them.

    make_product_model(seed) -> module, inputs

A model is a few chains side by side: a convolution (plain, strided, dilated, grouped, depthwise, separable,
transposed, in one to three dimensions) or a product of matrices (linear, batched, either operand turned), then a
few operations of those that layers and losses put behind one. structures.py cuts regions out of them and sizes
them; what is drawn here are forms. Shapes of benchmarks are not among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cudal1_trainer.tasks.architectures import ACTIVATIONS, ChannelNorm, token_norm

Step = Callable[[Tensor], Tensor]
DTYPES = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)
CONVOLUTION: tuple[Callable[..., nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED: tuple[Callable[..., nn.Module], ...] = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORM = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_PLAIN = ((), (), (), (), (0,), (1,))  # places along which a window is 1 wide, as in 1x7 or 1x3x3
MAX_POOL = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVG_POOL = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


class Beside(nn.Module):
    """Joins a tensor of the same shape, or one value a channel: a residual, a gate, a bias, a gain."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor], channel: int | None = None) -> None:
        super().__init__()
        self.join, self.channel = join, channel
        self.other: Tensor
        self.register_buffer("other", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.other is None:
            sizes = [n if self.channel in (None, i - x.dim()) else 1 for i, n in enumerate(x.shape)]
            self.other = torch.randn(sizes, dtype=x.dtype)
        return self.join(x, self.other)


FED = 0.3  # share of products that a few steps stand before


class Chain(nn.Module):
    """One product and its steps; `turned`: matrices whose dims the product swaps first."""

    def __init__(self, product: nn.Module, steps: list[Step]) -> None:
        super().__init__()
        self.product = product
        self.kept = nn.ModuleList(s for s in steps if isinstance(s, nn.Module))
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        x = self.product(x)
        for step in self.steps:
            x = step(x)
        return x


class Matrices(nn.Module):
    """A product of two tensors, neither of them a layer's weight: scores, values, experts, gradients."""

    def __init__(self, other: Tensor, turn: tuple[bool, bool]) -> None:
        super().__init__()
        self.other, self.turn = nn.Parameter(other), turn

    def forward(self, x: Tensor) -> Tensor:
        a, b = (v.mT if turned else v for v, turned in zip((x, self.other), self.turn, strict=True))
        return a @ b


class Chains(nn.Module):
    def __init__(self, chains: list[Chain]) -> None:
        super().__init__()
        self.chains = nn.ModuleList(chains)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(chain(x) for chain, x in zip(self.chains, inputs, strict=True))


def make_product_model(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Three chains of one dtype and their inputs, on the CPU."""
    rng = random.Random(f"product model {seed}")
    torch.manual_seed(seed)
    dtype = rng.choice(DTYPES)
    makers = [_convolution if rng.random() < 0.65 else _matrix for _ in range(3)]
    made = [make(rng) for make in makers]
    before = random.Random(f"what feeds product model {seed}")
    for make, (chain, x) in zip(makers, made, strict=True):
        if before.random() < FED:
            feed(chain, x, make is _convolution, before)
    model = Chains([chain.to(dtype) for chain, _ in made])
    inputs = tuple(x.to(dtype).requires_grad_() for _, x in made)
    with torch.no_grad():
        model(*inputs)  # gives the tensors beside their shapes
    return model, inputs


def feed(chain: Chain, x: Tensor, is_image: bool, rng: random.Random) -> None:
    """Puts a few steps before the product, as pre-activated and gated layers have them."""
    steps: list[Step] = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        steps += image_step(x.shape[1], x.dim() - 2, rng) if is_image else [row_step(x.shape[-1], rng)]
    chain.product = Chain(nn.Identity(), [*steps, chain.product])


def _convolution(rng: random.Random) -> tuple[Chain, Tensor]:
    rank = rng.choice((1, 2, 2, 2, 3, 3))
    window = rng.choice((1, 2, 3, 3, 3, 4, 5)[: 5 if rank == 3 else 7])
    stride, dilation = rng.choice((1, 1, 1, 2, 2, 3)), rng.choice((1, 1, 1, 1, 2)) if window > 1 else 1
    padding = rng.choice((0, dilation * (window - 1) // 2, dilation * (window - 1) // 2, 1 if window > 1 else 0))
    channels, outputs, groups = _channels(rng)
    bias = rng.random() < 0.55
    size = rng.choice((9, 11, 12)) if rank < 3 else rng.choice((7, 8))
    thin = rng.choice(_PLAIN) if rank > 1 and window > 1 else ()
    plain = [i in thin for i in range(rank)]
    windows = tuple(1 if alone else window for alone in plain)
    strides = tuple(1 if alone and rng.random() < 0.6 else stride for alone in plain)
    if rng.random() < 0.3:
        extra = rng.randrange(max(stride, dilation)) if rng.random() < 0.3 and not any(plain) else 0
        paddings = tuple(0 if alone else min(padding, dilation * (window - 1) // 2) for alone in plain)
        layer: nn.Module = TRANSPOSED[rank - 1](
            channels, outputs, windows, strides, paddings, extra, groups, bias, dilation
        )
    else:
        paddings = tuple(0 if alone else padding for alone in plain)
        layer = CONVOLUTION[rank - 1](channels, outputs, windows, strides, paddings, dilation, groups, bias)
    if groups == channels == outputs and rng.random() < 0.3:  # separable
        layer = nn.Sequential(layer, CONVOLUTION[rank - 1](outputs, 7, 1, bias=bias))
        outputs = 7
    steps = [s for _ in range(_count(rng)) for s in image_step(outputs, rank, rng)]
    steps += _image_end(outputs, rank, rng)
    return Chain(layer, steps), torch.randn(rng.choice((2, 3)), channels, *[size] * rank)


def _channels(rng: random.Random) -> tuple[int, int, int]:
    """Of what is read and of the result, and groups."""
    kind = rng.random()
    if kind < 0.25:
        channels = rng.choice((6, 8))
        return channels, channels * (1 if rng.random() < 0.85 else 2), channels
    if kind < 0.4:
        groups = rng.choice((2, 3))
        return 4 * groups, 5 * groups, groups
    return rng.choice((1, 3, 6, 8)), rng.choice((1, 4, 6, 8, 12)), 1


def _count(rng: random.Random) -> int:
    return rng.choice((0, 0, 1, 1, 2, 2, 3, 4))


def _scalar(rng: random.Random) -> Step:
    value = rng.choice((0.5, 2.0, 0.1, 1.7, 3.0))
    return rng.choice(
        (
            lambda x: x * value,
            lambda x: x / value,
            lambda x: x + value,
            lambda x: x - value,
            lambda x: x.clamp(-value, value),
            lambda x: x.clamp(min=0.0) * value,
        )
    )


def _beside(rng: random.Random, channel: int) -> Step:
    gate = lambda x, y: x * torch.sigmoid(y)  # noqa: E731
    joins = (torch.add, torch.add, torch.mul, torch.sub, gate, torch.maximum)
    return Beside(rng.choice(joins), rng.choice((None, None, channel)))


def image_step(width: int, rank: int, rng: random.Random) -> list[Step]:
    kind = rng.random()
    if kind < 0.4:
        return [rng.choice(ACTIVATIONS)]
    if kind < 0.55:
        return [_scalar(rng)]
    if kind < 0.75:
        return [_beside(rng, -rank - 1)]
    made: tuple[Callable[[], nn.Module], ...] = (
        lambda: BATCH_NORM[rank - 1](width),
        lambda: BATCH_NORM[rank - 1](width),
        lambda: nn.GroupNorm(2 if width % 2 == 0 else 1, width),
        lambda: nn.GroupNorm(1, width),
        lambda: INSTANCE_NORM[rank - 1](width, affine=rng.random() < 0.5),
        lambda: ChannelNorm(width) if rank == 2 else nn.GroupNorm(width, width),
    )
    return [rng.choice(made)()]


def _image_end(width: int, rank: int, rng: random.Random) -> list[Step]:
    if rng.random() < 0.6:
        return []
    spatial = tuple(range(2, 2 + rank))
    ends: tuple[Step, ...] = (
        lambda x: MAX_POOL[rank - 1](x, 2),
        lambda x: AVG_POOL[rank - 1](x, 2),
        lambda x: x.mean(spatial),
        lambda x: x.amax(spatial),
        lambda x: x.softmax(1),
        lambda x: torch.logsumexp(x, 1, keepdim=True),
        lambda x: x.sum(1),
        lambda x: x.mean(1, keepdim=True),
        lambda x: x.amin(1),
        lambda x: x.square().mean(spatial, keepdim=True).sqrt(),
    )
    return [rng.choice(ends), *([rng.choice(ACTIVATIONS)] if rng.random() < 0.3 else [])]


def _matrix(rng: random.Random) -> tuple[Chain, Tensor]:
    rows, depth, columns = rng.choice((6, 11)), rng.choice((12, 16)), rng.choice((9, 14))
    outer = rng.choice(((), (), (3,), (2, 3)))
    kind = rng.random()
    if kind < 0.6:
        product: nn.Module = nn.Linear(depth, columns, rng.random() < 0.6)
        x = torch.randn(*outer, rows, depth)
    else:
        turn = rng.random() < 0.4, rng.random() < 0.5
        x = torch.randn(*outer, *((depth, rows) if turn[0] else (rows, depth)))
        other = torch.randn(*outer, *((columns, depth) if turn[1] else (depth, columns)))
        product = Matrices(other, turn)
    steps = [row_step(columns, rng) for _ in range(_count(rng))]
    return Chain(product, [*steps, *row_end(rng)]), x


def row_step(width: int, rng: random.Random) -> Step:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(ACTIVATIONS)
    if kind < 0.55:
        return _scalar(rng)
    return _beside(rng, -1) if kind < 0.85 else token_norm(width, rng)


def row_end(rng: random.Random) -> list[Step]:
    if rng.random() < 0.65:
        return []
    ends: tuple[Step, ...] = (
        lambda x: x.softmax(-1),
        lambda x: x.sum(-1),
        lambda x: x.mean(-1, keepdim=True),
        lambda x: x.amax(-1),
        lambda x: torch.logsumexp(x, -1),
        lambda x: x.square().sum(-2),
        lambda x: F.log_softmax(x, -1),
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6),
    )
    return [rng.choice(ends)]
