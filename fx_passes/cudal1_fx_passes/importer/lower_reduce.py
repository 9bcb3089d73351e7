"""Lowerings of reductions, scans and norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudal1_fx_passes.importer.draft import Value
from cudal1_fx_passes.importer.lowering import Call, Result, lowers
from cudal1_fx_passes.importer.unify import AxisConflict, regroup


def _dims(c: Call, value: Value, name: str = "dim") -> list[int]:
    """The dims of a reduction; none given means all."""
    arg = c.args.get(name)
    if arg is None or arg == []:
        return list(range(len(value.dims)))
    return [d % max(1, len(value.dims)) for d in (arg if isinstance(arg, (list, tuple)) else [arg])]


def _keep(c: Call) -> bool:
    return bool(c.args.get("keepdim", c.args.get("keepdims", False)))


@lowers(
    "aten.sum.default aten.sum.dim_IntList aten.mean.default aten.mean.dim aten.prod.default aten.prod.dim_int "
    "prims.sum.default",
    role="reduce",
)
def lower_sum(c: Call) -> Result:
    fn = next(fn for fn in ("sum", "mean", "prod") if fn in str(c.node.target))
    value = c.draft.cast(c.first(), c.dtype)
    name = "dims" if "dims" in c.args else "dim"
    return c.draft.reduce(fn, value, _dims(c, value, name), _keep(c))


@lowers("aten.amax.default aten.amin.default aten.max.default aten.min.default", role="reduce")
def lower_extremum(c: Call) -> Result:
    fn = "amax" if "max" in str(c.node.target) else "amin"
    value = c.first()
    if value.dtype == "bool":
        raise AxisConflict(f"{fn} of bool")
    return c.draft.reduce(fn, value, _dims(c, value), _keep(c))


@lowers("aten.max.dim aten.min.dim", role="reduce", weight=2)
def lower_extremum_dim(c: Call) -> Result:
    fn = "max" if "max" in str(c.node.target) else "min"
    value = c.first()
    if value.dtype == "bool":
        raise AxisConflict(f"{fn} of bool")
    dims = _dims(c, value)
    values = c.draft.reduce(f"a{fn}", value, dims, _keep(c))
    if not any(u.args[1] == 1 for u in c.node.users):
        return values, None
    return values, c.draft.reduce(f"arg{fn}", value, dims, _keep(c), "i64")


@lowers("aten.argmax.default aten.argmin.default", role="reduce")
def lower_arg_extremum(c: Call) -> Result:
    fn = "argmax" if "argmax" in str(c.node.target) else "argmin"
    value = c.first()
    return c.draft.reduce(fn, value, _dims(c, value), _keep(c), "i64")


@lowers("aten.any.default aten.any.dim aten.any.dims aten.all.default aten.all.dim aten.all.dims", role="reduce")
def lower_any(c: Call) -> Result:
    fn = "any" if "any" in str(c.node.target) else "all"
    value = c.first()
    value = value if value.dtype == "bool" else c.draft.pointwise("ne", [value, 0])
    return c.draft.cast(c.draft.reduce(fn, value, _dims(c, value), _keep(c), "bool"), c.dtype)


@lowers("aten.var.correction aten.std.correction aten.var_mean.correction", role="reduce", weight=2)
def lower_var(c: Call) -> Result:
    value = c.draft.cast(c.first(), c.dtype)
    dims = _dims(c, value)
    correction = 1 if c.args.get("correction") is None else c.number("correction")
    var = c.draft.reduce("var", value, dims, _keep(c), literals=[float(correction)])
    if "var_mean" in str(c.node.target):
        return var, c.draft.reduce("mean", value, dims, _keep(c))
    return c.draft.pointwise("sqrt", [var]) if "std" in str(c.node.target) else var


@lowers("aten.linalg_vector_norm.default", role="reduce", weight=3)
def lower_norm(c: Call) -> Result:
    if c.args["ord"] != 2:
        raise AxisConflict(f"norm of order {c.args['ord']}")
    value = c.draft.cast(c.first(), c.dtype)
    total = c.draft.reduce("sum", c.draft.pointwise("mul", [value, value]), _dims(c, value), _keep(c))
    return c.draft.pointwise("sqrt", [total])


@lowers("aten.logsumexp.default", role="reduce")
def lower_logsumexp(c: Call) -> Result:
    value = c.draft.cast(c.first(), c.dtype)
    return c.draft.reduce("logsumexp", value, _dims(c, value), _keep(c))


@lowers("aten._softmax.default aten._log_softmax.default", role="reduce", weight=5)
def lower_softmax(c: Call) -> Result:
    d, value = c.draft, c.draft.cast(c.first(), c.dtype)
    dims = _dims(c, value)
    moved = d.pointwise("sub", [value, d.reduce("amax", value, dims, True)])
    powers = d.pointwise("exp", [moved])
    total = d.reduce("sum", powers, dims, True)
    if "log" in str(c.node.target):
        return d.pointwise("sub", [moved, d.pointwise("log", [total])])
    return d.pointwise("div", [powers, total])


@lowers("prims.prepare_softmax_online.default", role="reduce", weight=4)
def lower_online_softmax(c: Call) -> Result:
    d, value = c.draft, c.first()
    dims = _dims(c, value)
    largest = d.reduce("amax", value, dims, True)
    return largest, d.reduce("sum", d.pointwise("exp", [d.pointwise("sub", [value, largest])]), dims, True)


@lowers("aten.native_layer_norm.default", role="reduce", weight=8)
def lower_layer_norm(c: Call) -> Result:
    rank = len(c.args["normalized_shape"])
    value = c.wide(c.value("input"))
    out, mean, rstd = _normalise(c, value, list(range(len(value.dims) - rank, len(value.dims))))
    for fn, name in (("mul", "weight"), ("add", "bias")):
        scale = c.optional(name)
        if scale is not None:
            out = c.draft.pointwise(fn, [out, c.draft.cast(scale, out.dtype)])
    return c.draft.cast(out, c.dtype), mean, rstd


@lowers("aten.native_group_norm.default", role="reduce", weight=8)
def lower_group_norm(c: Call) -> Result:
    value = c.wide(c.value("input"))
    batch, groups, channels = c.integers("N")[0], c.integers("group")[0], c.integers("C")[0]
    grouped = replace(value, dims=regroup(value.dims, [batch, groups, channels // groups, *c.integers("HxW")]))
    out, mean, rstd = _normalise(c, grouped, [2, 3])
    out = replace(out, dims=regroup(out.dims, c.extents))
    for fn, name in (("mul", "weight"), ("add", "bias")):
        scale = c.optional(name)
        if scale is not None:
            out = c.draft.pointwise(fn, [out, _per_channel(c.draft.cast(scale, out.dtype), len(out.dims))])
    flat = [replace(x, dims=regroup(x.dims, [batch, groups])) for x in (mean, rstd)]
    return c.draft.cast(out, c.dtype), flat[0], flat[1]


@lowers(
    "aten._native_batch_norm_legit_no_training.default aten._batch_norm_no_update.default",
    role="pointwise",
    weight=8,
)
def lower_batch_norm(c: Call) -> Result:
    d, value = c.draft, c.wide(c.value("input"))
    rank = len(value.dims)
    mean, var = c.value("running_mean"), c.value("running_var")
    rstd = d.pointwise("rsqrt", [d.pointwise("add", [var, c.number("eps")])])
    out = d.pointwise("sub", [value, _per_channel(d.cast(mean, value.dtype), rank)])
    out = d.pointwise("mul", [out, _per_channel(d.cast(rstd, value.dtype), rank)])
    for fn, name in (("mul", "weight"), ("add", "bias")):
        scale = c.optional(name)
        if scale is not None:
            out = d.pointwise(fn, [out, _per_channel(d.cast(scale, value.dtype), rank)])
    return d.cast(out, c.dtype), None, None


def _normalise(c: Call, value: Value, dims: Sequence[int]) -> tuple[Value, Value, Value]:
    """(value - mean) * rstd, mean, rstd; the last two keep their dims."""
    d = c.draft
    var = d.reduce("var", value, dims, True, literals=[0.0])
    mean = d.reduce("mean", value, dims, True)
    rstd = d.pointwise("rsqrt", [d.pointwise("add", [var, c.number("eps")])])
    return d.pointwise("mul", [d.pointwise("sub", [value, mean]), rstd]), mean, rstd


def _per_channel(value: Value, rank: int) -> Value:
    """A value over C as dim 1 of `rank` dims."""
    return replace(value, dims=((), value.dims[0], *[()] * (rank - 2)))


@lowers("aten.cumsum.default aten.cumprod.default", role="scan")
def lower_scan(c: Call) -> Result:
    fn = "cumsum" if "cumsum" in str(c.node.target) else "cumprod"
    value = c.draft.cast(c.first(), c.dtype)
    return c.draft.scan(fn, value, c.args["dim"] % max(1, len(value.dims)))
