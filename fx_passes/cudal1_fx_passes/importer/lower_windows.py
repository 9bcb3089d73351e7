"""Lowerings of pooling: a reduction over window axes of a value read at stride*out + dilation*k - padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from cudal1_fx_passes.importer.draft import Draft, DraftIndex, DraftRef, Value, window_atom
from cudal1_fx_passes.importer.lowering import Call, Result, extent, lowers
from cudal1_fx_passes.importer.unify import Atom, AxisConflict, Dim, Extent, find, keep_apart, new_dim
from cudal1_fx_passes.program.ir import FLOAT_DTYPES

OFFSETS_TO_INDICES = "prims._low_memory_max_pool_offsets_to_indices.default"


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a pooling, a number for each spatial dim."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    read: list[int]  # elements of what is pooled
    made: list[int]  # windows

    @property
    def inside(self) -> bool:
        """Whether every window lies inside the tensor and its padding."""
        last = zip(self.made, self.stride, self.kernel, self.padding, self.read, strict=True)
        return all((o - 1) * s + k <= n + 2 * p for o, s, k, p, n in last)

    @property
    def tile(self) -> bool:
        """Whether every element is in one window."""
        moved = any(self.padding) or any(d != 1 for d in self.dilation) or self.stride != self.kernel
        return not moved and all(m * k == n for m, k, n in zip(self.made, self.kernel, self.read, strict=True))


def windows_of(c: Call, read: fx.Node, made: Sequence[Extent]) -> Windows:
    """Of a node that pools the last dims of `read`, by its arguments. made: its windows."""
    count = len(made)
    kernel = _each(c.integers("kernel_size"), count)
    stride = _each(c.integers("stride") or kernel, count)
    padding = _each(c.integers("padding"), count)
    dilation = _each(c.integers("dilation"), count) if "dilation" in c.args else [1] * count
    return Windows(kernel, stride, padding, dilation, static(spatial(read, count)), static(made))


def adaptive_windows(read: Sequence[Extent], made: Sequence[Extent]) -> Windows:
    sizes, counts = static(read), static(made)
    if any(s % m for s, m in zip(sizes, counts, strict=True)):
        raise AxisConflict("adaptive pooling whose sizes do not divide")
    kernel = [s // m for s, m in zip(sizes, counts, strict=True)]
    return Windows(kernel, kernel, [0] * len(kernel), [1] * len(kernel), sizes, counts)


def spatial(node: fx.Node, count: int) -> list[Extent]:
    return [extent(n) for n in node.meta["val"].shape[-count:]]


def static(sizes: Sequence[Extent]) -> list[int]:
    found = [s for s in sizes if isinstance(s, int)]
    if len(found) != len(sizes):
        raise AxisConflict("pooling over a symbolic dim")
    return found


def _each(items: list[int], count: int) -> list[int]:
    return items * count if len(items) == 1 else items


def spatial_dims(c: Call) -> int:
    return 3 if "3d" in str(c.node.target) else 2


def _reduce(c: Call, value: Value, w: Windows, *made: tuple[str, str]) -> list[Value]:
    """Reductions over each window of the last dims of a value. made: function and dtype of each."""
    if not isinstance(value.source, str) or value.access:
        raise AxisConflict("pooling of a sliced value or a literal")
    first = len(value.dims) - len(w.kernel)
    access: list[tuple[Atom, DraftIndex]] = []
    over: list[Atom] = []
    dims: list[Dim] = list(value.dims[:first])
    for i, kernel in enumerate(w.kernel):
        out = new_dim(w.made[i], w.made[i])
        terms = [(w.stride[i], a) for a in out]
        if kernel > 1:
            over.append(window_atom(kernel))
            terms.append((w.dilation[i], over[-1]))
        if value.dims[first + i]:
            axis = c.draft.whole_axis(value, first + i, "pooling")
            if axis not in c.draft.varies_over(value):
                raise AxisConflict("pooling over an expanded dim")
            access.append((axis, DraftIndex(tuple(terms), -w.padding[i])))
        elif kernel > 1:
            raise AxisConflict("pooling over a dim of size 1")
        dims.append(out)
    if not over:
        raise AxisConflict("pooling with a window of 1")
    keep_apart(a for d in (*dims, tuple(over)) for a in d)
    read = {find(a) for a, _ in access}
    kept = [a for a in c.draft.varies_over(value) if a not in read]
    atoms = kept + [a for d in dims[first:] for a in d]
    ref = DraftRef(value.source, tuple(access))
    names = [c.draft.write(fn, dtype, [ref], atoms, over) for fn, dtype in made]
    return [Value(name, tuple(dims), dtype) for name, (_, dtype) in zip(names, made, strict=True)]


def _settled(c: Call) -> Value:
    return c.draft.settle(c.first())


def _of_first(c: Call, count: int) -> Windows:
    return windows_of(c, c.node.args[0], static(c.extents[-count:]))  # type: ignore[arg-type]


@lowers("aten.max_pool2d_with_indices.default aten.max_pool3d_with_indices.default", role="window", weight=1)
def lower_max_pool(c: Call) -> Result:
    w = _of_first(c, spatial_dims(c))
    values, positions = _maxima(c, w, "i64")
    return values, None if positions is None else _flat_indices(c.draft, positions, w)


@lowers("prims._low_memory_max_pool_with_offsets.default", role="window", weight=2)
def lower_max_pool_offsets(c: Call) -> Result:
    """The offset is the row-major position within the window, as i8."""
    return _maxima(c, _of_first(c, len(c.integers("kernel_size"))), "i8")


def _maxima(c: Call, w: Windows, dtype: str) -> tuple[Value, Value | None]:
    """Each window's maximum, and its position in the window where that is used."""
    value = _settled(c)
    if not any(u.args[1] == 1 and u.users for u in c.node.users):
        return _reduce(c, value, w, ("amax", value.dtype))[0], None
    values, positions = _reduce(c, value, w, ("amax", value.dtype), ("argmax", dtype))
    return values, positions


