"""Fragments as torch's decompositions write them: activations, their backward forms, dropout, normalisations.

Each takes a builder and values and returns a value. They raise Unsuitable where an interval forbids them.
"""

from __future__ import annotations

from collections.abc import Callable

from cudal1_trainer.tasks.builder import Builder, Unsuitable

Fragment = Callable[[Builder, str], str]


def gelu(b: Builder, x: str) -> str:
    half, erf = b.op("mul", x, 0.5), b.op("erf", b.op("mul", x, 0.7071067811865476))
    return b.op("mul", half, b.op("add", erf, 1))


def gelu_tanh(b: Builder, x: str) -> str:
    half = b.op("mul", x, 0.5)
    cube = b.op("mul", b.op("mul", x, x), x)
    inner = b.op("mul", b.op("add", x, b.op("mul", cube, 0.044715)), 0.7978845608028654)
    return b.op("mul", half, b.op("add", b.op("tanh", inner), 1))


def silu(b: Builder, x: str) -> str:
    if b.rng.random() < 0.5:
        return b.op("mul", x, b.op("sigmoid", x))
    return b.op("div", x, b.op("add", b.op("exp", b.op("neg", x)), 1))


def quick_gelu(b: Builder, x: str) -> str:
    return b.op("mul", x, b.op("sigmoid", b.op("mul", x, 1.702)))


def softplus(b: Builder, x: str) -> str:
    soft = b.op("log1p", b.op("exp", x))
    return b.op("where", b.op("gt", x, 20), x, soft)


def mish(b: Builder, x: str) -> str:
    return b.op("mul", x, b.op("tanh", softplus(b, x)))


def hardswish(b: Builder, x: str) -> str:
    gate = b.op("minimum", b.op("maximum", b.op("add", x, 3), 0), 6)
    return b.op("div", b.op("mul", x, gate), 6)


def hardsigmoid(b: Builder, x: str) -> str:
    return b.op("div", b.op("minimum", b.op("maximum", b.op("add", x, 3), 0), 6), 6)


def leaky_relu(b: Builder, x: str) -> str:
    slope = b.rng.choice((0.01, 0.1, 0.2, 0.05, 0.3))
    return b.op("where", b.op("gt", x, 0), x, b.op("mul", x, slope))


def elu(b: Builder, x: str) -> str:
    alpha = b.rng.choice((1.0, 1.0, 1.6732632423543772, 0.5))
    low = b.op("expm1", x)
    low = low if alpha == 1.0 else b.op("mul", low, alpha)
    return b.op("where", b.op("gt", x, 0), x, low)


def clamp(b: Builder, x: str) -> str:
    lo, hi = sorted((round(b.rng.uniform(-3, 0.5), 2), round(b.rng.uniform(0.2, 4), 2)))
    if lo == hi or b.interval[x][0] >= hi or b.interval[x][1] <= lo:
        raise Unsuitable("clamp to a constant")
    return b.op("minimum", b.op("maximum", x, lo), hi)


def softsign(b: Builder, x: str) -> str:
    return b.op("div", x, b.op("add", b.op("abs", x), 1))


def squared_relu(b: Builder, x: str) -> str:
    y = b.op("relu", x)
    return b.op("mul", y, y)


def tanh_cap(b: Builder, x: str) -> str:
    cap = b.rng.choice((30.0, 50.0, 15.0))
    return b.op("mul", b.op("tanh", b.op("div", x, cap)), cap)


def plain(fn: str) -> Fragment:
    return lambda b, x: b.op(fn, x)


ACTIVATIONS: tuple[Fragment, ...] = (
    plain("relu"),
    plain("relu"),
    plain("tanh"),
    plain("sigmoid"),
    gelu,
    gelu_tanh,
    silu,
    quick_gelu,
    softplus,
    mish,
    hardswish,
    hardsigmoid,
    leaky_relu,
    elu,
    clamp,
    softsign,
    squared_relu,
    tanh_cap,
)


def relu_backward(b: Builder, g: str, x: str) -> str:
    return b.op("where", b.op("le", x, 0), 0.0, g)


def tanh_backward(b: Builder, g: str, y: str) -> str:
    return b.op("mul", g, b.op("sub", 1, b.op("mul", y, y)))


def sigmoid_backward(b: Builder, g: str, y: str) -> str:
    return b.op("mul", b.op("mul", g, y), b.op("sub", 1, y))


def silu_backward(b: Builder, g: str, x: str) -> str:
    s = b.op("sigmoid", x)
    inner = b.op("add", b.op("mul", x, b.op("sub", 1, s)), 1)
    return b.op("mul", g, b.op("mul", s, inner))


def gelu_backward(b: Builder, g: str, x: str) -> str:
    cdf = b.op("mul", b.op("add", b.op("erf", b.op("mul", x, 0.7071067811865476)), 1), 0.5)
    pdf = b.op("exp", b.op("mul", b.op("mul", x, x), -0.5))
    pdf = b.op("mul", b.op("mul", pdf, 0.3989422804014327), x)
    return b.op("mul", g, b.op("add", cdf, pdf))


def gelu_tanh_backward(b: Builder, g: str, x: str) -> str:
    square = b.op("mul", x, x)
    inner = b.op("mul", b.op("add", x, b.op("mul", b.op("mul", square, x), 0.044715)), 0.7978845608028654)
    t = b.op("tanh", inner)
    left = b.op("mul", b.op("add", t, 1), 0.5)
    slope = b.op("sub", 1, b.op("mul", t, t))
    d = b.op("mul", b.op("add", b.op("mul", square, 0.134145), 1), 0.7978845608028654)
    right = b.op("mul", b.op("mul", b.op("mul", x, 0.5), slope), d)
    return b.op("mul", g, b.op("add", left, right))


