"""Lowerings of views and of copies that move elements: they regroup axes or read at an affine index.

reshape, permute, expand ...      only the dims of the value change, nothing is written
slice, select, flip, split        a pending access, which becomes part of the consumer's operand
cat, pad, *_scatter               where(position, piece at its offset, rest)
"""

from __future__ import annotations

import operator
from dataclasses import replace

from cudal1_fx_passes.importer.draft import DraftIndex, Value
from cudal1_fx_passes.importer.lower_gather import bound
from cudal1_fx_passes.importer.lowering import Call, Result, extent, lowers
from cudal1_fx_passes.importer.unify import (
    Atom,
    AxisConflict,
    Dim,
    Extent,
    can_regroup,
    leaves,
    new_atom,
    new_dim,
    regroup,
)
from cudal1_fx_passes.program.ir import Number

MAX_PIECES = 4  # of a cat: more make a long chain of where

__all__ = ["MAX_PIECES", "pick"]


@lowers(
    "aten.view.default aten._unsafe_view.default aten.reshape.default aten.flatten.using_ints "
    "aten.unsqueeze.default aten.squeeze.dim aten.squeeze.dims aten.squeeze.default "
    "aten.unflatten.int prims.collapse_view.default",
    role="view",
    weight=0,
)
def lower_reshape(c: Call) -> Result:
    value = c.first()
    return replace(value, dims=regroup(value.dims, c.extents))


@lowers("aten.expand.default aten.expand_as.default prims.broadcast_in_dim.default", role="view", weight=0)
def lower_expand(c: Call) -> Result:
    value = c.first()
    if "broadcast_in_dim" in str(c.node.target):
        placed: list[Dim] = [()] * len(c.extents)
        for at, dim in zip(c.integers("broadcast_dimensions"), value.dims, strict=True):
            placed[at] = dim
    else:
        placed = [()] * (len(c.extents) - len(value.dims)) + list(value.dims)
    fresh = c.full(0).dims
    return replace(value, dims=tuple(old or new for old, new in zip(placed, fresh, strict=True)))


@lowers("aten.as_strided.default", role="view", weight=0)
def lower_as_strided(c: Call) -> Result:
    """Only where it says what a reshape of a dense tensor says."""
    source, made = c.node.args[0].meta["val"], c.meta  # type: ignore[union-attr]
    sizes = (*source.shape, *source.stride(), *made.shape, *made.stride(), made.storage_offset())
    if not all(isinstance(s, int) for s in sizes) or source.storage_offset() != made.storage_offset():
        raise AxisConflict("as_strided with symbolic sizes or an offset")
    if not source.is_contiguous() or not made.is_contiguous() or source.numel() != made.numel():
        raise AxisConflict("as_strided that is no reshape of a dense tensor")
    return replace(c.first(), dims=regroup(c.first().dims, c.extents))


@lowers("aten.repeat.default", role="view", weight=0)
def lower_repeat(c: Call) -> Result:
    value, times = c.first(), c.integers("repeats")
    old = [()] * (len(times) - len(value.dims)) + list(value.dims)
    return replace(value, dims=tuple((*new_dim(n, n), *dim) for n, dim in zip(times, old, strict=True)))


@lowers("aten.permute.default prims.transpose.default", role="view", weight=0)
def lower_permute(c: Call) -> Result:
    value = c.first()
    order = c.integers("dims" if "dims" in c.args else "permutation")
    return replace(value, dims=tuple(value.dims[d] for d in order))


@lowers("aten.transpose.int aten.t.default", role="view", weight=0)
def lower_transpose(c: Call) -> Result:
    value = c.first()
    if len(value.dims) < 2:
        return value
    dims = list(value.dims)
    a, b = (c.args["dim0"], c.args["dim1"]) if "dim0" in c.args else (0, 1)
    dims[a], dims[b] = dims[b], dims[a]
    return replace(value, dims=tuple(dims))


@lowers("aten.select.int", role="view", weight=0)
def lower_select(c: Call) -> Result:
    value, dim = c.value("self"), c.args["dim"] % len(c.value("self").dims)
    (index,) = c.integers("index")
    return pick(c, value, dim, index)


