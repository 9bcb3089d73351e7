"""Lowerings of sums of products: convolutions forward, transposed and backward, matrix products.

    aten.convolution(x, w, b, ...)   ->   t0 = dot(x[d2=2*d5+k0-1, ...], w) over d1,k0,k1; t1 = add(t0, b)

Float32 products become `dot_tf32` where torch's own flags allow TF32 to the library on a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from cudal1_fx_passes.importer.draft import Access, DraftIndex, DraftRef, Value, window_atom
from cudal1_fx_passes.importer.lowering import Call, Result, extent, lowers
from cudal1_fx_passes.importer.unify import (
    Atom,
    AxisConflict,
    Dim,
    Extent,
    find,
    keep_apart,
    leaves,
    new_dim,
    regroup,
    unify,
)
from cudal1_fx_passes.program.ir import FLOAT_DTYPES
from cudal1_fx_passes.program.precision import convolutions_may_use_tf32, products_may_use_tf32


def _source(c: Call, name: str, *shared: int) -> Value:
    """A tensor argument under a name of its own, which varies along all its dims but `shared` ones."""
    value = c.draft.settle(c.value(name))
    held = [a for at, d in enumerate(value.dims) if at not in shared for a in leaves(d)]
    if not isinstance(value.source, str) or not set(held) <= set(c.draft.varies_over(value)):
        raise AxisConflict("a product with an expanded operand")
    if value.dtype not in FLOAT_DTYPES:
        raise AxisConflict("a product of integers")
    return value


def _product(
    c: Call, x: Value, access: Access, other: DraftRef, dims: tuple[Dim, ...], over: list[Atom], tf32: bool
) -> Value:
    assert isinstance(x.source, str)
    held, weights = c.draft.varies_over(replace(x, access=access)), leaves(c.draft.atoms[other.source])
    kept = [a for a in _atoms(*dims) if a in held or a in weights]
    keep_apart([*kept, *over])
    if not access and (not over or set(held) <= set(weights) or set(weights) <= set(held)):
        return Value(_multiply(c, x, other, kept, over), dims, x.dtype)
    if not over:
        raise AxisConflict("a product that sums over dims of size 1 only")
    on_gpu = any(a.meta["val"].device.type == "cuda" for a in c.node.all_input_nodes)
    fn = "dot_tf32" if tf32 and x.dtype == "f32" and on_gpu else "dot"
    return Value(c.draft.write(fn, x.dtype, [DraftRef(x.source, access), other], kept, over), dims, x.dtype)


def _multiply(c: Call, x: Value, other: DraftRef, kept: list[Atom], over: list[Atom]) -> str:
    """Where one operand varies along all axes: a pointwise product, and its sum. Half types are rounded once."""
    draft, wide = c.draft, "f64" if x.dtype == "f64" else "f32"
    refs = [DraftRef(str(x.source)), other]
    if x.dtype != wide:
        refs = [DraftRef(draft.write("cast", wide, [r], leaves(draft.atoms[r.source]))) for r in refs]
    made = draft.write("mul", wide, refs, [*kept, *over])
    if over:
        made = draft.write("sum", wide, [DraftRef(made)], kept, over)
    return made if x.dtype == wide else draft.write("cast", x.dtype, [DraftRef(made)], kept)


def _atoms(*dims: Dim) -> list[Atom]:
    return [a for d in dims for a in leaves(d)]


@lowers("aten.mm.default aten.bmm.default", role="product", weight=1)
def lower_matrix(c: Call) -> Result:
    return _matrix(c, 0)


@lowers("aten.addmm.default aten.baddbmm.default", role="product", weight=2)
def lower_matrix_and_bias(c: Call) -> Result:
    made = _scaled(c, _matrix(c, 1), "alpha")
    if c.number("beta") == 0:  # what is added is not even read
        return made
    return c.draft.pointwise("add", [made, _scaled(c, c.first(), "beta")])


def _scaled(c: Call, value: Value, name: str) -> Value:
    factor = c.number(name)
    return value if factor == 1 else c.draft.pointwise("mul", [value, factor])


def _matrix(c: Call, first: int) -> Value:
    """The product of two arguments, the first of them at `first`; batches may be expanded."""
    names = [a.name for a in c.node.target._schema.arguments]  # type: ignore[union-attr]
    a, b = (_source(c, name, *range(len(c.meta.shape) - 2)) for name in names[first : first + 2])
    unify(a.dims[-1], b.dims[-2])
    batch = a.dims[:-2]
    for left, right in zip(batch, b.dims[:-2], strict=True):
        unify(left, right)
    dims = (*batch, a.dims[-2], b.dims[-1])
    assert isinstance(b.source, str)
    return _product(c, a, (), DraftRef(b.source), dims, _atoms(a.dims[-1]), products_may_use_tf32())


@lowers("aten.convolution.default", role="product", weight=2)
def lower_convolution(c: Call) -> Result:
    made = [extent(n) for n in c.meta.shape[2:]]
    found = _convolve(c, _source(c, "input"), _source(c, "weight"), bool(c.number("transposed")), made)
    bias = c.optional("bias")
    if bias is None:
        return found
    spread = Value(bias.source, (bias.dims[0], *(() for _ in made)), bias.dtype, bias.access)
    return c.draft.pointwise("add", [found, spread])


@lowers("aten.convolution_backward.default", role="product", weight=3)
def lower_convolution_backward(c: Call) -> Result:
    """What is read gets the opposite convolution of the result's gradient; a weight a sum over all positions."""
    of_input, of_weight, of_bias = c.args["output_mask"]
    grad, transposed = _source(c, "grad_output"), bool(c.number("transposed"))
    results: list[Value | None] = [None, None, None]
    if of_input:
        made = [extent(n) for n in c.args["input"].meta["val"].shape[2:]]
        results[0] = _convolve(c, grad, _source(c, "weight"), not transposed, made)
    if of_weight:
        x = _source(c, "input")
        shape = [extent(n) for n in c.args["weight"].meta["val"].shape[2:]]
        results[1] = _correlate(c, *((grad, x) if transposed else (x, grad)), shape)
    if of_bias:
        results[2] = c.draft.reduce("sum", grad, [0, *range(2, len(grad.dims))], False)
    return tuple(results)


