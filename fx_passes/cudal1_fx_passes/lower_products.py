"""Lowerings of sums of products: convolutions forward and transposed, matrix products.

    aten.convolution(x, w, b, ...)   ->   t0 = dot(x[d2=2*d5+k0-1, ...], w) over d1,k0,k1; t1 = add(t0, b)

Float32 products become `dot_tf32` where torch's own flags allow TF32 to the library on a GPU.
"""

from __future__ import annotations

import torch

from cudal1_fx_passes.draft import DraftRef, Place, Value, window_atom
from cudal1_fx_passes.lowering import Call, Result, extent, lowers
from cudal1_fx_passes.program import FLOAT_DTYPES
from cudal1_fx_passes.unify import Atom, AxisConflict, Dim, find, keep_apart, leaves, new_dim, regroup, unify


def _source(c: Call, name: str) -> Value:
    """A tensor argument under a name of its own, which varies along all its dims."""
    value = c.draft.settle(c.value(name))
    held = [a for d in value.dims for a in leaves(d)]
    if not isinstance(value.source, str) or set(held) != set(c.draft.varies_over(value)):
        raise AxisConflict("a product with an expanded operand")
    if value.dtype not in FLOAT_DTYPES:
        raise AxisConflict("a product of integers")
    return value


def _write(c: Call, a: DraftRef, b: DraftRef, kept: list[Atom], over: list[Atom], tf32: bool, dtype: str) -> str:
    if not over:
        raise AxisConflict("a product that sums over dims of size 1 only")
    keep_apart([*kept, *over])
    allowed = tf32 and dtype == "f32" and c.meta.device.type == "cuda"
    return c.draft.write("dot_tf32" if allowed else "dot", dtype, [a, b], kept, over)


def _atoms(*dims: Dim) -> list[Atom]:
    return [a for d in dims for a in leaves(d)]


@lowers("aten.mm.default aten.bmm.default", role="product", weight=1)
def lower_matrix(c: Call) -> Result:
    names = [a.name for a in c.node.target._schema.arguments]  # type: ignore[union-attr]
    return _matrix(c, _source(c, names[0]), _source(c, names[1]))


@lowers("aten.addmm.default aten.baddbmm.default", role="product", weight=2)
def lower_matrix_and_bias(c: Call) -> Result:
    if c.number("beta") != 1 or c.number("alpha") != 1:
        raise AxisConflict("a product with factors beta and alpha")
    names = [a.name for a in c.node.target._schema.arguments]  # type: ignore[union-attr]
    return c.draft.pointwise("add", [_matrix(c, _source(c, names[1]), _source(c, names[2])), c.first()])


def _matrix(c: Call, a: Value, b: Value) -> Value:
    unify(a.dims[-1], b.dims[-2])
    batch = a.dims[:-2]
    for left, right in zip(batch, b.dims[:-2], strict=True):
        unify(left, right)
    assert isinstance(a.source, str) and isinstance(b.source, str)
    dims = (*batch, a.dims[-2], b.dims[-1])
    tf32 = torch.backends.cuda.matmul.allow_tf32
    name = _write(c, DraftRef(a.source), DraftRef(b.source), _atoms(*dims), _atoms(a.dims[-1]), tf32, a.dtype)
    return Value(name, dims, a.dtype)


@lowers("aten.convolution.default", role="product", weight=2)
def lower_convolution(c: Call) -> Result:
    x, w, bias = _source(c, "input"), _source(c, "weight"), c.optional("bias")
    groups, transposed = c.integers("groups")[0], bool(c.number("transposed"))
    taken, made, group = _channels(c, x, w, groups, transposed)
    access, windows, outs = _windows(c, x, w, transposed)
    assert isinstance(x.source, str) and isinstance(w.source, str)
    channels: Dim = (*leaves(group), *leaves(made))
    kept = _atoms(x.dims[0], channels, *outs)
    tf32 = torch.backends.cudnn.allow_tf32
    name = _write(
        c, DraftRef(x.source, access), DraftRef(w.source), kept, [*leaves(taken), *windows], tf32, x.dtype
    )
    found = Value(name, (x.dims[0], channels, *outs), x.dtype)
    if bias is None:
        return found
    spread = Value(bias.source, (bias.dims[0], *(() for _ in outs)), bias.dtype, bias.access)
    return c.draft.pointwise("add", [found, spread])


def _channels(c: Call, x: Value, w: Value, groups: int, transposed: bool) -> tuple[Dim, Dim, Dim]:
    """(channels that are summed, channels that are made, groups)."""
    size = c.node.args[0].meta["val"].shape[1] // groups  # type: ignore[union-attr]
    group, taken = regroup([x.dims[1]], [groups, size])
    first = w.dims[0]
    if groups > 1:
        rows = c.node.args[1].meta["val"].shape[0] // groups  # type: ignore[union-attr]
        weight_group, first = regroup([first], [groups, rows])
        unify(group, weight_group)
    summed, made = (first, w.dims[1]) if transposed else (w.dims[1], first)
    unify(taken, summed)
    return taken, made, group


def _windows(
    c: Call, x: Value, w: Value, transposed: bool
) -> tuple[tuple[tuple[Atom, Place], ...], list[Atom], list[Dim]]:
    """Where x is read along each spatial axis, the window's axes, and the result's spatial dims."""
    count = len(x.dims) - 2
    stride, padding, dilation = (c.integers(name) for name in ("stride", "padding", "dilation"))
    access: list[tuple[Atom, Place]] = []
    windows: list[Atom] = []
    outs: list[Dim] = []
    for i in range(count):
        size = extent(c.meta.shape[2 + i])
        if not isinstance(size, int) or not isinstance(extent(c.node.args[0].meta["val"].shape[2 + i]), int):  # type: ignore[union-attr]
            raise AxisConflict("a convolution over a symbolic dim")
        window = _window(w.dims[2 + i])
        if not window and stride[i] == 1 and padding[i] == 0:
            outs.append(x.dims[2 + i])  # read where it is written
            continue
        out = new_dim(size, size)
        outs.append(out)
        windows += window
        if not x.dims[2 + i]:
            raise AxisConflict("a convolution over a dim of size 1")
        sign = -1 if transposed else 1
        terms = [(1 if transposed else stride[i], a) for a in out] + [(sign * dilation[i], a) for a in window]
        divisor = stride[i] if transposed else 1
        place = Place(tuple(terms), padding[i] if transposed else -padding[i], divisor)
        access.append((c.draft.whole_axis(x, 2 + i, "a convolution"), place))
    return tuple((find(a), p) for a, p in access), windows, outs


def _window(dim: Dim) -> list[Atom]:
    """The axis of one dim of a weight, which is a window's from now on."""
    if not dim:
        return []
    atoms = leaves(dim)
    if len(atoms) != 1:
        raise AxisConflict("a window whose dim is split")
    made = window_atom(atoms[0].hint)
    atoms[0].window = True
    unify((made,), dim)
    return [find(made)]
