"""Lowerings of pooling: a reduction over window axes of a value read at stride*out + dilation*k - padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from cudal1_fx_passes.draft import Draft, DraftRef, Place, Value, window_atom
from cudal1_fx_passes.lowering import Call, Result, extent, find_overload, lowers
from cudal1_fx_passes.program import FLOAT_DTYPES, Domain, Literal
from cudal1_fx_passes.unify import Atom, AxisConflict, Dim, find, keep_apart, new_atom, new_dim, regroup

OFFSETS_TO_INDICES = "prims._low_memory_max_pool_offsets_to_indices.default"


class Window:
    """The windows of a pooling over the last dims of a value."""

    def __init__(
        self, c: Call, value: Value, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
    ):
        self.c, self.value = c, value
        self.first = len(value.dims) - len(kernel)
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        shape = c.node.args[0].meta["val"].shape  # type: ignore[union-attr]
        self.sizes = [extent(s) for s in shape[self.first :]]
        self.made = [extent(s) for s in c.meta.shape[self.first :]]
        if not all(isinstance(s, int) for s in (*self.sizes, *self.made)):
            raise AxisConflict("pooling over a symbolic dim")
        if not isinstance(value.source, str) or value.access:
            raise AxisConflict("pooling of a sliced value or a literal")
        self._build()

    def _build(self) -> None:
        access: list[tuple[Atom, Place]] = []
        self.over: list[Atom] = []
        dims: list[Dim] = list(self.value.dims[: self.first])
        for i, (kernel, made) in enumerate(zip(self.kernel, self.made, strict=True)):
            assert isinstance(made, int)
            out = new_dim(made, made)
            terms = [(self.stride[i], a) for a in out]
            if kernel > 1:
                self.over.append(window_atom(kernel))
                terms.append((self.dilation[i], self.over[-1]))
            place = Place(tuple(terms), -self.padding[i])
            if self.value.dims[self.first + i]:
                axis = self.c.draft.whole_axis(self.value, self.first + i, "pooling")
                if axis not in self.c.draft.varies_over(self.value):
                    raise AxisConflict("pooling over an expanded dim")
                access.append((axis, place))
            elif kernel > 1:
                raise AxisConflict("pooling over a dim of size 1")
            dims.append(out)
        self.access = tuple(access)
        self.dims = tuple(dims)
        if not self.over:
            raise AxisConflict("pooling with a window of 1")
        keep_apart(a for d in (*dims, tuple(self.over)) for a in d)

    def reduce(self, fn: str, dtype: str) -> Value:
        assert isinstance(self.value.source, str)
        read = {find(a) for a, _ in self.access}
        kept = [a for a in self.c.draft.varies_over(self.value) if a not in read]
        atoms = kept + [a for d in self.dims[self.first :] for a in d]
        ref = DraftRef(self.value.source, self.access)
        name = self.c.draft.write(fn, dtype, [ref], atoms, self.over)
        return Value(name, self.dims, dtype)

    @property
    def inside(self) -> bool:
        """Whether every window lies inside the tensor and its padding."""
        last = zip(self.made, self.stride, self.kernel, self.padding, self.sizes, strict=True)
        return all((o - 1) * s + k <= n + 2 * p for o, s, k, p, n in last)

    @property
    def padded(self) -> bool:
        return any(self.padding)


def _pair(items: list[int], count: int) -> list[int]:
    return items * count if len(items) == 1 else items


def _pool(c: Call, value: Value, count: int) -> Window:
    kernel = _pair(c.integers("kernel_size"), count)
    stride = _pair(c.integers("stride") or kernel, count)
    dilation = _pair(c.integers("dilation"), count) if "dilation" in c.args else [1] * count
    return Window(c, value, kernel, stride, _pair(c.integers("padding"), count), dilation)


def _settled(c: Call) -> Value:
    return c.draft.settle(c.first())


@lowers("aten.max_pool2d_with_indices.default aten.max_pool3d_with_indices.default", role="window", weight=1)
def lower_max_pool(c: Call) -> Result:
    if any(u.args[1] == 1 and u.users for u in c.node.users):
        raise AxisConflict("max pooling whose flat indices are used")
    value = _settled(c)
    return _pool(c, value, 3 if "3d" in str(c.node.target) else 2).reduce("amax", value.dtype), None


@lowers("prims._low_memory_max_pool_with_offsets.default", role="window", weight=2)
def lower_max_pool_offsets(c: Call) -> Result:
    """The offset is the row-major position within the window, as i8."""
    value = _settled(c)
    window = _pool(c, value, len(c.integers("kernel_size")))
    values = window.reduce("amax", value.dtype)
    if not any(u.args[1] == 1 and u.users for u in c.node.users):
        return values, None
    return values, window.reduce("argmax", "i8")


@lowers("aten.avg_pool2d.default aten.avg_pool3d.default", role="window", weight=2)
def lower_avg_pool(c: Call) -> Result:
    value = _settled(c)
    if value.dtype not in FLOAT_DTYPES:
        raise AxisConflict("average pooling of integers")
    window = _pool(c, value, 3 if "3d" in str(c.node.target) else 2)
    divisor = c.args.get("divisor_override")
    if divisor is not None:
        return c.draft.pointwise("div", [window.reduce("sum", value.dtype), c.number("divisor_override")])
    if not c.args["count_include_pad"]:
        return window.reduce("mean", value.dtype)
    if not window.inside:
        raise AxisConflict("average pooling with ceil_mode that counts its padding")
    if not window.padded:
        return window.reduce("mean", value.dtype)
    count = 1
    for k in window.kernel:
        count *= k
    return c.draft.pointwise("div", [window.reduce("sum", value.dtype), count])


@lowers("aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool3d.default", role="window", weight=1)
def lower_adaptive(c: Call) -> Result:
    value = _settled(c)
    if value.dtype not in FLOAT_DTYPES:
        raise AxisConflict("average pooling of integers")
    made = c.integers("output_size")
    first = len(value.dims) - len(made)
    if all(m == 1 for m in made):
        return c.draft.reduce("mean", value, list(range(first, len(value.dims))), True)
    sizes = c.node.args[0].meta["val"].shape[first:]  # type: ignore[union-attr]
    if not all(isinstance(s, int) for s in sizes) or any(s % m for s, m in zip(sizes, made, strict=True)):
        raise AxisConflict("adaptive pooling whose sizes do not divide")
    kernel = [s // m for s, m in zip(sizes, made, strict=True)]
    return Window(c, value, kernel, kernel, [0] * len(made), [1] * len(made)).reduce("mean", value.dtype)


@lowers("aten.avg_pool2d_backward.default aten.avg_pool3d_backward.default", role="pointwise", weight=2)
def lower_avg_pool_backward(c: Call) -> Result:
    """Windows that do not overlap: every position gets its window's gradient, divided by the window's size."""
    count = 3 if "3d" in str(c.node.target) else 2
    kernel = _pair(c.integers("kernel_size"), count)
    stride = _pair(c.integers("stride") or kernel, count)
    if stride != kernel or any(c.integers("padding")) or c.args["divisor_override"] is not None:
        raise AxisConflict("the backward of average pooling with overlapping or padded windows")
    grad = c.value("grad_output")
    first = len(grad.dims) - count
    sizes = c.extents[first:]
    made = [extent(s) for s in c.node.args[0].meta["val"].shape[first:]]  # type: ignore[union-attr]
    if any(not isinstance(m, int) or m * k != s for m, k, s in zip(made, kernel, sizes, strict=True)):
        raise AxisConflict("the backward of average pooling that leaves a rest")
    share = c.draft.pointwise("div", [grad, math.prod(kernel)])
    spread = [(*d, *new_dim(k, k)) for d, k in zip(share.dims[first:], kernel, strict=True)]
    return replace(share, dims=(*share.dims[:first], *spread))


@lowers(OFFSETS_TO_INDICES, weight=8)
def lower_pool_indices(c: Call) -> Result:
    """Row-major places within what was pooled: each window's corner, and the digits of its offset from there."""
    d, offset = c.draft, c.draft.cast(_settled(c), "i64")
    kernel, sizes = c.integers("kernel_size"), c.integers("input_size")
    if math.prod(kernel) == 1:
        raise AxisConflict("indices of a pooling with a window of 1")
    stride, padding, dilation = (_pair(c.integers(n), len(kernel)) for n in ("stride", "padding", "dilation"))
    first = len(offset.dims) - len(kernel)
    found: Value | int = 0
    for i, size in enumerate(sizes):
        digit, offset = _digit(d, offset, kernel[i], math.prod(kernel[i + 1 :]))
        corner = _scaled(d, _position(c, offset, first + i), stride[i], -padding[i])
        found = _sum(d, _scaled(d, found, size), _sum(d, corner, _scaled(d, digit, dilation[i])))
    if not isinstance(found, Value):
        raise AxisConflict("indices of a pooling to one place")
    return found


