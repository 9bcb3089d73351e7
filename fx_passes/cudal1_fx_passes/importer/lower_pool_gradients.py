"""Lowerings of the gradients of pooling: each position sums over the windows that hold it.

    t1[d0,d2] = sum(t0[d1=(d2-k0+1)/2]) over k0    stride 2, padding 1; t0: what each window gives to its own

Windows that tile what was pooled need no sum: there each position is in one window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from cudal1_fx_passes.importer.draft import Access, Draft, DraftIndex, DraftRef, Value, window_atom
from cudal1_fx_passes.importer.lower_windows import (
    OFFSETS_TO_INDICES,
    Windows,
    adaptive_windows,
    along,
    average,
    integer_sum,
    position,
    scaled,
    spatial,
    spatial_dims,
    static,
    windows_of,
)
from cudal1_fx_passes.importer.lowering import Call, Result, extent, find_overload, lowers
from cudal1_fx_passes.importer.unify import AxisConflict, Dim, keep_apart, new_atom, new_dim, regroup
from cudal1_fx_passes.program.ir import Domain, Literal


@lowers("aten.avg_pool2d_backward.default aten.avg_pool3d_backward.default", role="window", weight=3)
def lower_avg_pool_backward(c: Call) -> Result:
    grad = c.args["grad_output"]
    made = static(spatial(grad, spatial_dims(c)))
    w = windows_of(c, c.node, made)
    share = average(c, c.value("grad_output"), w)
    return c.draft.cast(_gradient(c.draft, _shared(share, w), w), c.dtype)


@lowers("aten._adaptive_avg_pool2d_backward.default aten._adaptive_avg_pool3d_backward.default", weight=2)
def lower_adaptive_backward(c: Call) -> Result:
    count = spatial_dims(c)
    w = adaptive_windows(c.extents[-count:], spatial(c.args["grad_output"], count))
    share = c.draft.pointwise("div", [c.value("grad_output"), math.prod(w.kernel)])
    return _gradient(c.draft, _shared(share, w), w)


@lowers("aten.max_pool2d_with_indices_backward.default aten.max_pool3d_with_indices_backward.default", "window", 7)
def lower_max_pool_backward(c: Call) -> Result:
    indices, grad = c.args["indices"], c.value("grad_output")
    made = static(spatial(indices, spatial_dims(c)))
    return _of_maxima(c, indices, grad, windows_of(c, c.node, made))


@lowers("aten.adaptive_max_pool2d_backward.default aten.adaptive_max_pool3d_backward.default", weight=7)
def lower_adaptive_max_backward(c: Call) -> Result:
    indices, count = c.args["indices"], spatial_dims(c)
    w = adaptive_windows(c.extents[-count:], spatial(indices, count))
    return _of_maxima(c, indices, c.value("grad_output"), w)


@lowers("aten.scatter_add.default", "window", 7)
def lower_scatter_add(c: Call) -> Result:
    """How some torch versions write the backward of max pooling: a sum at flat indices into zeros."""
    pooled = _pooled(c.args["index"])
    if pooled is None:
        raise AxisConflict(f"{c.node.target} at computed places")
    base, dim, grad = c.value("self"), c.args["dim"], c.value("src")
    if base.source != Literal(0.0) or (len(base.dims), dim) != (2, 1):
        raise AxisConflict("a sum at places of a tensor that is not zero")
    kernel, read, stride, padding, dilation = (list(pooled.args[i]) for i in range(1, 6))  # type: ignore[arg-type]
    shape = [extent(n) for n in pooled.meta["val"].shape]
    first = len(shape) - len(kernel)
    w = Windows(kernel, stride, padding, dilation, read, static(shape[first:]))
    made = _of_maxima(c, pooled, replace(grad, dims=regroup(grad.dims, shape)), w)
    return replace(made, dims=(_joined(made.dims[:first]), _joined(made.dims[first:])))


def _of_maxima(c: Call, indices: fx.Node, grad: Value, w: Windows) -> Value:
    """indices: flat positions within what was pooled, which may have been made of offsets within windows."""
    pooled = _pooled(indices)
    positions = c.results(indices if pooled is None else pooled.args[0])  # type: ignore[arg-type]
    assert isinstance(positions, Value)
    return _gradient(c.draft, _chosen(c.draft, grad, c.draft.settle(positions), w, pooled is None), w)


def _joined(dims: Sequence[Dim]) -> Dim:
    return tuple(atom for dim in dims for atom in dim)


def _pooled(index: fx.Node) -> fx.Node | None:
    """The node that made flat indices of a pooling's offsets, behind reshapes."""
    while index.target is torch.ops.aten.reshape.default or index.target is torch.ops.aten.view.default:
        (index, _) = index.args  # type: ignore[assignment]
    return index if index.target is find_overload(OFFSETS_TO_INDICES) else None


