"""Normalisation of NCHW activations: batch, group and instance statistics; training, inference and backward."""

from __future__ import annotations

import random

from cudal1_fx_passes.program.ir import Program
from cudal1_trainer.tasks import idioms
from cudal1_trainer.tasks.setup import Region, region
from cudal1_trainer.tasks.shapes import Sizes

Layout = tuple[Region, tuple[str, ...], tuple[str, ...], tuple[str, ...]]  # region, whole, channel, reduced axes


def images(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    kind = rng.choices(("forward", "apply", "backward", "gap"), (5, 3, 4, 1))[0]
    r, whole, channel, over = _layout(rng, sizes)
    x = r.tensor(whole)
    if kind == "apply":
        ends = _apply(r, x, whole, channel, n_ops)
    elif kind == "gap":
        ends = [_pooled(r, x, whole, channel, n_ops)]
    elif kind == "backward":
        ends = _backward(r, x, whole, channel, over, n_ops)
    else:
        ends = _forward(r, x, whole, channel, over, n_ops)
    return r.b.finish(r.out(v) for v in ends)


def _layout(rng: random.Random, sizes: Sizes) -> Layout:
    """Batch norm: d0,d1,d2(,d3) kept d1. Group norm: channels split in two axes. Instance norm: kept d0,d1."""
    n, c, h, w = sizes.image()
    flat = rng.random() < 0.6
    space = [h * w] if flat else [h, w]
    if rng.random() < 0.25:
        return _channels_last(rng, n, c, space)
    p = rng.random()
    if p < 0.5:
        r = region(rng, [n, c, *space])
        axes = tuple(r.b.size)
        return r, axes, axes[1:2], (axes[0], *axes[2:])
    if p < 0.75:
        groups = next((g for g in (32, 16, 8, 4, 3, 2) if c % g == 0), 1)
        if groups > 1 and c // groups > 1:
            r = region(rng, [n, groups, c // groups, *space])
            axes = tuple(r.b.size)
            return r, axes, axes[1:3], axes[2:]
    r = region(rng, [n, c, *space])
    axes = tuple(r.b.size)
    return r, axes, axes[1:2], axes[2:]


def _channels_last(rng: random.Random, n: int, c: int, space: list[int]) -> Layout:
    """The same three norms with channels innermost in memory, as convolutions on tensor cores leave them."""
    p = rng.random()
    groups = next((g for g in (32, 16, 8, 4, 3, 2) if c % g == 0), 1)
    if 0.5 <= p < 0.75 and 1 < groups < c:
        r = region(rng, [n, *space, groups, c // groups])
        axes = tuple(r.b.size)
        return r, axes, axes[-2:], (*axes[1:-2], axes[-1])
    r = region(rng, [n, *space, c])
    axes = tuple(r.b.size)
    return r, axes, axes[-1:], axes[:-1] if p < 0.75 else axes[1:-1]


def _scale(r: Region, y: str, channel: tuple[str, ...]) -> str:
    y = r.b.op("mul", y, r.weight(channel))
    return r.b.op("add", y, r.weight(channel)) if r.rng.random() < 0.9 else y


def _tail(r: Region, y: str, whole: tuple[str, ...], n_ops: int) -> str:
    """Residual, activation, and whatever else the budget allows."""
    if r.rng.random() < 0.35:
        y = r.b.op("add", y, r.tensor(whole))
    if r.rng.random() < 0.6:
        y = r.rng.choice(
            (idioms.plain("relu"), idioms.plain("relu"), idioms.silu, idioms.gelu, idioms.leaky_relu)
        )(r.b, y)
    return r.spread([y], n_ops - len(r.b.ops))


def _forward(
    r: Region, x: str, whole: tuple[str, ...], channel: tuple[str, ...], over: tuple[str, ...], n_ops: int
) -> list[str]:
    if r.rng.random() < 0.4:
        x = r.b.op("add", x, r.weight(channel))  # a convolution's bias
    y, mean, stat = idioms.standardise(r.b, x, over)
    ends = [_tail(r, _scale(r, y, channel), whole, n_ops)]
    if r.rng.random() < 0.5:
        ends += [mean, stat]
    if channel == r.b.held[mean] and r.rng.random() < 0.5:
        running = r.b.op("mul", r.tensor(channel, dtype=r.compute), 0.9)
        ends.append(r.b.op("add", r.b.op("mul", mean, 0.1), running))
    return ends


def _apply(r: Region, x: str, whole: tuple[str, ...], channel: tuple[str, ...], n_ops: int) -> list[str]:
    """Inference: running statistics."""
    away = r.b.op("sub", x, r.tensor(channel, dtype=r.compute))
    var = r.b.op("add", r.statistic(channel), r.rng.choice(idioms.EPSILONS))
    if r.rng.random() < 0.6:
        y = r.b.op("mul", away, r.b.op("reciprocal", r.b.op("sqrt", var)))
    else:
        y = r.b.op("mul", away, r.b.op("rsqrt", var))
    return [_tail(r, _scale(r, y, channel), whole, n_ops)]


def _backward(
    r: Region, x: str, whole: tuple[str, ...], channel: tuple[str, ...], over: tuple[str, ...], n_ops: int
) -> list[str]:
    kept = tuple(a for a in whole if a not in over)
    g = r.tensor(whole)
    if r.rng.random() < 0.6:
        g = idioms.relu_backward(r.b, g, r.tensor(whole))
    rstd, count = r.statistic(kept), 1
    for a in over:
        count *= r.b.size[a]
    xhat = r.b.op("mul", r.b.op("sub", x, r.tensor(kept, dtype=r.compute)), rstd)
    weighted = r.b.op("mul", g, r.weight(channel))
    if channel == kept and r.rng.random() < 0.7:  # batch norm: the two sums are gradients too
        first = r.b.op("sum", g, over=over)
        second = r.b.op("sum", r.b.op("mul", g, xhat), over=over)
        share = r.b.op("mul", r.b.op("mul", second, 1.0 / count), xhat)
        inner = r.b.op("sub", r.b.op("sub", g, share), r.b.op("mul", first, 1.0 / count))
        dx = r.b.op("mul", inner, r.b.op("mul", rstd, r.weight(channel)))
        return [r.spread([dx], n_ops - len(r.b.ops)), second, first]
    dx = idioms.norm_backward(r.b, weighted, xhat, rstd, over, count)
    return [r.spread([dx], n_ops - len(r.b.ops))]


def _pooled(r: Region, x: str, whole: tuple[str, ...], channel: tuple[str, ...], n_ops: int) -> str:
    """Activation or affine, then a global pool over space."""
    y = _tail(r, _scale(r, x, channel), whole, n_ops - 1)
    space = tuple(a for a in whole[1:] if a not in channel)
    return r.b.op(r.rng.choices(("mean", "amax", "sum"), (6, 2, 1))[0], y, over=space)