def _digit(d: Draft, offset: Value, kernel: int, inner: int) -> tuple[Value | int, Value]:
    """offset // inner, which is below `kernel`, without a division; and what is left."""
    digit: Value | int = 0
    for step in range(1, kernel):
        digit = _sum(d, digit, d.cast(d.pointwise("ge", [offset, step * inner]), "i64"))
    return digit, d.pointwise("sub", [offset, _scaled(d, digit, inner)]) if isinstance(digit, Value) else offset


def _position(c: Call, value: Value, dim: int) -> Value | int:
    if not value.dims[dim]:
        return 0
    return _along(c.draft.iota(c.draft.whole_axis(value, dim, "pooling")), dim, len(value.dims))


def _along(x: Value, dim: int, rank: int) -> Value:
    return replace(x, dims=tuple(x.dims[0] if i == dim else () for i in range(rank)))


def _scaled(d: Draft, x: Value | int, factor: int, offset: int = 0) -> Value | int:
    if not isinstance(x, Value):
        return x * factor + offset
    return _sum(d, d.pointwise("mul", [x, factor]) if factor != 1 else x, offset)


def _sum(d: Draft, a: Value | int, b: Value | int) -> Value | int:
    if isinstance(a, Value) or isinstance(b, Value):
        return a if b == 0 else b if a == 0 else d.pointwise("add", [a, b])
    return a + b


