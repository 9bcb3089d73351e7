"""Random small image networks: blocks of convolutions, norms and activations behind one another, in 2D and 3D.

    make_image_model(seed) -> module, inputs

product_models.py has a convolution and what follows it; here a convolution also reads what another one has made,
as most of a network's do: its layout is the network's, its gradient goes on, and its neighbours are statistics,
shortcuts, gates and joined channels. A model is a stem, one or two blocks of the kinds that networks
are built of, each with its own options, and an end. Sizes are small: product_sizes.py draws others.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cudal1_trainer.tasks.architectures import ACTIVATIONS, ChannelNorm
from cudal1_trainer.tasks.product_models import BATCH_NORM, CONVOLUTION, INSTANCE_NORM, TRANSPOSED

Act = Callable[[Tensor], Tensor]
DTYPES = (torch.float32, torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)
USUAL: tuple[Act, ...] = (F.relu, F.relu, F.relu, F.silu, F.gelu, F.relu6, F.hardswish, F.leaky_relu)


class Layer(nn.Module):
    """A convolution, its norm and its activation, either of which may be missing, or come first."""

    def __init__(
        self, convolution: nn.Module, norm: nn.Module | None, act: Act | None, pre: nn.Module | None = None
    ) -> None:
        """pre: a norm of the input, which is activated then in place of the result."""
        super().__init__()
        self.convolution, self.norm, self.act, self.pre = convolution, norm, act, pre

    def forward(self, x: Tensor) -> Tensor:
        if self.pre is not None:
            y: Tensor = self.convolution(self.act(self.pre(x)) if self.act else self.pre(x))
            return y
        y = self.convolution(x)
        y = y if self.norm is None else self.norm(y)
        return y if self.act is None else self.act(y)


class Residual(nn.Module):
    def __init__(self, layers: list[nn.Module], shortcut: nn.Module, act: Act | None, gain: int) -> None:
        """gain: channels of a learned scale of the branch; 0: none."""
        super().__init__()
        self.layers, self.shortcut, self.act = nn.Sequential(*layers), shortcut, act
        self.gain = nn.Parameter(torch.full((gain,), 0.1)) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        if self.gain is not None:
            y = y * self.gain.view(-1, *[1] * (y.dim() - 2))
        y = y + self.shortcut(x)
        return y if self.act is None else self.act(y)


class Gate(nn.Module):
    """Channels weighed by what all places have in common."""

    def __init__(self, width: int, act: Act, last: Act, rank: int) -> None:
        super().__init__()
        convolution = CONVOLUTION[rank - 1]
        self.down, self.up = convolution(width, max(2, width // 4), 1), convolution(max(2, width // 4), width, 1)
        self.act, self.last, self.places = act, last, tuple(range(2, 2 + rank))

    def forward(self, x: Tensor) -> Tensor:
        y = x.mean(self.places, keepdim=True)
        return x * self.last(self.up(self.act(self.down(y))))


class Wide(nn.Module):
    """A depthwise convolution, a norm over channels, and two linear layers on each place."""

    def __init__(self, width: int, window: int, act: Act, rng: random.Random) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, window, padding=window // 2, groups=width)
        self.norm, self.act = nn.LayerNorm(width, eps=1e-6), act
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1)) if rng.random() < 0.6 else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(self.act(self.up(y)))
        z: Tensor = x + (y if self.gain is None else self.gain * y).permute(0, 3, 1, 2)
        return z


class Joined(nn.Module):
    """What came in beside what is made of it, along the channels."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, *(layer(x) for layer in self.layers)], 1)


class Valley(nn.Module):
    """Down to half the places, and up again beside what was there.

    By a transposed convolution: an enlarged map is read at computed places, which no other sizes fit.
    """

    def __init__(self, down: nn.Module, inner: nn.Module, up: nn.Module, behind: nn.Module) -> None:
        super().__init__()
        self.down, self.inner, self.up, self.behind = down, inner, up, behind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.behind(torch.cat([x, self.up(self.inner(self.down(x)))], 1))
        return y