def pick(c: Call, value: Value, dim: int, index: int) -> Value:
    """One position of a dim, which is removed; a dim of several atoms is picked atom by atom."""
    atoms = leaves(value.dims[dim])
    if any(a.symbolic for a in atoms):
        raise AxisConflict("select on a symbolic dim")
    size = 1
    for a in atoms:
        size *= a.hint
    index %= size
    dims = value.dims[:dim] + tuple((a,) for a in atoms) + value.dims[dim + 1 :]
    value = replace(value, dims=dims)
    for i in reversed(range(len(atoms))):
        index, position = divmod(index, atoms[i].hint)
        value = c.draft.access(value, dim + i, (), DraftIndex(offset=position), "select")
        value = replace(value, dims=value.dims[: dim + i] + value.dims[dim + i + 1 :])
    return value


@lowers("aten.slice.Tensor", role="view", weight=0)
def lower_slice(c: Call) -> Result:
    value, dim = c.value("self"), c.args["dim"] % len(c.value("self").dims)
    size, made = _dim_extent(c, dim), c.extents[dim]
    if made == size:
        return value
    start, step = c.args["start"] or 0, c.args["step"]
    if not all(isinstance(x, int) for x in (start, step, size, made)):
        raise AxisConflict("slice of a symbolic dim")
    assert isinstance(size, int) and isinstance(made, int)
    start = max(0, start + size) if start < 0 else start
    return narrow(c, value, dim, start, made, step)


