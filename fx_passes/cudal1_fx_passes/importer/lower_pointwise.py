"""Lowerings of pointwise aten and prims operators, with torch's type promotion written out as casts."""

from __future__ import annotations

import math

from cudal1_fx_passes.importer.draft import Value
from cudal1_fx_passes.importer.lower_views import narrow
from cudal1_fx_passes.importer.lowering import Call, Result, lowers
from cudal1_fx_passes.importer.unify import AxisConflict, unify
from cudal1_fx_passes.program.ir import FLOAT_DTYPES, Number

_UNARY = {
    "neg": "neg",
    "abs": "abs",
    "sign": "sign",
    "sgn": "sign",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log2": "log2",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "erf": "erf",
    "relu": "relu",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
    "trunc": "trunc",
}
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def _register_unary(aten: str, fn: str) -> None:
    @lowers(f"aten.{aten}.default")
    def lower(c: Call) -> Result:
        if c.dtype == "bool":
            raise AxisConflict(f"{fn} of bool")
        return c.draft.pointwise(fn, [c.draft.cast(c.first(), c.dtype)])


def _register_binary(fn: str) -> None:
    @lowers(f"aten.{fn}.default")
    def lower(c: Call) -> Result:
        return same_dtype(c, fn)


def _register_modulo(fn: str) -> None:
    @lowers(f"aten.{fn}.Tensor aten.{fn}.Scalar")
    def lower(c: Call) -> Result:
        divisor = c.operand("other")
        if c.dtype not in FLOAT_DTYPES and (isinstance(divisor, Value) or divisor == 0):
            raise AxisConflict(f"{fn} of {c.dtype} by what may be zero")
        return same_dtype(c, fn)


def _register_compare(fn: str) -> None:
    @lowers(f"aten.{fn}.Tensor aten.{fn}.Scalar")
    def lower(c: Call) -> Result:
        dtype = c.promoted("self", "other")
        if dtype == "bool":
            return _compare_bools(c, fn)
        return c.draft.pointwise(fn, [c.as_dtype(c.operand(x), dtype) for x in ("self", "other")])


def _register_logical(fn: str) -> None:
    @lowers(f"aten.logical_{fn}.default aten.bitwise_{fn}.Tensor aten.bitwise_{fn}.Scalar aten.__{fn}__.Tensor")
    def lower(c: Call) -> Result:
        if "logical" not in str(c.node.target):
            _need_bool(c)
        return c.draft.pointwise(f"logical_{fn}", [truth(c, c.operand("self")), truth(c, c.operand("other"))])


for _aten, _fn in _UNARY.items():
    _register_unary(_aten, _fn)
for _fn in ("maximum", "minimum"):
    _register_binary(_fn)
for _fn in ("fmod", "remainder"):
    _register_modulo(_fn)
for _fn in _COMPARE:
    _register_compare(_fn)
for _fn in ("and", "or", "xor"):
    _register_logical(_fn)


def same_dtype(c: Call, fn: str, first: str = "self", second: str = "other") -> Value:
    """A binary operation in the result's dtype; bool takes part only where the table has a meaning for it."""
    if c.dtype == "bool":
        logical = {"mul": "logical_and", "minimum": "logical_and", "add": "logical_or", "maximum": "logical_or"}
        if fn not in logical:
            raise AxisConflict(f"{fn} of bool")
        return c.draft.pointwise(logical[fn], [c.operand(first), c.operand(second)], "bool")
    return c.draft.pointwise(fn, [c.as_dtype(c.operand(x), c.dtype) for x in (first, second)], c.dtype)


def truth(c: Call, x: Value | Number) -> Value | Number:
    """x != 0 as bool."""
    if not isinstance(x, Value):
        return bool(x)
    return x if x.dtype == "bool" else c.draft.pointwise("ne", [x, 0])


def _compare_bools(c: Call, fn: str) -> Value:
    a, b = c.operand("self"), c.operand("other")
    if fn not in ("eq", "ne"):
        raise AxisConflict(f"{fn} of bool")
    differs = c.draft.pointwise("logical_xor", [a, b], "bool")
    return differs if fn == "ne" else c.draft.pointwise("logical_not", [differs])


