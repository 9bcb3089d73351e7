"""Backward regions that reduce rows and columns of the same tensors: norms with weight gradients, biases."""

from __future__ import annotations

import random

from cudal1_fx_passes.program.ir import Domain, Program
from cudal1_trainer.tasks import idioms
from cudal1_trainer.tasks.setup import Region, region
from cudal1_trainer.tasks.shapes import Sizes


def mixed(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    width = min(sizes.width(), 16384)
    n = max(2, sizes.rows(sizes.elements(), width))
    if rng.random() < 0.25 and n >= 8:
        a, c = sizes.split(n, 2)
        shape: tuple[int, ...] = (a, c, width)
    else:
        shape = (n, width)
    r = region(rng, shape)
    rows_, last = tuple(r.b.size)[:-1], tuple(r.b.size)[-1:]
    body = rng.choices((_norm, _bias, _softmax_bias), (6, 4, 1.5))[0]
    return r.b.finish(r.out(v) for v in body(r, rows_, last, n_ops))


def _norm(r: Region, rows_: tuple[str, ...], last: tuple[str, ...], n_ops: int) -> list[str]:
    """Layer or RMS norm backward: dx by rows, weight and bias gradients by columns."""
    b, whole = r.b, (*rows_, *last)
    g, x = r.tensor(whole), r.tensor(whole)
    g = r.spread([g], max(0, n_ops - 20))
    if set(b.held[g]) != set(whole):
        g = b.op("mul", g, r.tensor(whole))
    layer = r.rng.random() < 0.6
    rstd = r.statistic(rows_)
    away = b.op("sub", x, r.tensor(rows_, dtype=r.compute)) if layer else x
    xhat = b.op("mul", away, rstd)
    weighted = b.op("mul", g, r.weight(last))
    back = idioms.norm_backward if layer else idioms.rms_backward
    dx = back(b, weighted, xhat, rstd, last, b.size[last[0]])
    if r.rng.random() < 0.4:
        dx = b.op("add", dx, r.tensor(whole))
    dweight = b.op("sum", b.op("mul", g, xhat), over=rows_)
    ends = [dx, dweight]
    if layer and r.rng.random() < 0.85:
        ends.append(b.op("sum", g, over=rows_))
    return ends


def _bias(r: Region, rows_: tuple[str, ...], last: tuple[str, ...], n_ops: int) -> list[str]:
    """An activation's gradient and the bias gradient that sums it."""
    whole = (*rows_, *last)
    g = r.tensor(whole)
    x = r.tensor(whole)
    if r.rng.random() < 0.5:
        x = r.b.op("add", x, r.weight(last))
    if r.rng.random() < 0.3:
        g = idioms.dropout(r.b, g, r.mask(whole))
    y = r.rng.choice(idioms.BACKWARDS)(r.b, g, x)
    y = r.spread([y], max(0, n_ops - len(r.b.ops) - 1))
    if set(r.b.held[y]) != set(whole):
        y = r.b.op("mul", y, g)
    stored = r.b.cast(y, r.store)  # torch sums the rounded gradient
    again = r.b.cast(stored, r.compute)
    return [stored, r.b.op("sum", again, over=rows_)]


def _softmax_bias(r: Region, rows_: tuple[str, ...], last: tuple[str, ...], n_ops: int) -> list[str]:
    whole = (*rows_, *last)
    y = r.tensor(whole, interval=(0.0, 1.0), domain=Domain(0.0, 1.0))
    dx = idioms.softmax_backward(r.b, r.tensor(whole), y, last)
    dx = r.spread([dx], max(0, n_ops - len(r.b.ops) - 1))
    if set(r.b.held[dx]) != set(whole):
        dx = r.b.op("mul", dx, y)
    return [dx, r.b.op("sum", dx, over=rows_)]