@lowers("aten.max_pool2d_with_indices_backward.default aten.scatter_add.default", weight=6)
def lower_max_pool_backward(c: Call) -> Result:
    """Windows that do not overlap: the gradient goes to the place that the offset names, zeros to the others.

    torch versions write it as the backward of pooling, or as a sum at flat indices into zeros.
    """
    is_sum = "indices" not in c.args
    pooled = _pooled(c.args["index" if is_sum else "indices"])
    if pooled is None:
        raise AxisConflict(f"{c.node.target} at computed places")
    offsets = c.results(pooled.args[0])  # type: ignore[arg-type]
    kernel, sizes, stride = (list(pooled.args[i]) for i in (1, 2, 3))  # type: ignore[arg-type]
    moved = any(pooled.args[4]) or any(n != 1 for n in pooled.args[5])  # type: ignore[union-attr, arg-type]
    shape = [extent(n) for n in pooled.meta["val"].shape]
    first = len(shape) - len(kernel)
    if moved or stride != kernel or any(m * k != n for m, k, n in zip(shape[first:], kernel, sizes, strict=True)):
        raise AxisConflict("the backward of max pooling with overlapping or padded windows, or a rest")
    assert isinstance(offsets, Value)
    grad = c.value("src" if is_sum else "grad_output")
    grad = replace(grad, dims=regroup(grad.dims, shape))
    spread = _spread(c.draft, grad, c.draft.settle(offsets), kernel)
    pairs = [spread.dims[at] + spread.dims[at + 1] for at in range(first, len(spread.dims), 2)]
    if not is_sum:
        return replace(spread, dims=(*spread.dims[:first], *pairs))
    base, dim = c.value("self"), c.args["dim"]
    if base.source != Literal(0.0) or (len(base.dims), dim) != (2, 1):
        raise AxisConflict("a sum at places of a tensor that is not zero")
    return replace(spread, dims=(_joined(spread.dims[:first]), _joined(pairs)))


def _joined(dims: Sequence[Dim]) -> Dim:
    return tuple(atom for dim in dims for atom in dim)


def _pooled(index: fx.Node) -> fx.Node | None:
    """The node that made flat indices of a pooling's offsets, behind reshapes."""
    while index.target is torch.ops.aten.reshape.default or index.target is torch.ops.aten.view.default:
        (index, _) = index.args  # type: ignore[assignment]
    return index if index.target is find_overload(OFFSETS_TO_INDICES) else None


def _spread(d: Draft, grad: Value, offsets: Value, kernel: list[int]) -> Value:
    """The gradient where an offset is its place in the window, in dims (..., out, window, out, window)."""
    if isinstance(offsets.source, str) and offsets.source.startswith("in"):
        d.domains[offsets.source] = Domain(0.0, float(math.prod(kernel) - 1))
    first = len(grad.dims) - len(kernel)
    rank = first + 2 * len(kernel)

    def apart(x: Value) -> Value:
        return replace(x, dims=(*x.dims[:first], *(y for dim in x.dims[first:] for y in (dim, ()))))

    place: Value | int = 0
    for i, size in enumerate(kernel):
        if size > 1:
            step = _along(d.iota(new_atom(size, size)), first + 2 * i + 1, rank)
            place = _sum(d, place, _scaled(d, step, math.prod(kernel[i + 1 :])))
    if not isinstance(place, Value):
        raise AxisConflict("pooling with a window of 1")
    return d.pointwise("where", [d.pointwise("eq", [d.cast(apart(offsets), "i64"), place]), apart(grad), 0])