def _need_bool(c: Call) -> None:
    if c.dtype != "bool":
        raise AxisConflict(f"{c.node.target} on {c.dtype}: bit operations are for bool only")


def _scaled(c: Call, x: Value | Number, factor: Number) -> Value | Number:
    if factor == 1:
        return x
    if not isinstance(x, Value):
        return x * factor
    return c.draft.pointwise("mul", [x, factor])


@lowers("aten.add.Tensor aten.add.Scalar aten.sub.Tensor aten.sub.Scalar aten.rsub.Tensor aten.rsub.Scalar")
def lower_add(c: Call) -> Result:
    name = c.node.target.__name__ if not isinstance(c.node.target, str) else ""
    fn = "add" if name.startswith("add") else "sub"
    alpha = c.number("alpha")
    if alpha == 1 and not name.startswith("rsub"):
        return same_dtype(c, fn)
    if c.dtype == "bool":
        raise AxisConflict(f"{fn} of bool")
    first, second = ("other", "self") if name.startswith("rsub") else ("self", "other")
    if alpha == 1:
        return same_dtype(c, fn, first, second)
    a, b = c.wide(c.operand(first)), c.wide(c.operand(second))
    return c.draft.cast(c.draft.pointwise(fn, [a, _scaled(c, b, alpha)]), c.dtype)


@lowers("aten.mul.Tensor aten.mul.Scalar")
def lower_mul(c: Call) -> Result:
    return same_dtype(c, "mul")


@lowers("aten.div.Tensor aten.div.Scalar aten.true_divide.Tensor prims.div.default")
def lower_div(c: Call) -> Result:
    if c.dtype not in FLOAT_DTYPES:
        raise AxisConflict(f"div in {c.dtype}")
    return same_dtype(c, "div")


@lowers("aten.div.Tensor_mode aten.div.Scalar_mode", weight=2)
def lower_div_mode(c: Call) -> Result:
    mode = c.args["rounding_mode"]
    if c.dtype not in FLOAT_DTYPES:
        raise AxisConflict(f"div with rounding in {c.dtype}")
    quotient = same_dtype(c, "div")
    if mode is None:
        return quotient
    if mode != "trunc":  # floor division of torch corrects the quotient first
        raise AxisConflict("div with rounding_mode floor")
    return c.draft.pointwise("trunc", [quotient])


@lowers("aten.pow.Tensor_Scalar")
def lower_pow_scalar(c: Call) -> Result:
    x, exponent = c.draft.cast(c.value("self"), c.dtype), c.number("exponent")
    simple = {-1: "reciprocal", 0.5: "sqrt", -0.5: "rsqrt"}
    if exponent in simple and c.dtype in FLOAT_DTYPES:
        return c.draft.pointwise(simple[exponent], [x])
    if exponent == 1:
        return x
    if exponent in (2, 3):
        square = c.draft.pointwise("mul", [x, x])
        return square if exponent == 2 else c.draft.pointwise("mul", [square, x])
    return c.draft.pointwise("pow", [x, exponent])


@lowers("aten.pow.Tensor_Tensor aten.pow.Scalar")
def lower_pow(c: Call) -> Result:
    return same_dtype(c, "pow", "self", "exponent")


@lowers("aten.where.self aten.where.ScalarOther aten.where.ScalarSelf aten.where.Scalar prims.where.default")
def lower_where(c: Call) -> Result:
    names = ("self", "other") if "self" in c.args else ("a", "b")
    condition = c.value("condition" if "condition" in c.args else "pred")
    chosen = [c.as_dtype(c.operand(x), c.dtype) for x in names]
    return c.draft.pointwise("where", [truth(c, condition), *chosen], c.dtype)


@lowers("aten.masked_fill.Scalar aten.masked_fill.Tensor")
def lower_masked_fill(c: Call) -> Result:
    filling = c.as_dtype(c.operand("value"), c.dtype)
    return c.draft.pointwise("where", [c.value("mask"), filling, c.value("self")], c.dtype)


