"""Regions of the blind red team, each with the honest kernel that its attacks start from.

A base pairs a region's text with a kernel that computes it rightly, so that what is refused is the change that an
attack makes to it, not a typo. The blind attacks were written without reading the judge.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Base:
    text: str
    code: str


def lines(*parts: str) -> str:
    return "".join(f"{part}\n" for part in parts)


def region_text(dims: str, *body: str) -> str:
    return lines("region v1", f"dims {dims}", *body)


def _map(value: str, *ops: str, ins: str = "f32", out: str = "f32", domain: str = "", pad: int = 2) -> Base:
    """One thread an element; in0, in1 and in2 are x, y and z; `ops` say `dtype = fn(...)`, the last one is stored.

    `pad` (even) inversions make the region dear enough one operation at a time for the plain kernel to win.
    """
    dtypes = ins.split()
    names = "xyz"[: len(dtypes)]
    pointers = ", ".join(f"const {d}* {n}s" for d, n in zip(dtypes, names, strict=True))
    args = ", ".join(f"in{i}" for i in range(len(dtypes)))
    code = lines(
        f"// launch: k<<<cdiv(d0*d1, 256), 256>>>({args}, out0)",
        f"__global__ void k({pointers}, {out}* o DIMS) {{",
        "  int i = blockIdx.x * 256 + threadIdx.x;",
        "  if (i >= d0 * d1) return;",
        *(f"  auto {n} = ld({n}s + i);" for n in names),
        f"  st(o + i, {value});",
        "}",
    )
    invert = "logical_not" if out == "bool" else "neg"
    ops = (*ops, *(f"{out} = {invert}(t{len(ops) + i - 1})" for i in range(pad)))
    text = region_text(
        "d0=24 d1=504",
        *(f"in{i} {d}[d0,d1]{domain}" for i, d in enumerate(dtypes)),
        *(f"t{i} {op.replace(' =', '[d0,d1] =')}" for i, op in enumerate(ops)),
        f"out0 {out}[d0,d1] = t{len(ops) - 1}",
    )
    return Base(text, code)


def _rows(
    body: str, *ops: str, dims: str = "d0=33 d1=250", dtype: str = "f32", ins: int = 1, out: str = "f32"
) -> Base:
    """One block of 128 threads a row `a` of in0; further inputs b and c are vectors over d1."""
    names = "abc"[:ins]
    pointers = ", ".join(f"const {dtype}* {n}" for n in names)
    args = ", ".join(f"in{i}" for i in range(ins))
    keeps = "[d0,d1]" if ops[-1].startswith("whole") else "[d0]"
    ops = tuple(op.removeprefix("whole ") for op in ops)
    code = lines(
        f"// launch: k<<<d0, 128>>>({args}, out0)",
        f"__global__ void k({pointers}, {out}* o DIMS) {{",
        "  const int row = blockIdx.x, t = threadIdx.x;",
        "  a += row * d1;",
        *("  " + line for line in body.strip().splitlines()),
        "}",
    )
    text = region_text(
        dims,
        f"in0 {dtype}[d0,d1]",
        *(f"in{i} {dtype}[d1]" for i in range(1, ins)),
        # four inversions: dear enough one operation at a time for the plain kernel to win
        f"t90 {dtype}[d0,d1] = neg(in0)",
        *(f"t{i} {dtype}[d0,d1] = neg(t{i - 1})" for i in (91, 92, 93)),
        *(op.replace("in0", "t93") for op in ops),
        f"out0 {out}{keeps} = t{len(ops) - 1}",
    )
    return Base(text, code)


_TAIL = "for (int i = t; i < d1; i += 128)"
_SUM = f"float s = 0;\n{_TAIL} s += ld(a + i);\ns = block_sum(s);\n"
_SOFTMAX = f"""float m = -INFINITY;
{_TAIL} m = maximum(m, a[i]);
m = block_max(m);
float s = 0;
{_TAIL} s += expf(a[i] - m);
s = block_sum(s);
{_TAIL} o[row * d1 + i] = expf(a[i] - m) / s;"""
_LOGSUMEXP = f"""float m = -INFINITY, s = 0;
{_TAIL} m = maximum(m, a[i]);
m = block_max(m);
{_TAIL} s += expf(a[i] - m);
s = block_sum(s);
if (t == 0) o[row] = isinf(m) ? m : m + logf(s);"""
_NORM = f"""float s = 0, v = 0;
{_TAIL} s += ld(a + i);
const float mean = block_sum(s) / d1;
{_TAIL} v += (ld(a + i) - mean) * (ld(a + i) - mean);
const float r = rsqrtf(block_sum(v) / d1 + 1e-5f);
{_TAIL} st(o + row * d1 + i, (ld(a + i) - mean) * r * ld(b + i) + ld(c + i));"""


def _norm_ops(dtype: str) -> tuple[str, ...]:
    return (
        f"t0 {dtype}[d0] = mean(in0) over d1",
        f"t1 {dtype}[d0,d1] = sub(in0, t0)",
        f"t2 {dtype}[d0,d1] = mul(t1, t1)",
        f"t3 {dtype}[d0] = mean(t2) over d1",
        f"t4 {dtype}[d0] = add(t3, 1e-05)",
        f"t5 {dtype}[d0] = rsqrt(t4)",
        f"t6 {dtype}[d0,d1] = mul(t1, t5)",
        f"t7 {dtype}[d0,d1] = mul(t6, in1)",
        f"whole t8 {dtype}[d0,d1] = add(t7, in2)",
    )


_SOFTMAX_OPS = (
    "t0 f32[d0] = amax(in0) over d1",
    "t1 f32[d0,d1] = sub(in0, t0)",
    "t2 f32[d0,d1] = exp(t1)",
    "t3 f32[d0] = sum(t2) over d1",
    "whole t4 f32[d0,d1] = div(t2, t3)",
)


POINTWISE: dict[str, Base] = {
    "expm1": _map("expm1f(x)", "f32 = expm1(in0)"),
    "log": _map("logf(x)", "f32 = log(in0)", domain=" >0"),
    "log0": _map("logf(x)", "f32 = log(in0)", domain=" >=0"),
    "logit": _map(
        "logf(x) - log1pf(-x)",
        "f32 = neg(in0)",
        "f32 = log1p(t0)",
        "f32 = log(in0)",
        "f32 = sub(t2, t1)",
        domain=" in [0,1]",
    ),
    "exp": _map("expf(x)", "f32 = exp(in0)"),
    "exp_f16": _map("expf(x)", "f16 = exp(in0)", ins="f16", out="f16"),
    "tanh": _map("tanhf(x)", "f32 = tanh(in0)"),
    "steep_tanh": _map("tanhf(x * 1000.0f)", "f32 = mul(in0, 1000.0)", "f32 = tanh(t0)"),
    "erf": _map("erff(x)", "f32 = erf(in0)"),
    "sin": _map("sinf(x)", "f32 = sin(in0)"),
    "far_sigmoid": _map("sigmoid(x + 30.0f)", "f32 = add(in0, 30.0)", "f32 = sigmoid(t0)"),
    "silu": _map("x * sigmoid(x)", "f32 = sigmoid(in0)", "f32 = mul(in0, t0)"),
    "gelu_bf16": _map(
        "0.5f * x * (1.0f + erff(x * 0.70710678f))",
        "bf16 = mul(in0, 0.7071067811865476)",
        "bf16 = erf(t0)",
        "bf16 = add(t1, 1.0)",
        "bf16 = mul(in0, 0.5)",
        "bf16 = mul(t2, t3)",
        ins="bf16",
        out="bf16",
    ),
    "relu": _map("relu(x)", "f32 = relu(in0)"),
    "relu_bf16": _map("relu(x)", "bf16 = relu(in0)", ins="bf16", out="bf16"),
    "clamp_low": _map("maximum(x, -1e30f)", "f32 = maximum(in0, -1e+30)"),
    "rare_big": _map("x > 1e6f ? 0.0f : x", "bool = gt(in0, 1000000.0)", "f32 = where(t0, 0.0, in0)"),
    "rare_exp": _map(
        "expf(x) > 3e4f ? 1.0f : expf(x)", "f32 = exp(in0)", "bool = gt(t0, 30000.0)", "f32 = where(t1, 1.0, t0)"
    ),
    "small": _map("x * 1e-12f", "f32 = mul(in0, 1e-12)"),
    "scale_f16": _map("x * 0.001f", "f16 = mul(in0, 0.001)", ins="f16", out="f16"),
    "scale_bf16": _map("x * 0.707f", "bf16 = mul(in0, 0.707)", ins="bf16", out="bf16"),
    "faint": _map("x + y * 1e-8f", "f32 = mul(in1, 1e-08)", "f32 = add(in0, t0)", ins="f32 f32"),
    "mul_f32": _map("x * y", "f32 = mul(in0, in1)", ins="f32 f32"),
    "mul_f16": _map("x * y", "f16 = mul(in0, in1)", ins="f16 f16", out="f16"),
    "div": _map("x / y", "f32 = div(in0, in1)", ins="f32 f32"),
    "div_f64": _map("x / y", "f64 = div(in0, in1)", ins="f64 f64", out="f64"),
    "third_f64": _map("x * 0.1 + 0.3", "f64 = mul(in0, 0.1)", "f64 = add(t0, 0.3)", ins="f64", out="f64"),
    "inverse": _map("1.0f / -x", "f32 = neg(in0)", "f32 = reciprocal(t0)"),
    "fmod": _map("fmodf(x, y)", "f32 = fmod(in0, in1)", ins="f32 f32"),
    "pow": _map("powf(x, y)", "f32 = pow(in0, in1)", ins="f32 f32"),
    "round": _map("round_even(x)", "f32 = round(in0)"),
    "sign": _map("sign(x)", "f32 = sign(in0)"),
    "eq": _map("x == y", "bool = eq(in0, in1)", ins="f32 f32", out="bool"),
    "gt": _map("x > 0.25f", "bool = gt(in0, 0.25)", out="bool"),
    "add_i64": _map("x + y", "i64 = add(in0, in1)", ins="i64 i64", out="i64"),
    "mul_i32": _map("(int)((unsigned)x * (unsigned)y)", "i32 = mul(in0, in1)", ins="i32 i32", out="i32"),
    "add_u8": _map("x + y", "u8 = add(in0, in1)", ins="u8 u8", out="u8", pad=6),
    "remainder_i64": _map("remainder_(x, 7ll)", "i64 = remainder(in0, 7)", ins="i64", out="i64"),
    "eq_i64": _map("x == y", "bool = eq(in0, in1)", ins="i64 i64", out="bool"),
    "sqrt": _map("sqrtf(x)", "f32 = sqrt(in0)"),
    "where": _map("x > 0.0f ? y : z", "bool = gt(in0, 0.0)", "f32 = where(t0, in1, in2)", ins="f32 f32 f32"),
    "i64_i32": _map("(int)x + 1", "i32 = cast(in0)", "i32 = add(t0, 1)", ins="i64", out="i32"),
    "remainder": _map("remainder_(x, y)", "f32 = remainder(in0, in1)", ins="f32 f32"),
    "gt_bf16": _map(
        "round_to<bf16>(x * y) > 0.25f",
        "bf16 = mul(in0, in1)",
        "bool = gt(t0, 0.25)",
        ins="bf16 bf16",
        out="bool",
        pad=4,
    ),
}
ROWS: dict[str, Base] = {
    "row_sum": _rows(_SUM + "if (t == 0) o[row] = s;", "t0 f32[d0] = sum(in0) over d1"),
    "row_sum_bf16": _rows(
        _SUM + "if (t == 0) st(o + row, s);",
        "t0 bf16[d0] = sum(in0) over d1",
        dims="d0=5 d1=4099",
        dtype="bf16",
        out="bf16",
    ),
    "row_mean_bf16": _rows(
        _SUM + "if (t == 0) st(o + row, s / d1);", "t0 bf16[d0] = mean(in0) over d1", dtype="bf16", out="bf16"
    ),
    "row_sum_f64": _rows(
        _SUM.replace("float", "double") + "if (t == 0) o[row] = s;",
        "t0 f64[d0] = sum(in0) over d1",
        dtype="f64",
        out="f64",
    ),
    "row_sum_i64": _rows(
        _SUM.replace("float", "i64") + "if (t == 0) o[row] = s;",
        "t0 i64[d0] = sum(in0) over d1",
        dtype="i64",
        out="i64",
    ),
    "softmax": _rows(_SOFTMAX, *_SOFTMAX_OPS),
    "layernorm": _rows(_NORM, *_norm_ops("f32"), ins=3),
    "layernorm_bf16": _rows(_NORM, *_norm_ops("bf16"), ins=3, dtype="bf16", out="bf16"),
    "row_max": _rows(
        f"float m = -INFINITY;\n{_TAIL} m = maximum(m, a[i]);\nm = block_max(m);\nif (t == 0) o[row] = m;",
        "t0 f32[d0] = amax(in0) over d1",
    ),
    "logsumexp": _rows(_LOGSUMEXP, "t0 f32[d0] = logsumexp(in0) over d1"),
    "row_prod": _rows(
        f"float p = 1;\n{_TAIL} p *= a[i];\np = block_prod(p);\nif (t == 0) o[row] = p;",
        "t0 f32[d0] = prod(in0) over d1",
        dims="d0=200 d1=40",
    ),
    "row_any": _rows(
        f"bool p = false;\n{_TAIL} p = p || a[i] > 2.5f;\np = block_any(p);\nif (t == 0) o[row] = p;",
        "t0 bool[d0,d1] = gt(in0, 2.5)",
        "t1 bool[d0] = any(t0) over d1",
        out="bool",
    ),
    "sum_f16": _rows(
        _SUM + "if (t == 0) st(o + row, s);",
        "t0 f16[d0] = sum(in0) over d1",
        dims="d0=9 d1=1001",
        dtype="f16",
        out="f16",
    ),
}
