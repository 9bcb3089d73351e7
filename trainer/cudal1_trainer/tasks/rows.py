"""Tasks that reduce inner axes: softmaxes, normalisations forward and backward, losses, argmax, random chains."""

from __future__ import annotations

import random
from collections.abc import Callable

from cudal1_fx_passes.program.ir import Domain, Program
from cudal1_trainer.tasks import idioms
from cudal1_trainer.tasks.builder import Unsuitable
from cudal1_trainer.tasks.setup import Region, part, region
from cudal1_trainer.tasks.shapes import Sizes

Body = Callable[
    [Region, str, tuple[str, ...], int], list[str]
]  # (region, value, reduced axes, operations to spend)


def rows(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    r, over = _rows_region(rng, sizes)
    whole = tuple(r.b.size)
    body = rng.choices([b for b, _ in _BODIES], [w for _, w in _BODIES])[0]
    spare = max(0, n_ops - 7)
    before, after = part(rng, spare if rng.random() < 0.8 else 0, 2)
    values = [r.tensor(whole)]
    if before > 1 and rng.random() < 0.7:
        values.append(r.tensor(whole))
    if before > 2 and rng.random() < 0.4:
        values.append(r.weight(_some(rng, whole)))
    if rng.random() < 0.15:
        r.mask(whole if rng.random() < 0.5 else over)
    x = r.spread(values, before)
    ends = body(r, x, over, after)
    if len(values) > 1 and rng.random() < 0.4 and x not in values:  # residual sum is an output too
        ends.append(x)
    return r.b.finish(r.out(v) for v in ends)


def _rows_region(rng: random.Random, sizes: Sizes) -> tuple[Region, tuple[str, ...]]:
    elements, width = sizes.elements(), sizes.width()
    n = sizes.rows(elements, width)
    outer = [n] if rng.random() < 0.65 or n < 4 else sizes.split(n, rng.choice((2, 2, 3)))
    inner = [width] if rng.random() < 0.9 or width < 16 else sizes.split(width, 2)
    r = region(rng, [*outer, *inner])
    return r, tuple(r.b.size)[len(outer) :]


def _some(rng: random.Random, axes: tuple[str, ...]) -> tuple[str, ...]:
    kept = tuple(a for a in axes if rng.random() < 0.5)
    return kept if len(kept) < len(axes) else axes[-1:]


def _affine(r: Region, y: str, over: tuple[str, ...]) -> str:
    if r.rng.random() < 0.85:
        y = r.b.op("mul", y, r.weight(over))
    if r.rng.random() < 0.6:
        y = r.b.op("add", y, r.weight(over))
    return y


def _after(r: Region, y: str, over: tuple[str, ...], spend: int) -> str:
    """An epilogue that may bring in one more tensor."""
    values = [y]
    if spend > 1 and r.rng.random() < 0.4:
        values.append(r.tensor(tuple(r.b.size)))
    if spend > 2 and r.rng.random() < 0.3:
        values.append(r.weight(over))
    return r.spread(values, spend)


def _softmax(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    if r.rng.random() < 0.4:
        x = r.b.op("mul", x, r.rng.choice((0.125, 0.08838834764831845, 0.17677669529663687)))
    if r.rng.random() < 0.2:
        x = r.b.op("add", x, r.tensor(_some(r.rng, tuple(r.b.size))))
    y = idioms.softmax(r.b, x, over, log=r.rng.random() < 0.3)
    return [_after(r, y, over, spend)]


def _layer_norm(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    y, mean, rstd = idioms.standardise(r.b, x, over)
    saved = [mean, rstd] if r.rng.random() < 0.35 else []
    return [_after(r, _affine(r, y, over), over, spend), *saved]


def _rms_norm(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    y, rstd = idioms.rms(r.b, x, over)
    saved = [rstd] if r.rng.random() < 0.35 else []
    return [_after(r, _affine(r, y, over), over, spend), *saved]


def _norm_backward(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    whole = tuple(r.b.size)
    kept = tuple(a for a in whole if a not in over)
    g = r.b.op("mul", r.tensor(whole), r.weight(over))
    rstd, count = r.statistic(kept), _count(r, over)
    if r.rng.random() < 0.5:
        xhat = r.b.op("mul", r.b.op("sub", x, r.tensor(kept, dtype=r.compute)), rstd)
        dx = idioms.norm_backward(r.b, g, xhat, rstd, over, count)
    else:
        dx = idioms.rms_backward(r.b, g, r.b.op("mul", x, rstd), rstd, over, count)
    if r.rng.random() < 0.5:
        dx = r.b.op("add", dx, r.tensor(whole))
    return [_after(r, dx, over, spend)]


def _softmax_backward(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    whole = tuple(r.b.size)
    if r.rng.random() < 0.35:
        y = r.tensor(whole, interval=(-12.0, 0.0), domain=Domain(hi=0.0))
        return [_after(r, idioms.log_softmax_backward(r.b, x, y, over), over, spend)]
    y = r.tensor(whole, interval=(0.0, 1.0), domain=Domain(0.0, 1.0))
    return [_after(r, idioms.softmax_backward(r.b, x, y, over), over, spend)]


def _unit_length(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    total = r.b.op("sum", r.b.op("mul", x, x), over=over)
    length = r.b.op("maximum", r.b.op("sqrt", total), 1e-12)
    r.b.interval[length] = (0.1, max(1.0, r.b.interval[length][1]))
    y = r.b.op("div", x, length)
    r.b.interval[y] = (-1.0, 1.0)
    return [_after(r, y, over, spend)]


def _cosine(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    y = r.tensor(tuple(r.b.size))
    dot = r.b.op("sum", r.b.op("mul", x, y), over=over)
    xx = r.b.op("sum", r.b.op("mul", x, x), over=over)
    yy = r.b.op("sum", r.b.op("mul", y, y), over=over)
    length = r.b.op("maximum", r.b.op("sqrt", r.b.op("mul", xx, yy)), 1e-08)
    r.b.interval[length] = (0.1, max(1.0, r.b.interval[length][1]))
    return [r.spread([r.b.op("div", dot, length)], min(spend, 6))]


def _cross_entropy(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    if len(over) != 1:
        raise Unsuitable("a class index runs over one axis")
    kept = tuple(a for a in r.b.size if a not in over)
    last = float(r.b.size[over[0]] - 1)
    target = r.b.input(kept, "i64", (0.0, last), Domain(below=over[0]))
    hit = r.b.op("eq", r.b.op("iota", over=over), target)
    if r.rng.random() < 0.35:  # gradient: softmax - one-hot, scaled
        y = idioms.softmax(r.b, x, over)
        one = r.b.op("where", hit, r.b.op("sub", y, 1.0), y)
        return [_after(r, r.b.op("mul", one, r.weight(())), over, min(spend, 8))]
    picked = r.b.op("sum", r.b.op("where", hit, x, 0.0), over=over)
    loss = r.b.op("sub", r.b.op("logsumexp", x, over=over), picked)
    return [r.spread([loss], min(spend, 6))]


def _divergence(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    """KL between two log-softmaxed rows, or entropy of one."""
    p = idioms.softmax(r.b, x, over, log=True)
    e = r.b.op("exp", p)
    if r.rng.random() < 0.5:
        return [r.b.op("neg", r.b.op("sum", r.b.op("mul", e, p), over=over))]
    q = r.tensor(tuple(r.b.size), interval=(-12.0, 0.0), domain=Domain(hi=0.0))
    return [r.b.op("sum", r.b.op("mul", e, r.b.op("sub", p, q)), over=over)]


def _statistics(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    """Several reductions of one value, each an output or joined."""
    b, rng = r.b, r.rng
    names = rng.sample(
        ("sum", "mean", "amax", "amin", "var", "logsumexp", "argmax", "argmin"), rng.choice((1, 2, 2, 3))
    )
    found = []
    for fn in names:
        y = (
            x
            if rng.random() < 0.7
            else rng.choice((idioms.plain("abs"), idioms.plain("tanh"), idioms.squared_relu))(b, x)
        )
        found.append(b.op("var", y, rng.choice((0, 1)), over=over) if fn == "var" else b.op(fn, y, over=over))
    floats = [v for v in found if b.dtype[v] == r.compute]
    if len(floats) > 1 and rng.random() < 0.4:
        joined = r.grow(floats, len(b.ops) + 1 + min(spend, 5))
        return [*joined, *(v for v in found if v not in floats)]
    return found


def _chain(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    """Reduce, compute on the group, combine with the elements again; once or twice."""
    rounds = r.rng.choices((1, 2, 3), (5, 3, 1))[0]
    shares = part(r.rng, spend, rounds + 1)
    for i in range(rounds):
        fn = r.rng.choice(("mean", "amax", "amin", "sum", "var", "logsumexp"))
        stat = r.b.op("var", x, 0, over=over) if fn == "var" else r.b.op(fn, x, over=over)
        if fn in ("var", "sum"):
            stat = (
                r.b.op("div", stat, _count(r, over)) if fn == "sum" else r.b.op("sqrt", r.b.op("add", stat, 1e-05))
            )
        stat = r.spread([stat], min(4, shares[i]))
        x = r.b.op(r.rng.choice(("sub", "add", "mul", "maximum", "sub")), x, stat)
        if r.rng.random() < 0.5:
            x = r.rng.choice(idioms.ACTIVATIONS)(r.b, x)
    if r.rng.random() < 0.3:
        return [r.b.op(r.rng.choice(("mean", "amax", "amin")), x, over=over)]
    return [_after(r, x, over, shares[-1])]


def _flags(r: Region, x: str, over: tuple[str, ...], spend: int) -> list[str]:
    flag = r.b.op("gt", x, r.rng.choice((0.0, 1.0, 2.5)))
    found = [r.b.op(r.rng.choice(("any", "all")), flag, over=over)]
    if r.rng.random() < 0.6:
        counted = r.b.op("cast", flag, dtype=r.compute)
        found.append(r.b.op(r.rng.choice(("sum", "mean")), counted, over=over))
    return found


def _count(r: Region, over: tuple[str, ...]) -> int:
    total = 1
    for a in over:
        total *= r.b.size[a]
    return total


_BODIES: tuple[tuple[Body, float], ...] = (
    (_softmax, 4),
    (_layer_norm, 5),
    (_rms_norm, 4),
    (_norm_backward, 4),
    (_softmax_backward, 2.5),
    (_unit_length, 1.5),
    (_cosine, 1),
    (_cross_entropy, 2),
    (_divergence, 1),
    (_statistics, 3),
    (_chain, 5),
    (_flags, 0.7),
)