@lowers("aten.clamp.default aten.clamp.Tensor aten.clamp_min.default aten.clamp_min.Tensor", weight=2)
def lower_clamp(c: Call) -> Result:
    return _clamp(c, c.args.get("min"), c.args.get("max"))


@lowers("aten.clamp_max.default aten.clamp_max.Tensor")
def lower_clamp_max(c: Call) -> Result:
    return _clamp(c, None, c.args["max"])


@lowers("aten.hardtanh.default", weight=2)
def lower_hardtanh(c: Call) -> Result:
    return _clamp(c, c.args["min_val"], c.args["max_val"], "min_val", "max_val")


def _clamp(c: Call, low: object, high: object, low_name: str = "min", high_name: str = "max") -> Value:
    x = c.draft.cast(c.value("self"), c.dtype)
    if low is not None:
        x = c.draft.pointwise("maximum", [x, c.as_dtype(c.operand(low_name), c.dtype)])
    if high is not None:
        x = c.draft.pointwise("minimum", [x, c.as_dtype(c.operand(high_name), c.dtype)])
    return x


@lowers("aten.leaky_relu.default", weight=3)
def lower_leaky_relu(c: Call) -> Result:
    x = c.value("self")
    low = c.draft.pointwise("mul", [x, c.number("negative_slope")])
    return c.draft.pointwise("where", [c.draft.pointwise("gt", [x, 0]), x, low])


@lowers("aten.addcmul.default aten.addcdiv.default", weight=3)
def lower_addcmul(c: Call) -> Result:
    fn = "mul" if "addcmul" in str(c.node.target) else "div"
    a, b, start = (c.wide(c.value(x)) for x in ("tensor1", "tensor2", "self"))
    value = c.number("value")
    inner = c.draft.pointwise(fn, [_scaled(c, a, value) if fn == "mul" else a, b])
    if fn == "div":
        inner = c.draft.pointwise("mul", [inner, value]) if value != 1 else inner
    return c.draft.cast(c.draft.pointwise("add", [start, inner]), c.dtype)


@lowers("aten.lerp.Scalar aten.lerp.Tensor", weight=3)
def lower_lerp(c: Call) -> Result:
    start, end, weight = (c.wide(c.operand(x)) for x in ("self", "end", "weight"))
    step = c.draft.pointwise("mul", [c.draft.pointwise("sub", [end, start]), weight])
    return c.draft.cast(c.draft.pointwise("add", [start, step]), c.dtype)


@lowers("prims.fma.default")
def lower_fma(c: Call) -> Result:
    return c.draft.pointwise("fma", [c.as_dtype(c._read(x), c.dtype) for x in c.node.args])


@lowers("aten.isnan.default")
def lower_isnan(c: Call) -> Result:
    return c.draft.pointwise("isnan", [c.value("self")])


@lowers("aten.isinf.default aten.isfinite.default", weight=2)
def lower_isinf(c: Call) -> Result:
    fn = "eq" if "isinf" in str(c.node.target) else "lt"
    if c.value("self").dtype not in FLOAT_DTYPES:
        return c.full(fn == "lt")
    return c.draft.pointwise(fn, [c.draft.pointwise("abs", [c.value("self")]), math.inf])


@lowers("aten.logical_not.default aten.bitwise_not.default")
def lower_not(c: Call) -> Result:
    if "bitwise" in str(c.node.target):
        _need_bool(c)
    x = truth(c, c.value("self"))
    return c.draft.pointwise("logical_not", [x])


@lowers("aten.gelu.default", weight=5)
def lower_gelu(c: Call) -> Result:
    d, x = c.draft, c.value("self")
    if c.args["approximate"] == "tanh":
        cube = d.pointwise("mul", [d.pointwise("mul", [d.pointwise("mul", [x, x]), x]), 0.044715])
        inner = d.pointwise("mul", [d.pointwise("add", [x, cube]), math.sqrt(2 / math.pi)])
        bent = d.pointwise("tanh", [inner])
    else:
        bent = d.pointwise("erf", [d.pointwise("mul", [x, math.sqrt(0.5)])])
    return d.pointwise("mul", [d.pointwise("mul", [x, 0.5]), d.pointwise("add", [bent, 1])])


