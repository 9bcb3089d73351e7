"""Pointwise tasks: one to five axes, broadcasts over every subset of them, masks, layouts, several outputs."""

from __future__ import annotations

import random

from cudal1_fx_passes.program.ir import Domain, Program
from cudal1_trainer.tasks.idioms import gelu_backward, silu_backward
from cudal1_trainer.tasks.setup import Region, region
from cudal1_trainer.tasks.shapes import Sizes


def pointwise(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    rank = rng.choices((1, 2, 3, 4, 5), (3, 4, 3, 3, 0.7))[0]
    r = region(rng, _shape(sizes, rank))
    whole = tuple(r.b.size)
    values = [_whole(r, whole) for _ in range(rng.choices((1, 2, 3, 4), (3, 4, 2, 1))[0])]
    for _ in range(rng.choices((0, 1, 2, 3), (2, 4, 3, 2))[0] if rank > 1 else rng.choices((0, 1), (5, 1))[0]):
        values.append(_broadcast(r, whole))
    if rng.random() < 0.3:
        r.mask(whole if rng.random() < 0.6 else rng.sample(whole, rng.randint(1, rank)))
    if rng.random() < 0.08 and rank > 1:
        r.masks.append(_index_mask(r, whole))
    ends = rng.choices((1, 2, 3), (7, 2, 1))[0]
    found = r.grow(values, n_ops, ends)
    outputs = [r.out(v) for v in found]
    if rng.random() < 0.1 and r.b.ops:  # an intermediate that the backward keeps
        outputs.append(rng.choice(r.b.ops).name)
    orders = {}
    if rank > 1 and rng.random() < 0.12:
        v = outputs[0]
        orders[v] = _transposed(rng, r.b.held[v])
    return r.b.finish(outputs, orders)


def glu(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Two halves of one wide tensor: gate and value with explicit strides, forward or backward."""
    width = sizes.width()
    r = region(rng, (sizes.rows(sizes.elements(), width), width), half=0.7)
    strides = (2 * width, 1) if rng.random() < 0.8 else None
    gate, value = r.tensor(("d0", "d1"), strides=strides), r.tensor(("d0", "d1"), strides=strides)
    if rng.random() < 0.5:
        g = r.tensor(("d0", "d1"))
        backward = silu_backward if rng.random() < 0.6 else gelu_backward
        first = backward(r.b, r.b.op("mul", g, value), gate)
        second = r.b.op("mul", g, r.b.op("mul", gate, r.b.op("sigmoid", gate)))
        ends = [r.spread([first], n_ops - len(r.b.ops)), second]
    else:
        ends = r.grow([gate, value], n_ops)
    return r.b.finish(r.out(v) for v in ends)


def _shape(sizes: Sizes, rank: int) -> list[int]:
    rng, total = sizes.rng, sizes.elements()
    if rank == 1:
        return [total if rng.random() < 0.4 else total // 64 * 64 or 64]
    if rank == 4 and rng.random() < 0.6:
        return list(sizes.image())
    width = min(sizes.width(), max(2, total // 2))
    return [*sizes.split(max(2, total // width), rank - 1), width]


def _whole(r: Region, axes: tuple[str, ...]) -> str:
    """A tensor over all axes; now and then transposed, or a slice of a wider one."""
    p = r.rng.random()
    if len(axes) > 1 and p < 0.08:
        return r.tensor(_transposed(r.rng, axes))
    if len(axes) > 1 and p < 0.13:
        return r.tensor(axes, strides=_slice_strides(r, axes))
    if p < 0.18:
        return r.tensor(axes, interval=(0.0, 1.0), domain=Domain(0.0, 1.0))
    return r.tensor(axes)


def _slice_strides(r: Region, axes: tuple[str, ...]) -> tuple[int, ...]:
    """Dense but for a longer innermost row."""
    found = [1]
    step = r.b.size[axes[-1]] * r.rng.choice((2, 2, 3, 4))
    for a in reversed(axes[:-1]):
        found.append(step)
        step *= r.b.size[a]
    return tuple(reversed(found))


def _transposed(rng: random.Random, axes: tuple[str, ...]) -> tuple[str, ...]:
    if len(axes) < 2:
        return axes
    at = rng.randint(0, len(axes) - 2)
    swapped = list(axes)
    swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
    if len(axes) == 4 and rng.random() < 0.4:  # channels last
        swapped = [axes[0], axes[2], axes[3], axes[1]]
    return tuple(swapped)


def _broadcast(r: Region, axes: tuple[str, ...]) -> str:
    kept = [a for a in axes if r.rng.random() < 0.45]
    if len(kept) == len(axes):
        kept = kept[1:]
    if r.rng.random() < 0.25:
        return r.statistic(kept)
    return r.weight(kept)


def _index_mask(r: Region, axes: tuple[str, ...]) -> str:
    """A causal or length mask made of index values."""
    last = r.b.op("iota", over=(axes[-1],))
    if r.rng.random() < 0.5:
        return r.b.op("le", last, r.b.op("iota", over=(axes[-2],)))
    lengths = r.b.input((axes[0],), "i64", (0.0, float(r.b.size[axes[-1]] - 1)), Domain(below=axes[-1]))
    return r.b.op("lt", last, lengths)