@lowers("aten.avg_pool2d.default aten.avg_pool3d.default", role="window", weight=2)
def lower_avg_pool(c: Call) -> Result:
    value = _settled(c)
    if value.dtype not in FLOAT_DTYPES:
        raise AxisConflict("average pooling of integers")
    w = _of_first(c, spatial_dims(c))
    whole = not c.args["count_include_pad"] or (w.inside and not any(w.padding))
    if c.args["divisor_override"] is None and whole:
        return _reduce(c, value, w, ("mean", value.dtype))[0]
    wide = c.wide(value)
    (total,) = _reduce(c, wide, w, ("sum", wide.dtype))
    return c.draft.cast(average(c, total, w), value.dtype)


def average(c: Call, x: Value, w: Windows) -> Value:
    """x, in dims (..., window), over what each window counts. Half types become float32 where counts differ."""
    d = c.draft
    if c.args["divisor_override"] is not None:
        return d.pointwise("div", [x, c.number("divisor_override")])
    count = _counted(d, x, w, bool(c.args["count_include_pad"]))
    if isinstance(count, int):
        return d.pointwise("div", [x, count])
    return d.pointwise("div", [c.wide(x), c.wide(count)])


def _counted(d: Draft, x: Value, w: Windows, padded: bool) -> Value | int:
    """Elements of each window, those of the padding if `padded` counts them."""
    first = len(x.dims) - len(w.kernel)
    found: Value | int = 1
    for i, (kernel, stride, padding, size) in enumerate(zip(w.kernel, w.stride, w.padding, w.read, strict=True)):
        least, most = (-padding, size + padding) if padded else (0, size)
        starts = [at * stride - padding for at in range(w.made[i])]
        counts = [min(start + kernel, most) - max(start, least) for start in starts]
        if len(set(counts)) == 1:
            found = scaled(d, found, counts[0])
            continue
        start = scaled(d, position(d, x, first + i), stride, -padding)
        end = d.pointwise("minimum", [integer_sum(d, start, kernel), most])
        if starts[0] < least:
            start = d.pointwise("maximum", [start, least])
        here = d.pointwise("sub", [end, start])
        found = d.pointwise("mul", [here, found]) if found != 1 else here
    return found


@lowers("aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool3d.default", role="window", weight=1)
def lower_adaptive(c: Call) -> Result:
    value = _settled(c)
    if value.dtype not in FLOAT_DTYPES:
        raise AxisConflict("average pooling of integers")
    made = c.integers("output_size")
    first = len(value.dims) - len(made)
    if all(m == 1 for m in made):
        return c.draft.reduce("mean", value, list(range(first, len(value.dims))), True)
    w = adaptive_windows(spatial(c.node.args[0], len(made)), made)  # type: ignore[arg-type]
    return _reduce(c, value, w, ("mean", value.dtype))[0]


@lowers(OFFSETS_TO_INDICES, weight=8)
def lower_pool_indices(c: Call) -> Result:
    kernel = c.integers("kernel_size")
    stride, padding, dilation = (_each(c.integers(n), len(kernel)) for n in ("stride", "padding", "dilation"))
    w = Windows(kernel, stride, padding, dilation, c.integers("input_size"), static(spatial(c.node, len(kernel))))
    return _flat_indices(c.draft, c.draft.cast(_settled(c), "i64"), w)


def _flat_indices(d: Draft, offset: Value, w: Windows) -> Value:
    """Row-major positions within what was pooled: each window's corner, and its offset from there in digits."""
    if math.prod(w.kernel) == 1:
        raise AxisConflict("indices of a pooling with a window of 1")
    first = len(offset.dims) - len(w.kernel)
    found: Value | int = 0
    for i, size in enumerate(w.read):
        digit, offset = _digit(d, offset, w.kernel[i], math.prod(w.kernel[i + 1 :]))
        corner = scaled(d, position(d, offset, first + i), w.stride[i], -w.padding[i])
        found = integer_sum(d, scaled(d, found, size), integer_sum(d, corner, scaled(d, digit, w.dilation[i])))
    if not isinstance(found, Value):
        raise AxisConflict("indices of a pooling to one place")
    return found


def _digit(d: Draft, offset: Value, kernel: int, inner: int) -> tuple[Value | int, Value]:
    """offset // inner, which is below `kernel`, without a division; and what is left."""
    digit: Value | int = 0
    for step in range(1, kernel):
        digit = integer_sum(d, digit, d.cast(d.pointwise("ge", [offset, step * inner]), "i64"))
    return digit, d.pointwise("sub", [offset, scaled(d, digit, inner)]) if isinstance(digit, Value) else offset


def position(d: Draft, value: Value, dim: int) -> Value | int:
    """The position along a dim, as a value that varies along it alone."""
    if not value.dims[dim]:
        return 0
    return along(d.iota(d.whole_axis(value, dim, "pooling")), dim, len(value.dims))


def along(x: Value, dim: int, rank: int) -> Value:
    return replace(x, dims=tuple(x.dims[0] if i == dim else () for i in range(rank)))


def scaled(d: Draft, x: Value | int, factor: int, offset: int = 0) -> Value | int:
    if not isinstance(x, Value):
        return x * factor + offset
    return integer_sum(d, d.pointwise("mul", [x, factor]) if factor != 1 else x, offset)


def integer_sum(d: Draft, a: Value | int, b: Value | int) -> Value | int:
    if isinstance(a, Value) or isinstance(b, Value):
        return a if b == 0 else b if a == 0 else d.pointwise("add", [a, b])
    return a + b