@lowers("aten.silu.default", weight=2)
def lower_silu(c: Call) -> Result:
    x = c.value("self")
    return c.draft.pointwise("mul", [x, c.draft.pointwise("sigmoid", [x])])


@lowers("aten.glu.default", weight=2)
def lower_glu(c: Call) -> Result:
    x, dim = c.value("self"), c.args["dim"] % max(1, len(c.extents))
    size = c.extents[dim]
    if not isinstance(size, int):
        raise AxisConflict("glu over a symbolic dim")
    halves = [narrow(c, x, dim, start, size) for start in (0, size)]
    return c.draft.pointwise("mul", [halves[0], c.draft.pointwise("sigmoid", [halves[1]])])


@lowers("aten.sigmoid_backward.default aten.tanh_backward.default", weight=3)
def lower_saturating_backward(c: Call) -> Result:
    d, grad, y = c.draft, c.value("grad_output"), c.value("output")
    if "tanh" in str(c.node.target):
        slope = d.pointwise("sub", [1, d.pointwise("mul", [y, y])])
    else:
        slope = d.pointwise("mul", [y, d.pointwise("sub", [1, y])])
    return d.pointwise("mul", [grad, slope])


@lowers("aten.threshold_backward.default", weight=2)
def lower_threshold_backward(c: Call) -> Result:
    below = c.draft.pointwise("le", [c.value("self"), c.number("threshold")])
    return c.draft.pointwise("where", [below, 0, c.value("grad_output")])


@lowers("prims.convert_element_type.default aten._to_copy.default aten.to.dtype")
def lower_cast(c: Call) -> Result:
    x = c.first()
    if c.dtype == "bool" and x.dtype != "bool":
        return c.draft.pointwise("ne", [x, 0])
    return c.draft.cast(x, c.dtype)


@lowers("aten.clone.default aten.alias.default aten.detach.default aten.lift_fresh_copy.default aten.lift.default")
def lower_identity(c: Call) -> Result:
    return c.first()


@lowers("aten.copy.default")
def lower_copy(c: Call) -> Result:
    """copy(self, src): src in the shape and dtype of self."""
    source, dims = c.draft.cast(c.value("src"), c.dtype), c.value("self").dims
    for mine, theirs in zip(reversed(dims), reversed(source.dims), strict=False):
        if theirs:
            unify(mine, theirs)
    return Value(source.source, dims, source.dtype, source.access)


@lowers("aten.full.default aten.full_like.default aten.scalar_tensor.default aten.zeros.default aten.ones.default")
def lower_full(c: Call) -> Result:
    name = str(c.node.target)
    if "zeros" in name or "ones" in name:
        return c.full(0 if "zeros" in name else 1)
    return c.full(c.number("s" if "scalar_tensor" in name else "fill_value"))


@lowers("aten.zeros_like.default aten.ones_like.default")
def lower_like(c: Call) -> Result:
    return c.full(0 if "zeros" in str(c.node.target) else 1)


@lowers("prims.iota.default aten.arange.start_step aten.arange.default aten.arange.start", weight=3)
def lower_iota(c: Call) -> Result:
    start, step = c.args.get("start", 0), c.args.get("step", 1)
    if not all(isinstance(x, (int, float)) and x == int(x) for x in (start, step)):
        raise AxisConflict("iota with a start or step that is not a whole number")
    dims = c.full(0).dims
    if not dims[0]:
        return c.full(start)
    x = c.draft.iota(dims[0][0], c.dtype if c.dtype in ("i64", "i32") else "i64")
    x = c.draft.pointwise("mul", [x, int(step)]) if step != 1 else x
    x = c.draft.pointwise("add", [x, int(start)]) if start != 0 else x
    return c.draft.cast(x, c.dtype)