def _apart(x: Value, count: int) -> Value:
    """The last `count` dims with a dim for the positions of a window behind each."""
    first = len(x.dims) - count
    return replace(x, dims=(*x.dims[:first], *(y for dim in x.dims[first:] for y in (dim, ()))))


def _positions(w: Windows) -> list[Dim]:
    """An axis of what was pooled where windows tile it, else of a window."""
    return [() if k == 1 else (new_atom(k, k) if w.tile else window_atom(k),) for k in w.kernel]


def _shared(share: Value, w: Windows) -> Value:
    """What every position of a window gets, in dims (..., window, position, window, position)."""
    spread = _apart(share, len(w.kernel))
    first = len(share.dims) - len(w.kernel)
    dims = list(spread.dims)
    dims[first + 1 :: 2] = _positions(w)
    return replace(spread, dims=tuple(dims))


def _chosen(d: Draft, grad: Value, named: Value, w: Windows, flat: bool) -> Value:
    """The gradient at the position of a window that is named, zero at its others; dims as in _shared.

    flat: by its position within what was pooled, else within the window.
    """
    count, first = len(w.kernel), len(grad.dims) - len(w.kernel)
    sizes, spread = w.read if flat else w.kernel, _apart(named, count)
    if isinstance(named.source, str) and named.source.startswith("in"):
        d.domains[named.source] = Domain(0.0, float(math.prod(sizes) - 1))
    flat_position: Value | int = 0
    for i, dim in enumerate(_positions(w)):
        at: Value | int = 0
        if dim:
            at = along(d.iota(dim[0]), first + 2 * i + 1, first + 2 * count)
        if flat:
            corner = scaled(d, position(d, spread, first + 2 * i), w.stride[i], -w.padding[i])
            at = integer_sum(d, corner, scaled(d, at, w.dilation[i]))
        flat_position = integer_sum(d, flat_position, scaled(d, at, math.prod(sizes[i + 1 :])))
    is_here = d.pointwise("eq", [d.cast(spread, "i64"), flat_position])
    return d.pointwise("where", [is_here, _apart(grad, count), 0])


def _gradient(d: Draft, x: Value, w: Windows) -> Value:
    """At each position the sum over its windows; x in dims (..., window, position, window, position)."""
    first = len(x.dims) - 2 * len(w.kernel)
    outs, positions = x.dims[first::2], x.dims[first + 1 :: 2]
    if w.tile:
        return replace(x, dims=(*x.dims[:first], *((*out, *at) for out, at in zip(outs, positions, strict=True))))
    if not _joined(positions):
        raise AxisConflict("the gradient of pooling with a window of 1")
    access, dims = [], []
    for i, (out, inner) in enumerate(zip(outs, positions, strict=True)):
        made = new_dim(w.read[i], w.read[i])
        dims.append(made)
        if not (out or inner or made):
            continue  # one element in one window
        if not out:
            raise AxisConflict("the gradient of pooling with one window along a dim")
        terms = [(1, a) for a in made] + [(-w.dilation[i], a) for a in inner]
        axis = d.whole_axis(x, first + 2 * i, "the gradient of pooling")
        access.append((axis, DraftIndex(tuple(terms), w.padding[i], w.stride[i])))
    return _summed(d, x, tuple(access), (*x.dims[:first], *dims), _joined(positions))


def _summed(d: Draft, x: Value, access: Access, dims: tuple[Dim, ...], over: Dim) -> Value:
    read = {axis for axis, _ in access}
    if not isinstance(x.source, str) or x.access or not read <= set(d.varies_over(x)):
        raise AxisConflict("the gradient of pooling of an expanded value")
    keep_apart([*_joined(dims), *over])
    kept = [a for a in d.varies_over(x) if a not in read and a not in over]
    made = [a for a in _joined(dims) if a not in kept]
    name = d.write("sum", x.dtype, [DraftRef(x.source, access)], [*kept, *made], list(over))
    return Value(name, dims, x.dtype)
