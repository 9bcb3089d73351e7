"""Tasks that reduce outer axes (bias gradients, column statistics) or nearly everything (losses, means)."""

from __future__ import annotations

import random

from cudal1_fx_passes.program.ir import Domain, Program
from cudal1_trainer.tasks import idioms
from cudal1_trainer.tasks.setup import Region, part, region
from cudal1_trainer.tasks.shapes import Sizes


def columns(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Reductions over leading or middle axes, with a prologue and sometimes the elements again."""
    r, over = _columns_region(rng, sizes)
    whole = tuple(r.b.size)
    before, after = part(rng, max(0, n_ops - 2), 2)
    values = [r.tensor(whole)]
    if before > 1 and rng.random() < 0.6:
        values.append(r.tensor(whole))
    if before > 1 and rng.random() < 0.5:
        values.append(r.weight(tuple(a for a in whole if rng.random() < 0.5)))
    if rng.random() < 0.2:
        r.mask(whole)
    x = r.spread(values, before)
    if set(r.b.held[x]) != set(whole):
        x = r.b.op("mul", x, r.tensor(whole))
    stats = [_statistic(r, x, over) for _ in range(rng.choices((1, 2), (4, 1))[0])]
    ends = [stats[0], *stats[1:]]
    if r.b.dtype[stats[0]] == "i64":
        pass
    elif rng.random() < 0.35:
        ends = [_again(r, x, stats[0], after), *stats[1:]]
    else:
        ends[0] = r.spread([stats[0]], min(after, 10))
    if rng.random() < 0.3 and x not in values:  # the gradient itself is an output beside its column sums
        ends.append(x)
    return r.b.finish(r.out(v) for v in ends)


def totals(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Full or nearly full reductions: losses and norms."""
    rank = rng.choice((1, 2, 2, 3))
    elements = sizes.elements()
    shape = [elements] if rank == 1 else sizes.split(elements, rank)
    r = region(rng, shape)
    whole = tuple(r.b.size)
    x = r.spread([r.tensor(whole)], max(0, n_ops - 8) // 2)
    if set(r.b.held[x]) != set(whole):
        x = r.b.op("mul", x, r.tensor(whole))
    element = _loss_element(r, x, whole)
    element = r.spread([element], max(0, n_ops - len(r.b.ops) - 2))
    kept = whole[:1] if rank > 1 and shape[0] <= 64 and rng.random() < 0.4 else ()
    over = tuple(a for a in whole if a not in kept)
    fn = rng.choices(("mean", "sum", "amax", "var"), (6, 3, 1, 0.7))[0]
    if fn == "sum":
        element = r.b.op("mul", element, 1e-3)
    total = r.b.op("var", element, 1, over=over) if fn == "var" else r.b.op(fn, element, over=over)
    if rng.random() < 0.3:
        total = r.b.op("mul", total, r.rng.choice((0.5, 0.1, 2.0)))
    return r.b.finish([r.out(total)])


def row_then_total(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """A row reduction whose results are reduced again: cross entropy with its mean, row norms, triplets."""
    width = sizes.width()
    n = sizes.rows(sizes.elements(), width)
    r = region(rng, (max(2, n), width))
    x = r.spread([r.tensor(("d0", "d1"))], max(0, n_ops - 10))
    if set(r.b.held[x]) != {"d0", "d1"}:
        x = r.b.op("add", x, r.tensor(("d0", "d1")))
    p = rng.random()
    if p < 0.6:
        target = r.b.input(("d0",), "i64", (0.0, width - 1.0), Domain(below="d1"))
        hit = r.b.op("eq", r.b.op("iota", over=("d1",)), target)
        picked = r.b.op("sum", r.b.op("where", hit, x, 0.0), over=("d1",))
        row = r.b.op("sub", r.b.op("logsumexp", x, over=("d1",)), picked)
    elif p < 0.8:
        row = r.b.op("sqrt", r.b.op("sum", r.b.op("mul", x, x), over=("d1",)))
    else:
        y = r.tensor(("d0", "d1"))
        first = r.b.op("sum", r.b.op("mul", x, y), over=("d1",))
        row = r.b.op("relu", r.b.op("add", r.b.op("div", first, width), rng.choice((0.5, 1.0))))
    total = r.b.op("mean", row, over=("d0",))
    ends = [total, row] if rng.random() < 0.25 else [total]
    return r.b.finish(ends)


def _columns_region(rng: random.Random, sizes: Sizes) -> tuple[Region, tuple[str, ...]]:
    elements = sizes.elements()
    width = min(sizes.width(), 8192, max(2, elements // 8))
    n = max(2, sizes.rows(elements, width))
    p = rng.random()
    if p < 0.6 or n < 8:
        return region(rng, (n, width)), ("d0",)
    a, c = sizes.split(n, 2)
    if p < 0.75:
        return region(rng, (a, c, width)), ("d0", "d1")
    if p < 0.9:
        return region(rng, (a, c, width)), ("d1",)
    return region(rng, (a, c, width)), ("d0",)


def _statistic(r: Region, x: str, over: tuple[str, ...]) -> str:
    fn = r.rng.choices(("sum", "mean", "amax", "amin", "var", "argmax"), (6, 3, 1, 0.5, 1, 0.3))[0]
    if fn == "var":
        return r.b.op("var", x, r.rng.choice((0, 1)), over=over)
    return r.b.op(fn, x, over=over)


def _again(r: Region, x: str, stat: str, spend: int) -> str:
    """The elements once more with their column's statistic: softmax over dim 0, centering, scaling."""
    b = r.b
    over = tuple(a for a in b.held[x] if a not in b.held[stat])
    if r.rng.random() < 0.4:
        return r.spread([idioms.softmax(b, x, over)], min(spend, 8))
    if r.rng.random() < 0.6:
        y, _, _ = idioms.standardise(b, x, over)
        return r.spread([y], min(spend, 8))
    return r.spread([b.op("sub", x, stat)], min(spend, 8))


def _loss_element(r: Region, x: str, whole: tuple[str, ...]) -> str:
    b, p = r.b, r.rng.random()
    y = r.tensor(whole)
    if p < 0.35:
        d = b.op("sub", x, y)
        return b.op("mul", d, d) if r.rng.random() < 0.5 else b.op("abs", d)
    if p < 0.55:
        d = b.op("abs", b.op("sub", x, y))
        small = b.op("mul", b.op("mul", d, d), 0.5)
        return b.op("where", b.op("lt", d, 1.0), small, b.op("sub", d, 0.5))
    if p < 0.75:  # binary cross entropy with logits
        soft = b.op("log1p", b.op("exp", b.op("neg", b.op("abs", x))))
        return b.op("add", b.op("sub", b.op("maximum", x, 0), b.op("mul", x, y)), soft)
    if p < 0.9:  # hinge
        return b.op("maximum", b.op("sub", 1.0, b.op("mul", x, y)), 0)
    return b.op("mul", x, y)
