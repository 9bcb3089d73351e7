"""Tasks that read at other indices: pooling windows, rotary halves, concatenation, shifts, gathers; and scans."""

from __future__ import annotations

import random

from cudal1_fx_passes.program.ir import Axis, Domain, Index, Program, Ref
from cudal1_trainer.tasks import idioms
from cudal1_trainer.tasks.builder import Builder, Unsuitable
from cudal1_trainer.tasks.setup import Region, part
from cudal1_trainer.tasks.shapes import Sizes


def pooling(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Max, average or sum over 1 to 3 window axes, with a prologue and an epilogue."""
    rank = rng.choices((1, 2, 3), (2, 5, 2))[0]
    outer, space = _pool_shape(rng, sizes, rank)
    kernel, stride, padding = _window(rng, space, rank)
    made = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(space, kernel, stride, padding, strict=True)]
    if min(made) < 1:
        raise Unsuitable("a window larger than its tensor")
    count = len(outer)
    read = [f"d{count + i}" for i in range(rank)]
    out = [f"d{count + rank + i}" for i in range(rank)]
    axes = [Axis(f"d{i}", n) for i, n in enumerate([*outer, *space, *made])]
    axes += [Axis(f"k{i}", k) for i, k in enumerate(kernel)]
    r = _region(rng, axes)
    whole = tuple(f"d{i}" for i in range(count)) + tuple(read)
    before, after = part(rng, max(0, n_ops - 2), 2)
    x = _prologue(r, whole, before)
    places = {
        a: Index(((s, o), (1, f"k{i}")), -p)
        for i, (a, o, s, p) in enumerate(zip(read, out, stride, padding, strict=True))
    }
    over = [f"k{i}" for i in range(rank)]
    ends = _pooled(r, x, places, over, kernel, any(padding), len(r.b.ops) < 2)
    shaped = (*whole[:count], *out)
    values = [ends[0]]
    if after > 1 and rng.random() < 0.4:
        values.append(r.weight(whole[min(1, count - 1) : count]) if rng.random() < 0.5 else r.tensor(shaped))
    ends[0] = r.spread(values, after)
    if rng.random() < 0.1 and before > 1 and not x.startswith("in"):
        ends.append(x)
    return r.b.finish(r.out(v) for v in ends)


def scan(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """cumsum or cumprod of rows or columns, with prologue, epilogue and sometimes a row's total."""
    width = max(2, min(sizes.width(), 65536))
    n = max(1, min(sizes.rows(sizes.elements(), width), 65536))
    three = rng.random() < 0.2 and n >= 4
    shape = [*sizes.split(n, 2), width] if three else [n, width]
    r = _region(rng, [Axis(f"d{i}", s) for i, s in enumerate(shape)])
    whole = tuple(r.b.size)
    along = whole[-1] if rng.random() < 0.8 else rng.choice(whole)
    before, after = part(rng, max(0, n_ops - 2), 2)
    fn = "cumsum" if rng.random() < 0.85 else "cumprod"
    if fn == "cumprod":
        length = r.b.size[along]
        inside = r.b.op("mul", r.b.op("tanh", _prologue(r, whole, before)), min(0.3, 2.0 / length))
        x = r.b.op("add", inside, 1.0)
        r.b.interval[x] = (0.9, 1.1)
        y = _along(r, "cumprod", x, along, (0.1, 8.0))
    else:
        x = _prologue(r, whole, before)
        if rng.random() < 0.15:
            x = r.b.op("mul", r.b.cast(r.mask(whole), r.compute), 1.0)
        shifted = Ref(x, ((along, Index(((-1, along),), r.b.size[along] - 1)),))
        source: str | Ref = shifted if rng.random() < 0.15 and r.b.dtype[x] == r.compute else x
        y = _along(r, "cumsum", source, along, None)
    values = [y]
    if after > 1 and rng.random() < 0.3:
        total = r.b.op("sum", r.b.op("abs", x), over=(along,))
        values = [r.b.op("div", y, r.b.op("add", total, 1.0))]
        r.b.interval[values[0]] = (-1.0, 1.0)
    if after > 1 and rng.random() < 0.4:
        values.append(r.tensor(whole))
    end = r.spread(values, after)
    return r.b.finish([r.out(end)])


def _along(r: Region, fn: str, x: str | Ref, axis: str, interval: tuple[float, float] | None) -> str:
    y = r.b.op(fn, x, over=(axis,))
    if interval is not None:
        r.b.interval[y] = interval
    return y


def rotary(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Rotate-half with cos and sin tables, forward or backward; heads and tokens in either memory order."""
    half = rng.choice((2, 4, 8, 16)) if sizes.small else rng.choice((16, 32, 32, 40, 48, 64, 64, 128))
    rows_ = max(2, sizes.elements() // (2 * half))
    batch, heads, tokens = sizes.split(max(8, rows_), 3)
    r = _region(
        rng, [Axis("d0", batch), Axis("d1", heads), Axis("d2", tokens), Axis("d3", 2 * half), Axis("d4", half)]
    )
    order = ("d0", "d2", "d1", "d3") if rng.random() < 0.5 else ("d0", "d1", "d2", "d3")
    table = ("d2", "d3") if rng.random() < 0.75 else ("d0", "d2", "d3")
    x = r.tensor(order)
    cos, sin = r.tensor(table, (-1.0, 1.0)), r.tensor(table, (-1.0, 1.0))
    values = [_rotated(r, x, cos, sin, half)]
    if rng.random() < 0.35:  # queries and keys in one region
        y = r.tensor(order)
        values.append(_rotated(r, y, cos, sin, half))
    spare = n_ops - len(r.b.ops)
    values[0] = r.spread([values[0]], spare if rng.random() < 0.5 else 0)
    orders = {}
    ends = [r.out(v) for v in values]
    if rng.random() < 0.6:
        orders = dict.fromkeys(ends, order)
    return r.b.finish(ends, orders)


def _rotated(r: Region, x: str, cos: str, sin: str, half: int) -> str:
    b = r.b
    first = b.op("lt", b.op("iota", over=("d3",)), half)
    upper = Ref(x, (("d3", Index(((1, "d4"),), half)),))
    negated = b.op("neg", upper)
    moved = b.op(
        "where",
        first,
        Ref(negated, (("d4", Index(((1, "d3"),))),)),
        Ref(x, (("d3", Index(((1, "d3"),), -half)),)),
    )
    return b.op("add", b.op("mul", x, cos), b.op("mul", moved, sin))


def joined(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Concatenation of two or three pieces, or a padded shift, then more operations or a reduction."""
    width = max(8, min(sizes.width(), 16384))
    n = max(2, sizes.rows(sizes.elements(), width))
    pieces = rng.choice((2, 2, 3))
    unit = max(1, width // pieces)
    shape = [n, unit * pieces, *[unit] * pieces]
    r = _region(rng, [Axis(f"d{i}", s) for i, s in enumerate(shape)])
    place = r.b.op("iota", over=("d1",))
    if rng.random() < 0.7:
        found: str | Ref = _piece(r, pieces - 1, unit)
        for i in reversed(range(pieces - 1)):
            found = r.b.op("where", r.b.op("lt", place, unit * (i + 1)), _piece(r, i, unit), found)
    else:
        x = r.tensor(("d0", "d1"))
        step = rng.choice((1, 2, unit))
        back = Ref(x, (("d1", Index(((1, "d1"),), -step)),))
        found = r.b.op("where", r.b.op("ge", place, step), back, rng.choice((0.0, x)))
    assert isinstance(found, str)
    r.b.interval[found] = (-5.0, 5.0)
    values = [found]
    if rng.random() < 0.5:
        values.append(r.tensor(("d0", "d1")))
    y = r.spread(values, max(0, n_ops - len(r.b.ops) - 1))
    if set(r.b.held[y]) != {"d0", "d1"}:
        y = r.b.op("add", y, found)
    ends = [y]
    if rng.random() < 0.35:
        ends = [r.b.op("sum", y, over=("d0",))] if rng.random() < 0.5 else [y, r.b.op("sum", y, over=("d0",))]
    return r.b.finish(r.out(v) for v in ends)


def _piece(r: Region, i: int, unit: int) -> Ref:
    """Piece i over its own axis, activated or not, read at its place in the whole."""
    axis = f"d{2 + i}"
    strides = (unit * r.rng.choice((1, 2, 4)), 1)
    x = r.tensor(("d0", axis), strides=None if strides[0] == unit else strides)
    if r.rng.random() < 0.4:
        x = r.rng.choice((idioms.plain("neg"), idioms.plain("tanh"), idioms.plain("relu"), idioms.silu))(r.b, x)
    return Ref(x, ((axis, Index(((1, "d1"),), -unit * i)),))


def gather(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Embedding rows (and positions) with a norm or an activation, or the picked logit of a cross entropy."""
    if rng.random() < 0.4:
        return _picked(rng, sizes, n_ops)
    hidden = max(4, min(sizes.width(), 8192))
    tokens = max(2, sizes.rows(sizes.elements(), hidden))
    vocabulary = rng.randint(3, 60) if sizes.small else rng.choice((512, 1000, 8192, 30522, 32000, 50257))
    r = _region(rng, [Axis("d0", tokens), Axis("d1", hidden), Axis("d2", vocabulary)])
    b = r.b
    index = b.input(("d0",), "i64", (0.0, vocabulary - 1.0), Domain(below="d2"))
    table = b.input(("d2", "d1"), r.store)
    rows_ = Ref(table, (("d2", Index(value=index)),))
    x = b.op("cast", rows_, dtype=r.compute) if r.store != r.compute else b.op("mul", rows_, 1.5)
    values = [x]
    if rng.random() < 0.6:
        values.append(r.tensor(("d0", "d1")))
    x = r.spread(values, max(0, n_ops - 8) // 2)
    if set(b.held[x]) != {"d0", "d1"}:
        x = b.op("mul", x, values[0])
    if rng.random() < 0.7:
        y = idioms.standardise(b, x, ("d1",))[0] if rng.random() < 0.6 else idioms.rms(b, x, ("d1",))[0]
        y = b.op("mul", y, r.weight(("d1",)))
        ends = [y, x] if rng.random() < 0.5 else [y]
    else:
        ends = [x]
    ends[0] = r.spread([ends[0]], max(0, n_ops - len(b.ops)))
    return b.finish(r.out(v) for v in ends)


def _picked(rng: random.Random, sizes: Sizes, n_ops: int) -> Program:
    """Cross entropy as torch writes it: log-softmax, the target's entry, ignored rows, mean."""
    width = max(3, sizes.width())
    n = max(2, sizes.rows(sizes.elements(), width))
    r = _region(rng, [Axis("d0", n), Axis("d1", width)])
    b = r.b
    x = r.tensor(("d0", "d1"))
    target = b.input(("d0",), "i64", (0.0, width - 1.0), Domain(below="d1"))
    top = b.op("amax", x, over=("d1",))
    away = b.op("sub", x, top)
    b.interval[away] = (-10.0, 0.0)
    log = b.op("log", b.op("sum", b.op("exp", away), over=("d1",)))
    y = b.op("sub", away, log)
    loss = b.op("neg", Ref(y, (("d1", Index(value=target)),)))
    if rng.random() < 0.5:
        kept = b.op("ne", target, rng.choice((0, 1, 2)))
        loss = b.op("where", kept, loss, 0.0)
    ends = [top, log] if rng.random() < 0.5 else []
    if rng.random() < 0.7:
        ends.insert(0, b.op("mean", loss, over=("d0",)))
    else:
        ends.insert(0, loss)
    return b.finish(ends)


def _region(rng: random.Random, axes: list[Axis]) -> Region:
    p = rng.random()
    store = "f32" if p > 0.5 else "bf16" if p > 0.18 else "f16"
    compute = "f32" if store == "f32" or rng.random() < 0.6 else store
    return Region(Builder(rng, axes), store, compute)


def _prologue(r: Region, whole: tuple[str, ...], spend: int) -> str:
    values = [r.tensor(whole)]
    if spend > 1 and r.rng.random() < 0.5:
        values.append(r.tensor(whole) if r.rng.random() < 0.5 else r.weight(whole[-2:-1] or whole[-1:]))
    x = r.spread(values, spend if r.rng.random() < 0.7 else 0)
    if set(r.b.held[x]) != set(whole):
        x = r.b.op("add", x, values[0])
    return x


def _pool_shape(rng: random.Random, sizes: Sizes, rank: int) -> tuple[list[int], list[int]]:
    if rank == 1:
        width = sizes.width()
        outer = sizes.split(max(2, sizes.elements() // max(1, width)), 2)
        return outer if rng.random() < 0.5 else [outer[0] * outer[1]], [width]
    n, c, h, w = sizes.image()
    if rank == 2:
        return [n, c] if rng.random() < 0.6 else [n * c], [h, w]
    depth = rng.choice((3, 4, 5)) if sizes.small else rng.choice((4, 8, 16, 32))
    return [max(1, n * c // depth)], [depth, h, w]


def _window(rng: random.Random, space: list[int], rank: int) -> tuple[list[int], list[int], list[int]]:
    """kernel, stride and padding; mostly equal in every direction."""
    k = rng.choice((2, 2, 3, 3, 3, 4, 5, 7) if rank < 3 else (2, 2, 3, 3))
    k = min(k, *space)
    s = rng.choice((k, k, 2, 1, 2))
    p = rng.choice((0, 0, k // 2)) if k > 1 else 0
    kernel, stride, padding = [k] * rank, [s] * rank, [p] * rank
    if rank > 1 and rng.random() < 0.1:
        kernel[0], stride[0], padding[0] = min(space[0], rng.choice((1, 2, 3))), 1, 0
    if kernel[0] < 2:
        kernel[0] = 2 if space[0] >= 2 else 1
    if min(kernel) < 2:
        raise Unsuitable("a window axis of one")
    return kernel, stride, padding


def _pooled(
    r: Region, x: str, places: dict[str, Index], over: list[str], kernel: list[int], padded: bool, shallow: bool
) -> list[str]:
    """The pooled value first; a max pool's positions may follow."""
    b, ref = r.b, Ref(x, tuple(sorted(places.items())))
    fn = r.rng.choices(("amax", "mean", "sum", "amin"), (5, 4, 1, 0.4))[0]
    if fn == "mean" and padded and r.rng.random() < 0.7:  # the padding counts
        count = 1
        for k in kernel:
            count *= k
        return [b.op("div", b.op("sum", ref, over=over), count)]
    y = b.op(fn, ref, over=over)
    if fn == "amax" and shallow and r.rng.random() < 0.5:  # no ties where an activation saturates
        return [y, b.op("argmax", ref, over=over, dtype="i8")]
    return [y]
