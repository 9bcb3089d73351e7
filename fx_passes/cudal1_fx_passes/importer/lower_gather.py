"""Lowerings of reads at computed indices: the axis that is indexed is read at an integer value.

    gather(x, 1, i)   ->   x[d1=i]        embedding(w, i)   ->   w[d0=i]

The bounds of an index that is an input (also behind a cast, or a where that does not ask for bounds itself)
become that input's domain, so that tests stay inside them.
"""

from __future__ import annotations

from dataclasses import replace

from cudal1_fx_passes.importer.draft import Draft, DraftIndex, DraftOp, DraftRef, Value
from cudal1_fx_passes.importer.lowering import Call, Result, extent, lowers
from cudal1_fx_passes.importer.unify import Atom, AxisConflict, Dim, leaves, unify
from cudal1_fx_passes.program.ir import Domain, Literal


@lowers("aten.embedding.default", role="gather")
def lower_embedding(c: Call) -> Result:
    table, index = c.value("weight"), _index(c, c.value("indices"))
    read = _read_at(c, table, 0, index)
    return replace(read, dims=(*index.dims, table.dims[1]))


@lowers("aten.gather.default", role="gather")
def lower_gather(c: Call) -> Result:
    value, index = c.value("self"), _index(c, c.value("index"))
    dim = c.args["dim"] % max(1, len(value.dims))
    shape, wanted = c.node.args[0].meta["val"].shape, c.meta.shape  # type: ignore[union-attr]
    for i, (mine, theirs) in enumerate(zip(value.dims, index.dims, strict=True)):
        if i != dim and extent(shape[i]) != extent(wanted[i]):
            raise AxisConflict("gather that reads only a part of a dim")
        if i != dim and mine:
            unify(mine, theirs)
    return replace(_read_at(c, value, dim, index), dims=index.dims)


@lowers("aten.index.Tensor aten._unsafe_index.Tensor", role="gather", weight=4)
def lower_index(c: Call) -> Result:
    """x[i, j, :]: index tensors that broadcast against one another, next to each other; negative ones wrap."""
    value, items = c.value("self"), list(c.args["indices"])
    at = [i for i, item in enumerate(items) if item is not None]
    if at != list(range(at[0], at[-1] + 1)):
        raise AxisConflict("index tensors that are not next to each other")
    indices = [c._read(items[i]) for i in at]
    dims = _broadcast(c, indices)
    sizes = c.node.args[0].meta["val"].shape  # type: ignore[union-attr]
    for i, index in zip(at, indices, strict=True):
        value = _read_at(c, value, i, _wrapped(c, _index(c, index), sizes[i]), wraps=True)
    kept = [d for i, d in enumerate(value.dims) if i not in at]
    return replace(value, dims=(*kept[: at[0]], *dims, *kept[at[0] :]))


def _broadcast(c: Call, indices: list[Value]) -> tuple[Dim, ...]:
    rank = max(len(i.dims) for i in indices)
    dims: list[Dim] = []
    for at in range(rank):
        here = [i.dims[at - rank + len(i.dims)] for i in indices if at - rank + len(i.dims) >= 0]
        wide = [d for d in here if d]
        for other in wide[1:]:
            unify(wide[0], other)
        dims.append(wide[0] if wide else ())
    return tuple(dims)


def _wrapped(c: Call, index: Value, size: object) -> Value:
    if not isinstance(index.source, str) or _not_negative(c.draft, index.source):
        return index
    if not isinstance(size, int):
        raise AxisConflict("an index that may be negative, into a symbolic dim")
    below = c.draft.pointwise("lt", [index, 0])
    return c.draft.pointwise("where", [below, c.draft.pointwise("add", [index, size]), index])


def _not_negative(draft: Draft, source: str) -> bool:
    """Whether a value is made of positions and of numbers that are not negative."""
    op = next((op for op in draft.ops if op.name == source), None)
    if op is None or op.fn not in ("iota", "cast", "add", "mul", "where", "amax", "sum", "cumsum"):
        return False
    if op.fn == "cast" and any(isinstance(x, DraftRef) and _is_bool(draft, x.source) for x in op.operands):
        return True
    operands = op.operands[1:] if op.fn == "where" else op.operands
    return all(_not_negative(draft, x.source) if isinstance(x, DraftRef) else x.value >= 0 for x in operands)


def _is_bool(draft: Draft, source: str) -> bool:
    return any(op.name == source and op.dtype == "bool" for op in draft.ops)


def _index(c: Call, index: Value) -> Value:
    """An index needs a name of its own, without pending accesses."""
    if index.dtype not in ("i64", "i32"):
        raise AxisConflict(f"an index of dtype {index.dtype}")
    return c.draft.settle(index)


def _read_at(c: Call, value: Value, dim: int, index: Value, wraps: bool = False) -> Value:
    """The value with one dim read at an index; that dim keeps a position of size 1."""
    if not value.dims[dim]:
        return value
    if not isinstance(index.source, str):
        position = DraftIndex(offset=int(index.source.value))
    else:
        position = DraftIndex(value=index.source)
        found = leaves(value.dims[dim])
        if len(found) == 1:
            bound(c.draft, index.source, found[0], wraps)
    return c.draft.access(value, dim, (), position, "gather")


def bound(draft: Draft, source: str, axis: Atom, wraps: bool = False) -> None:
    """Notes that the inputs behind an index lie within the axis."""
    if source.startswith("in"):
        if wraps and not axis.symbolic:
            draft.domains[source] = Domain(float(-axis.hint), float(axis.hint - 1))
        elif not wraps:
            draft.below[source] = axis
        return
    op = next(op for op in draft.ops if op.name == source)
    if op.fn in ("where", "cast", "add") and not _keeps_others_out(draft, op):
        for x in op.operands[op.fn == "where" :]:
            if isinstance(x, DraftRef) and not x.access:
                bound(draft, x.source, axis, wraps)


def _keeps_others_out(draft: Draft, op: DraftOp) -> bool:
    """Whether a `where` may choose another index for what lies outside (no label to be ignored is that)."""
    if op.fn != "where" or not isinstance(condition := op.operands[0], DraftRef):
        return False
    test = next((other for other in draft.ops if other.name == condition.source), None)
    if test is None or test.fn in ("eq", "ne"):
        return False
    return test.fn != "lt" or test.operands != (op.operands[2], Literal(0))  # which counts from the end