def narrow(c: Call, value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
    """Positions start, start+step ... of a dim.

    One of several equal chunks is one position of an outer axis: x[:, 4:8] of 8 is x at 1 of (2, 4).
    """
    if step == 1:
        chunk = _chunk(c, value, dim, start, length)
        if chunk is not None:
            return chunk
    made = new_dim(length, length)
    terms = ((step, made[0]),) if made else ()
    return c.draft.access(value, dim, made, DraftIndex(terms, start), "slice")


def _chunk(c: Call, value: Value, dim: int, start: int, length: int) -> Value | None:
    halves = in_chunks(c, value.dims[dim], length)
    if halves is None or start % length:
        return None
    outer, inner = halves
    value = replace(value, dims=(*value.dims[:dim], outer, inner, *value.dims[dim + 1 :]))
    return pick(c, value, dim, start // length)


def in_chunks(c: Call, dim: Dim, length: int) -> tuple[Dim, Dim] | None:
    """The dim as (chunks, length), or None where it cannot be split so."""
    size = 1
    for atom in leaves(dim):
        if atom.symbolic:
            return None
        size *= atom.hint
    if not c.draft.chunks or length < 2 or size % length or not can_regroup(dim, length):
        return None
    outer, inner = regroup([dim], [size // length, length])
    return outer, inner


@lowers("aten.split.Tensor aten.split_with_sizes.default", role="view", weight=0)
def lower_split(c: Call) -> Result:
    value, dim = c.value("self"), c.args["dim"] % len(c.value("self").dims)
    sizes = [t.shape[dim] for t in c.node.meta["val"]]
    if not all(isinstance(s, int) for s in sizes):
        raise AxisConflict("split of a symbolic dim")
    if len(sizes) == 1:
        return (value,)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(c, value, dim, start, size) for start, size in zip(starts, sizes, strict=True))


@lowers("aten.unbind.int", role="view", weight=0)
def lower_unbind(c: Call) -> Result:
    value, dim = c.value("self"), c.args["dim"] % len(c.value("self").dims)
    return tuple(pick(c, value, dim, i) for i in range(len(c.node.meta["val"])))


@lowers("aten.flip.default prims.rev.default", role="view", weight=0)
def lower_flip(c: Call) -> Result:
    value = c.first()
    for dim in c.integers("dims"):
        size = _dim_extent(c, dim)
        if size == 1:
            continue
        if not isinstance(size, int):
            raise AxisConflict("flip of a symbolic dim")
        made = new_atom(size, size)
        value = c.draft.access(value, dim % len(value.dims), (made,), DraftIndex(((-1, made),), size - 1), "flip")
    return value


def _dim_extent(c: Call, dim: int) -> Extent:
    source = c.node.args[0]
    return extent(source.meta["val"].shape[dim])  # type: ignore[union-attr]


@lowers("aten.cat.default", weight=6)
def lower_cat(c: Call) -> Result:
    nodes = [n for n in c.args["tensors"] if n.meta["val"].numel() != 0]
    if not 1 <= len(nodes) <= MAX_PIECES:
        raise AxisConflict(f"cat of {len(nodes)} pieces")
    dim = c.args["dim"] % len(c.extents)
    lengths = [n.meta["val"].shape[dim] for n in nodes]
    if not all(isinstance(s, int) for s in lengths):
        raise AxisConflict("cat on a symbolic dim")
    pieces = [c.draft.cast(c._read(n), c.dtype) for n in nodes]
    if len(pieces) == 1:
        return pieces[0]
    if c.draft.chunks and len(set(lengths)) == 1:
        return _stack(c, pieces, dim, lengths[0])
    axis = new_atom(sum(lengths), sum(lengths))
    position = c.draft.iota(axis)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    placed = [
        _shift(c, p, dim, axis, -start, size) for p, start, size in zip(pieces, starts, lengths, strict=True)
    ]
    rank = len(c.extents)
    found = placed[-1]
    for piece, end in zip(reversed(placed[:-1]), reversed(starts[1:]), strict=True):
        here = c.draft.pointwise("lt", [_along(position, dim, rank), end])
        found = c.draft.pointwise("where", [here, piece, found])
    return found


def _stack(c: Call, pieces: list[Value], dim: int, length: int) -> Value:
    """Equal pieces side by side: an outer axis that counts them, and the pieces' own axis inside."""
    outer = new_atom(len(pieces), len(pieces))
    rank = len(c.extents) + 1
    position = _along(c.draft.iota(outer), dim, rank)
    apart = [replace(p, dims=(*p.dims[:dim], (), *p.dims[dim:])) for p in pieces]
    found = apart[-1]
    for at in reversed(range(len(pieces) - 1)):
        here = c.draft.pointwise("eq", [position, at])
        found = c.draft.pointwise("where", [here, apart[at], found])
    inner = found.dims[dim + 1] or (() if length == 1 else new_dim(length, length))
    return replace(found, dims=(*found.dims[:dim], (outer, *inner), *found.dims[dim + 2 :]))


def _shift(c: Call, value: Value, dim: int, axis: Atom, offset: int, size: int) -> Value:
    """The value read at `axis + offset`; a dim of size 1 or an expanded one is the same everywhere."""
    if size == 1 or not isinstance(value.source, str):
        return replace(value, dims=(*value.dims[:dim], (axis,), *value.dims[dim + 1 :]))
    return c.draft.access(value, dim, (axis,), DraftIndex(((1, axis),), offset), "cat")


def _along(x: Value, dim: int, rank: int) -> Value:
    """A one-dim value as dim `dim` of `rank` dims."""
    return replace(x, dims=tuple(x.dims[0] if i == dim else () for i in range(rank)))


@lowers("aten.constant_pad_nd.default", weight=5)
def lower_pad(c: Call) -> Result:
    value, number = c.first(), c.number("value")
    pads = c.integers("pad")
    rank = len(value.dims)
    checks: list[Value] = []
    for i in range(len(pads) // 2):
        dim, before = rank - 1 - i, pads[2 * i]
        size, made = _dim_extent(c, dim), c.extents[dim]
        if (before, pads[2 * i + 1]) == (0, 0):
            continue
        if not isinstance(size, int) or not isinstance(made, int) or size == 1 or made == 1:
            raise AxisConflict("padding of a symbolic dim or to or from size 1")
        axis = new_atom(made, made)
        value = c.draft.access(value, dim, (axis,), DraftIndex(((1, axis),), -before), "pad")
        position = _along(c.draft.iota(axis), dim, rank)
        if before > 0:
            checks.append(c.draft.pointwise("ge", [position, before]))
        if pads[2 * i + 1] > 0:
            checks.append(c.draft.pointwise("lt", [position, before + size]))
    if not checks:
        return value
    inside = checks[0]
    for check in checks[1:]:
        inside = c.draft.pointwise("logical_and", [inside, check])
    return c.draft.pointwise("where", [inside, value, number])


@lowers("aten.select_scatter.default", weight=3)
def lower_select_scatter(c: Call) -> Result:
    base, dim = c.value("self"), c.args["dim"] % len(c.extents)
    (index,), size = c.integers("index"), c.extents[dim]
    if not isinstance(size, int):
        raise AxisConflict("select_scatter on a symbolic dim")
    axis = c.draft.whole_axis(base, dim, "select_scatter")
    here = c.draft.pointwise("eq", [_along(c.draft.iota(axis), dim, len(c.extents)), index % size])
    source = c.value("src")
    source = replace(source, dims=(*source.dims[:dim], (), *source.dims[dim:]))
    return c.draft.pointwise("where", [here, c.draft.cast(source, c.dtype), base])


@lowers("aten.scatter.src aten.scatter.value", role="gather", weight=3)
def lower_scatter(c: Call) -> Result:
    """One position of a dim, as the gradient of a maximum goes: where(position == index, src, self)."""
    base, index, dim = c.value("self"), c.value("index"), c.args["dim"] % max(1, len(c.extents))
    source = c.draft.cast(c.value("src"), c.dtype) if "src" in c.args else c.number("value")
    single = (*c.extents[:dim], 1, *c.extents[dim + 1 :])
    read = [n.meta["val"] for n in (c.args["index"], c.args.get("src")) if n is not None]
    if any(tuple(extent(s) for s in x.shape) != single for x in read):
        raise AxisConflict("scatter to more than one place of a dim, or to a part of the others")
    axis = c.draft.whole_axis(base, dim, "scatter")
    if isinstance(index.source, str):
        bound(c.draft, index.source, axis)
    here = c.draft.pointwise("eq", [_along(c.draft.iota(axis), dim, len(c.extents)), c.draft.cast(index, "i64")])
    return c.draft.pointwise("where", [here, source, base], c.dtype)


@lowers("aten.slice_scatter.default", weight=5)
def lower_slice_scatter(c: Call) -> Result:
    base, dim = c.value("self"), c.args["dim"] % len(c.extents)
    size, length = c.extents[dim], c.node.args[1].meta["val"].shape[dim]  # type: ignore[union-attr]
    start = c.args["start"] or 0
    if not all(isinstance(x, int) for x in (size, length, start)) or c.args["step"] != 1:
        raise AxisConflict("slice_scatter with symbolic sizes or a step")
    assert isinstance(size, int)
    start = max(0, start + size) if start < 0 else start
    if length == size:
        return c.draft.cast(c.value("src"), c.dtype)
    if length == 0:
        return base
    halves = in_chunks(c, base.dims[dim], length) if start % length == 0 else None
    if halves is not None and len(leaves(halves[0])) == 1:
        return _scatter_chunk(c, base, dim, halves, start // length)
    axis = c.draft.whole_axis(base, dim, "slice_scatter")
    position = _along(c.draft.iota(axis), dim, len(c.extents))
    here = c.draft.pointwise("ge", [position, start])
    if start + length < size:
        here = c.draft.pointwise("logical_and", [here, c.draft.pointwise("lt", [position, start + length])])
    source = _shift(c, c.draft.cast(c.value("src"), c.dtype), dim, axis, -start, length)
    return c.draft.pointwise("where", [here, source, base])


def _scatter_chunk(c: Call, base: Value, dim: int, halves: tuple[Dim, Dim], index: int) -> Value:
    """where(chunk == index, src, base) over the chunks of a dim."""
    outer, inner = halves
    (axis,) = leaves(outer)
    rank = len(c.extents) + 1
    here = c.draft.pointwise("eq", [_along(c.draft.iota(axis), dim, rank), index])
    source = c.draft.cast(c.value("src"), c.dtype)
    source = replace(source, dims=(*source.dims[:dim], (), *source.dims[dim:]))
    base = replace(base, dims=(*base.dims[:dim], outer, inner, *base.dims[dim + 1 :]))
    found = c.draft.pointwise("where", [here, source, base])
    merged = (*found.dims[dim], *found.dims[dim + 1])
    return replace(found, dims=(*found.dims[:dim], merged, *found.dims[dim + 2 :]))


def get_item(results: object, index: Number) -> Value:
    """operator.getitem of a node with several results."""
    found = operator.getitem(results, index)  # type: ignore[call-overload]
    if not isinstance(found, Value):
        raise AxisConflict(f"result {index} of the node is not supported")
    return found