class Network(nn.Module):
    def __init__(self, parts: list[nn.Module], end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.parts, self.end = nn.Sequential(*parts), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.parts(x))


def make_image_model(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network of one dtype and its images, on the CPU."""
    rng = random.Random(f"image model {seed}")
    torch.manual_seed(seed)
    made = _Maker(rng)
    model = made.network().to(made.dtype)
    size = rng.choice((12, 16)) if made.rank == 2 else 8
    images = torch.randn(rng.choice((2, 3)), made.channels, *[size] * made.rank).to(made.dtype)
    return model, (images.requires_grad_(rng.random() < 0.3),)


class _Maker:
    """One network's habits: how it normalises, what it activates with, whether it pads."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rank = 2 if rng.random() < 0.8 else 3
        self.dtype = rng.choice(DTYPES)
        self.act = rng.choice(USUAL) if rng.random() < 0.75 else rng.choice(ACTIVATIONS)
        self.channels = rng.choice((1, 2, 3, 4, 6))
        kind = rng.random()
        batch: Callable[[int], nn.Module] = BATCH_NORM[self.rank - 1]
        instance: Callable[[int], nn.Module] = INSTANCE_NORM[self.rank - 1]
        others: tuple[Callable[[int], nn.Module] | None, ...] = (
            lambda width: nn.GroupNorm(2, width),
            lambda width: nn.GroupNorm(1, width),
            instance,
            ChannelNorm if self.rank == 2 else instance,
            None,
        )
        self.norm = batch if kind < 0.65 else rng.choice(others)

    def network(self) -> Network:
        width = self.rng.choice((6, 8))
        kinds = [self.basic, self.bottleneck, self.inverted, self.joined, self.valley, self.plain, self.scaled]
        if self.rank == 2:
            kinds.append(self.wide)
        stem = self.layer(self.channels, width, self.rng.choice((3, 3, 5, 7)), self.rng.choice((1, 1, 2)))
        parts: list[nn.Module] = [stem]
        for _ in range(self.rng.choice((1, 1, 2))):
            part, width = self.rng.choice(kinds)(width)
            parts.append(part)
        return Network(parts, self.end(width))

    # layers

    def convolution(
        self, before: int, after: int, window: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
    ) -> nn.Module:
        bias = self.norm is None or self.rng.random() < 0.15
        padding = dilation * (window - 1) // 2
        return CONVOLUTION[self.rank - 1](before, after, window, stride, padding, dilation, groups, bias)

    def layer(
        self, before: int, after: int, window: int = 3, stride: int = 1, groups: int = 1, dilation: int = 1
    ) -> Layer:
        return self.behind(self.convolution(before, after, window, stride, groups, dilation), after)

    def behind(self, convolution: nn.Module, width: int) -> Layer:
        return Layer(convolution, self.norm(width) if self.norm else None, self.act)

    def linear(self, before: int, after: int, window: int = 1, stride: int = 1) -> Layer:
        """Without an activation."""
        return Layer(
            self.convolution(before, after, window, stride), self.norm(after) if self.norm else None, None
        )

    def shortcut(self, before: int, after: int, stride: int) -> nn.Module:
        return nn.Identity() if before == after and stride == 1 else self.linear(before, after, 1, stride)

    def wider(self, width: int) -> tuple[int, int]:
        """Channels and the stride of a block."""
        return self.rng.choice(((width, 1), (width, 1), (2 * width, 2), (width, 2), (12, 1)))

    # blocks: (module, channels)

    def plain(self, width: int) -> tuple[nn.Module, int]:
        after, stride = self.wider(width)
        groups = 2 if self.rng.random() < 0.2 else 1
        return self.layer(width, after, self.rng.choice((1, 3, 3, 5)), stride, groups), after

    def basic(self, width: int) -> tuple[nn.Module, int]:
        after, stride = self.wider(width)
        first: nn.Module = self.layer(width, after, 3, stride, 1, self.rng.choice((1, 1, 1, 2)))
        if self.norm and self.rng.random() < 0.25:  # norm and activation before the convolution
            first = Layer(self.convolution(width, after, 3, stride), None, self.act, self.norm(width))
        layers = [first, self.linear(after, after, 3)]
        return self._residual(layers, width, after, stride), after

    def bottleneck(self, width: int) -> tuple[nn.Module, int]:
        after, stride = self.wider(width)
        inner = 4
        groups = 2 if self.rng.random() < 0.25 else 1
        layers: list[nn.Module] = [self.layer(width, inner, 1), self.layer(inner, inner, 3, stride, groups)]
        layers += self._gate(inner)
        return self._residual([*layers, self.linear(inner, after)], width, after, stride), after

    def inverted(self, width: int) -> tuple[nn.Module, int]:
        after, stride = self.wider(width)
        inner = 2 * width
        depthwise = self.layer(inner, inner, self.rng.choice((3, 3, 5)), stride, inner)
        layers = [self.layer(width, inner, 1), depthwise, *self._gate(inner), self.linear(inner, after)]
        if stride == 1 and width == after:
            return Residual(layers, nn.Identity(), None, 0), after
        return nn.Sequential(*layers), after

    def wide(self, width: int) -> tuple[nn.Module, int]:
        return Wide(width, self.rng.choice((3, 5, 7)), self.act, self.rng), width

    def joined(self, width: int) -> tuple[nn.Module, int]:
        layers: list[nn.Module] = [
            self.layer(width, 4, self.rng.choice((1, 3))) for _ in range(self.rng.choice((1, 2)))
        ]
        return Joined(layers), width + 4 * len(layers)

    def valley(self, width: int) -> tuple[nn.Module, int]:
        pool = (nn.MaxPool2d, nn.MaxPool3d)[self.rank - 2](2)
        down = pool if self.rng.random() < 0.6 else self.layer(width, width, 3, 2)
        up: nn.Module = TRANSPOSED[self.rank - 1](2 * width, width, 2, 2)
        return Valley(down, self.layer(width, 2 * width), up, self.layer(2 * width, width)), width

    def scaled(self, width: int) -> tuple[nn.Module, int]:
        """To twice the places, as generators do, or to half of them."""
        if self.rng.random() < 0.6:
            window, stride, padding, extra = self.rng.choice(((4, 2, 1, 0), (3, 2, 1, 1), (2, 2, 0, 0)))
            bias = self.norm is None
            up = TRANSPOSED[self.rank - 1](width, 4, window, stride, padding, extra, 1, bias)
            return self.behind(up, 4), 4
        pools: tuple[nn.Module, ...] = (
            (nn.MaxPool2d, nn.MaxPool3d)[self.rank - 2](3, 2, 1),
            (nn.AvgPool2d, nn.AvgPool3d)[self.rank - 2](2),
        )
        return nn.Sequential(self.rng.choice(pools), self.layer(width, 8)), 8

    def _gate(self, width: int) -> list[nn.Module]:
        if self.rng.random() < 0.6:
            return []
        return [Gate(width, self.act, self.rng.choice((torch.sigmoid, F.hardsigmoid)), self.rank)]

    def _residual(self, layers: list[nn.Module], width: int, after: int, stride: int) -> Residual:
        gain = after if self.rng.random() < 0.1 else 0
        act = self.act if self.rng.random() < 0.8 else None
        return Residual(layers, self.shortcut(width, after, stride), act, gain)

    def end(self, width: int) -> Callable[[Tensor], Tensor]:
        places = tuple(range(2, 2 + self.rank))
        kind = self.rng.random()
        if kind < 0.35:
            return nn.Sequential(_Mean(places), nn.Linear(width, 10))
        if kind < 0.6:
            return self.convolution(width, self.rng.choice((1, 3)), self.rng.choice((1, 3)))
        ends: tuple[Callable[[Tensor], Tensor], ...] = (
            torch.tanh,
            lambda x: x.mean(places),
            lambda x: x.amax(places),
            lambda x: x.softmax(1),
            lambda x: x.flatten(2).mT,
            lambda x: x.square().mean(),
        )
        return self.rng.choice(ends)


class _Mean(nn.Module):
    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__()
        self.places = places

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.places)