def _convolve(c: Call, x: Value, w: Value, transposed: bool, made: list[Extent]) -> Value:
    groups = c.integers("groups")[0]
    group, taken = regroup([x.dims[1]], [groups, _size(x.dims[1]) // groups])
    weight_group, first = regroup([w.dims[0]], [groups, _size(w.dims[0]) // groups])
    unify(group, weight_group)
    summed, channels = (first, w.dims[1]) if transposed else (w.dims[1], first)
    unify(taken, summed)
    spatial = list(zip(x.dims[2:], w.dims[2:], made, strict=True))
    spread = [transposed and _is_spread(c, i, *each) for i, each in enumerate(spatial)]
    outs = [each[1] if spread[i] else _out(c, i, *each) for i, each in enumerate(spatial)]
    windows: list[Dim] = []
    for i, (read, window, _) in enumerate(spatial):
        kept = not transposed and _is_whole(c, i, read, window, outs[i])
        windows.append(() if spread[i] else window if kept else _window(window))
    positions = [() if s else out for s, out in zip(spread, outs, strict=True)]
    access = _positions(c, x, positions, windows, transposed)
    dims = (x.dims[0], (*leaves(group), *leaves(channels)), *outs)
    over = _atoms(taken, *windows)
    assert isinstance(w.source, str)
    return _product(c, x, access, DraftRef(w.source), dims, over, convolutions_may_use_tf32())


def _correlate(c: Call, x: Value, grad: Value, shape: list[Extent]) -> Value:
    """dw[k,c,window] = sum over n and positions of grad[n,k,position] * x[n,c,stride*position+window-padding]."""
    groups = c.integers("groups")[0]
    unify(x.dims[0], grad.dims[0])
    group, inner = regroup([x.dims[1]], [groups, _size(x.dims[1]) // groups])
    grad_group, outer = regroup([grad.dims[1]], [groups, _size(grad.dims[1]) // groups])
    unify(group, grad_group)
    windows: list[Dim] = [(window_atom(_static(n)),) if n != 1 else () for n in shape]
    for i, (read, out) in enumerate(zip(x.dims[2:], grad.dims[2:], strict=True)):
        windows[i] = read if _is_whole(c, i, read, windows[i], out) else windows[i]
    access = _positions(c, x, list(grad.dims[2:]), windows, False)
    dims = ((*leaves(group), *leaves(outer)), inner, *windows)
    over = _atoms(grad.dims[0], *grad.dims[2:])
    assert isinstance(grad.source, str)
    return _product(c, x, access, DraftRef(grad.source), dims, over, convolutions_may_use_tf32())


def _size(dim: Dim) -> int:
    count = 1
    for atom in leaves(dim):
        count *= _static(atom.extent)
    return count


def _static(size: Extent) -> int:
    if not isinstance(size, int):
        raise AxisConflict("a convolution over a symbolic dim")
    return size


def _is_in_place(c: Call, i: int, read: Dim, window: Dim, made: Extent) -> bool:
    moves = window or c.integers("stride")[i] != 1 or c.integers("padding")[i] != 0
    return not moves and _extent(read) == made  # a transposed one may make more


def _extent(dim: Dim) -> Extent:
    return prod(a.extent for a in leaves(dim))


def _is_whole(c: Call, i: int, read: Dim, window: Dim, out: Dim) -> bool:
    """Whether the window is all that is read: both are one axis then, as in a plain contraction."""
    return bool(window) and not out and c.integers("padding")[i] == 0 and _size(read) == _size(window)


def _out(c: Call, i: int, read: Dim, window: Dim, size: Extent) -> Dim:
    """The result's dim along one spatial axis: the one that is read where nothing moves."""
    return read if _is_in_place(c, i, read, window, size) else new_dim(_static(size), _static(size))


def _is_spread(c: Call, i: int, read: Dim, window: Dim, size: Extent) -> bool:
    """Whether a transposed convolution spreads one element over the window, which then is the result's dim."""
    moved = c.integers("padding")[i] != 0 or c.integers("dilation")[i] != 1
    return not read and not moved and size == _size(window)


def _positions(c: Call, x: Value, outs: list[Dim], windows: list[Dim], transposed: bool) -> Access:
    """Where x is read along each spatial axis."""
    stride, padding, dilation = (c.integers(name) for name in ("stride", "padding", "dilation"))
    access: list[tuple[Atom, DraftIndex]] = []
    for i, (out, window) in enumerate(zip(outs, windows, strict=True)):
        if _is_in_place(c, i, x.dims[2 + i], window, _extent(out)):
            unify(x.dims[2 + i], out)
            continue
        if not transposed and _is_whole(c, i, x.dims[2 + i], window, out):
            unify(x.dims[2 + i], window)
            continue
        if not (x.dims[2 + i] or out or window or padding[i]):
            continue  # one element, read for one
        if not x.dims[2 + i]:
            raise AxisConflict("a convolution over a dim of size 1")
        _size(x.dims[2 + i])
        sign = -1 if transposed else 1
        terms = [(1 if transposed else stride[i], a) for a in leaves(out)]
        terms += [(sign * dilation[i], a) for a in leaves(window)]
        position = DraftIndex(tuple(terms), -sign * padding[i], stride[i] if transposed else 1)
        access.append((c.draft.whole_axis(x, 2 + i, "a convolution"), position))
    return tuple((find(a), p) for a, p in access)


def _window(dim: Dim) -> Dim:
    """The axis of one dim of a weight, which is a window's from now on."""
    if not dim:
        return ()
    atoms = leaves(dim)
    if len(atoms) != 1:
        raise AxisConflict("a window whose dim is split")
    made = window_atom(atoms[0].hint)
    atoms[0].window = True
    unify((made,), dim)
    return (find(made),)