def leaky_relu_backward(b: Builder, g: str, x: str) -> str:
    return b.op("where", b.op("gt", x, 0), g, b.op("mul", g, b.rng.choice((0.01, 0.1, 0.2))))


def elu_backward(b: Builder, g: str, y: str) -> str:
    return b.op("where", b.op("le", y, 0), b.op("mul", g, b.op("add", y, 1.0)), g)


def hardswish_backward(b: Builder, g: str, x: str) -> str:
    ramp = b.op("mul", g, b.op("add", b.op("div", x, 3), 0.5))
    inside = b.op("where", b.op("le", x, 3), ramp, g)
    return b.op("where", b.op("lt", x, -3), 0.0, inside)


BACKWARDS: tuple[Callable[[Builder, str, str], str], ...] = (
    relu_backward,
    relu_backward,
    tanh_backward,
    sigmoid_backward,
    silu_backward,
    gelu_backward,
    gelu_tanh_backward,
    leaky_relu_backward,
    elu_backward,
    hardswish_backward,
)


def dropout(b: Builder, x: str, mask: str) -> str:
    """A saved mask, cast and scaled, as dropout's forward and backward have it."""
    keep = b.op("cast", mask, dtype=b.dtype[x])
    if b.rng.random() < 0.5:
        return b.op("mul", b.op("mul", x, keep), b.rng.choice((1.1111111111111112, 1.25, 2.0)))
    return b.op("mul", x, b.op("mul", keep, b.rng.choice((1.1111111111111112, 1.25, 2.0))))


def masked(b: Builder, x: str, mask: str) -> str:
    return b.op("where", mask, x, b.rng.choice((0.0, 0.0, -100.0, -10000.0)))


EPSILONS = (1e-05, 1e-06, 1e-12, 1e-08, 0.001, 1.1920928955078125e-07)


def standardise(b: Builder, x: str, over: tuple[str, ...]) -> tuple[str, str, str]:
    """(x - mean) / sqrt(var + eps); returns the result, the mean and the reciprocal deviation."""
    mean = b.op("mean", x, over=over)
    if b.rng.random() < 0.8:
        var = b.op("var", x, 0, over=over)
        away = b.op("sub", x, mean)
    else:
        away = b.op("sub", x, mean)
        var = b.op("mean", b.op("mul", away, away), over=over)
    shifted = b.op("add", var, b.rng.choice(EPSILONS))
    if b.rng.random() < 0.85:
        rstd = b.op("rsqrt", shifted)
        return _normal(b, b.op("mul", away, rstd)), mean, rstd
    root = b.op("sqrt", shifted)
    return _normal(b, b.op("div", away, _positive(b, root))), mean, root


def _positive(b: Builder, x: str) -> str:
    b.interval[x] = (max(b.interval[x][0], 0.05), max(b.interval[x][1], 0.1))
    return x


def _normal(b: Builder, x: str) -> str:
    b.interval[x] = (-5.0, 5.0)
    return x


def rms(b: Builder, x: str, over: tuple[str, ...]) -> tuple[str, str]:
    square = b.op("mul", x, x) if b.rng.random() < 0.5 else b.op("pow", x, 2)
    mean = _positive(b, b.op("mean", square, over=over))
    rstd = b.op("rsqrt", b.op("add", mean, b.rng.choice(EPSILONS)))
    return _normal(b, b.op("mul", x, rstd)), rstd


def softmax(b: Builder, x: str, over: tuple[str, ...], log: bool = False) -> str:
    top = b.op("amax", x, over=over)
    away = b.op("sub", x, top)
    lo, hi = b.interval[x]
    b.interval[away] = (lo - hi, 0.0)
    e = b.op("exp", away)
    total = b.op("sum", e, over=over)
    b.interval[total] = (1.0, max(2.0, b.interval[total][1]))
    if log:
        return b.op("sub", away, b.op("log", total))
    y = b.op("div", e, total)
    b.interval[y] = (0.0, 1.0)
    return y


def softmax_backward(b: Builder, g: str, y: str, over: tuple[str, ...]) -> str:
    product = b.op("mul", g, y)
    total = b.op("sum", product, over=over)
    if b.rng.random() < 0.5:
        return b.op("fma", b.op("neg", y), total, product)
    return b.op("sub", product, b.op("mul", y, total))


def log_softmax_backward(b: Builder, g: str, y: str, over: tuple[str, ...]) -> str:
    total = b.op("sum", g, over=over)
    e = b.op("exp", b.op("minimum", y, 0.0) if b.interval[y][1] > 8 else y)
    return b.op("sub", g, b.op("mul", e, total))


def norm_backward(b: Builder, g: str, xhat: str, rstd: str, over: tuple[str, ...], count: int) -> str:
    """Gradient of a standardisation: rstd / n * (n g - sum g - xhat sum(g xhat)), in one of two spellings."""
    if b.rng.random() < 0.6:
        scaled = b.op("mul", g, count)
        first = b.op("sum", g, over=over)
        second = b.op("sum", b.op("mul", g, xhat), over=over)
        inner = b.op("sub", b.op("sub", scaled, first), b.op("mul", xhat, second))
        return b.op("mul", b.op("div", rstd, count), inner)
    first = b.op("mean", g, over=over)
    second = b.op("mean", b.op("mul", g, xhat), over=over)
    return b.op("mul", b.op("sub", b.op("sub", g, first), b.op("mul", xhat, second)), rstd)


def rms_backward(b: Builder, g: str, xhat: str, rstd: str, over: tuple[str, ...], count: int) -> str:
    total = b.op("sum", b.op("mul", xhat, g), over=over)
    share = b.op("mul", b.op("div", xhat, count), total)
    return b.op("mul", b.op("sub", g, share), rstd)
