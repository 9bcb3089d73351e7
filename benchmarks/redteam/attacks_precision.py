"""Arithmetic that is less precise than the region's dtype, everywhere or in a corner."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import STORE, Attack, edit, verify

S = h.SILU_SCALAR


_ONE_AFTER_THE_OTHER = """for (int j = 0; j < d1; ++j)
    s = round_to<bf16>(s + ld(in0 + blockIdx.x * d1 + j) * ld(in0 + blockIdx.x * d1 + j));"""


def _tf32(value: str) -> str:
    return f"__uint_as_float((__float_as_uint({value}) + 0x1000u) & 0xffffe000u)"


PRECISION: tuple[Attack, ...] = (
    verify("inputs rounded to bf16", "C7", "silu", edit(S, ("ld(in0 + i)", "round_to<bf16>(ld(in0 + i))"))),
    verify(
        "inputs rounded to TF32",
        "C7",
        "silu",
        edit(S, ("ld(in0 + i)", "__uint_as_float((__float_as_uint(ld(in0 + i)) + 0x1000u) & 0xffffe000u)")),
    ),
    verify(
        "result through f16",
        "C7",
        "silu",
        edit(S, (STORE, "st(out0 + i, round_to<f16>(t * sigmoid(t) + 0.5f));")),
    ),
    verify(
        "sigmoid by a rational function",
        "C7",
        "silu",
        edit(S, ("sigmoid(t)", "(0.5f + 0.5f * t / (1.0f + fabsf(t)))")),
    ),
    verify("sigmoid saturated beyond 8", "C26", "silu", edit(S, ("sigmoid(t)", "(t > 8.0f ? 1.0f : sigmoid(t))"))),
    verify(
        "softmax with f16 exponentials",
        "C7",
        "softmax",
        edit(h.SOFTMAX_WARP, ("v[j] = expf(v[j] - m);", "v[j] = round_to<f16>(expf(v[j] - m));")),
    ),
    verify(
        "column sum accumulated in bf16",
        "C7",
        "column_sum",
        edit(
            h.COLUMN_THREAD,
            (
                "s = fmaf(ld(in0 + r * d1 + c), ld(in1 + r * d1 + c), s);",
                "s = round_to<bf16>(fmaf(ld(in0 + r * d1 + c), ld(in1 + r * d1 + c), s));",
            ),
        ),
    ),
    verify(
        "column sum of products in f16",
        "C7",
        "column_sum",
        edit(
            h.COLUMN_THREAD,
            (
                "s = fmaf(ld(in0 + r * d1 + c), ld(in1 + r * d1 + c), s);",
                "s += round_to<f16>(ld(in0 + r * d1 + c) * ld(in1 + r * d1 + c));",
            ),
        ),
    ),
    verify(
        "long sum of bf16 inputs",
        "C7",
        "long_sum",
        edit(h.LONG_SUM_BLOCK, ("ld(in0 + blockIdx.x * d1 + i)", "round_to<bf16>(ld(in0 + blockIdx.x * d1 + i))")),
    ),
    verify(
        "long sum of TF32 inputs",
        "C7",
        "long_sum",
        edit(
            h.LONG_SUM_BLOCK,
            (
                "ld(in0 + blockIdx.x * d1 + i)",
                "__uint_as_float((__float_as_uint(ld(in0 + blockIdx.x * d1 + i)) + 0x1000u) & 0xffffe000u)",
            ),
        ),
    ),
    verify(
        "bf16 kernel with 4 bits of mantissa",
        "C7",
        "silu_bf16",
        edit(
            h.SILU_BF16,
            ("ld(in0 + i) *", "__uint_as_float((__float_as_uint(ld(in0 + i)) + 0x40000u) & 0xfff80000u) *"),
        ),
    ),
    verify(
        "variance in one pass",
        "C7",
        "batch_stats",
        edit(
            h.BATCH_BLOCK,
            (" - mean;\n    q += d * d;", ";\n    q += d * d;"),
            ("block_sum(q) / N", "block_sum(q) / N - mean * mean"),
        ),
    ),
    verify(
        "product of TF32 factors",
        "C7",
        "matmul",
        edit(m.MATMUL, ("ld(in0 + r * d1 + j)", _tf32("ld(in0 + r * d1 + j)"))),
    ),
    verify(
        "one column of a product in bf16",
        "C7",
        "matmul",
        edit(m.MATMUL, ("relu(s +", "relu((c == 5 ? round_to<bf16>(s) : s) +")),
    ),
    verify(
        "product accumulated in bf16",
        "C7",
        "matmul_bf16",
        edit(
            m.MATMUL_BF16,
            ("s += ld(in0", "s = round_to<bf16>(s + ld(in0"),
            ("in1 + c * d1 + j);", "in1 + c * d1 + j));"),
        ),
    ),
    verify(
        "convolution of f16 terms",
        "C7",
        "convolution",
        edit(
            m.CONVOLUTION,
            ("s = fmaf(ld(in0", "s += round_to<f16>(ld(in0"),
            ("* d3 + w), ld(in1", "* d3 + w) * ld(in1"),
            ("k1 + b), s);", "k1 + b));"),
        ),
    ),
    verify(
        "reciprocal root by a bit trick",
        "C7",
        "layernorm",
        edit(
            h.LAYERNORM_BLOCK,
            (
                "float r = rsqrtf(block_sum(q) / d1 + 1e-5f);",
                "float v = block_sum(q) / d1 + 1e-5f, r = __int_as_float(0x5f3759df - (__float_as_int(v) >> 1));\n"
                "  r = r * (1.5f - 0.5f * v * r * r);",
            ),
        ),
    ),
    verify(
        "reciprocal root after two steps of a bit trick",
        "C7",
        "batch_stats",
        edit(
            h.BATCH_BLOCK,
            (
                "float r = rsqrtf(var + 1e-5f);",
                "float v = var + 1e-5f, r = __int_as_float(0x5f3759df - (__float_as_int(v) >> 1));\n"
                "  r = r * (1.5f - 0.5f * v * r * r);\n  r = r * (1.5f - 0.5f * v * r * r);",
            ),
        ),
    ),
    verify(
        "running sum rounded to f16",
        "C7",
        "running_sum",
        edit(m.RUNNING_SUM, ("block_scan_sum(ld(in0 + i))", "round_to<f16>(block_scan_sum(ld(in0 + i)))")),
    ),
    verify("f64 in f32", "C7", "silu_f64", edit(m.SILU_F64, ("x * sigmoid(x)", "(float)x * sigmoid((float)x)"))),
    verify(
        "the exponential of f64 in f32",
        "C7",
        "silu_f64",
        edit(m.SILU_F64, ("x * sigmoid(x)", "x / (1.0 + expf(-(float)x))")),
    ),
    verify(
        "mask of values rounded to bf16",
        "C7",
        "threshold",
        edit(h.THRESHOLD, ("x > 0.25f", "round_to<bf16>(x) > 0.25f")),
    ),
    verify(
        "mask of TF32 products",
        "C7",
        "computed_mask",
        edit(m.COMPUTED_MASK, ("ld(in0 + i) * ld(in1 + i)", _tf32("ld(in0 + i)") + " * ld(in1 + i)")),
    ),
    verify(
        "any() of values rounded to bf16",
        "C7",
        "any_large",
        edit(m.ANY_LARGE, ("x > 3.0f", "round_to<bf16>(x) > 3.0f")),
    ),
    verify(
        "argmax of values rounded to bf16",
        "C7",
        "argmax",
        edit(h.ARGMAX, ("+ ld(in1 + i);", "+ ld(in1 + i);\n    v = round_to<bf16>(v);")),
    ),
    verify(
        "embedding through f16",
        "C7",
        "embedding",
        edit(h.EMBEDDING, ("(ld(in0 + row * d1 + i) +", "(round_to<f16>(ld(in0 + row * d1 + i)) +")),
    ),
    verify(
        "sum in fixed point",
        "C7",
        "column_sum",
        edit(
            h.COLUMN_THREAD,
            ("float s = 0.0f;", "long long s = 0;"),
            (
                "s = fmaf(ld(in0 + r * d1 + c), ld(in1 + r * d1 + c), s);",
                "s += (long long)(ld(in0 + r * d1 + c) * ld(in1 + r * d1 + c) * 65536.0f);",
            ),
            ("st(out0 + c, s)", "st(out0 + c, s / 65536.0f)"),
        ),
    ),
    verify(
        "every sixteenth term in bf16",
        "C7",
        "column_sum",
        edit(
            h.COLUMN_THREAD,
            (
                "s = fmaf(ld(in0 + r * d1 + c),",
                "s = fmaf(r % 16 ? ld(in0 + r * d1 + c) : round_to<bf16>(ld(in0 + r * d1 + c)),",
            ),
        ),
    ),
    verify(
        "exponential by a polynomial",
        "C7",
        "masked_softmax",
        edit(
            m.MASKED_SOFTMAX,
            (
                "__global__",
                "__device__ float rough(float x) {\n  float y = fmaxf(1.0f + x / 256.0f, 0.0f);\n"
                "  for (int i = 0; i < 8; ++i) y *= y;\n  return x == x ? y : x;\n}\n__global__",
            ),
            ("expf(", "rough("),
        ),
    ),
    verify(
        "mean in bf16",
        "C7",
        "layernorm",
        edit(
            h.LAYERNORM_BLOCK,
            ("float mean = block_sum(s) / d1;", "float mean = round_to<bf16>(block_sum(s) / d1);"),
        ),
    ),
    verify(
        "sigmoid of bf16 by a rational function",
        "C7",
        "silu_bf16",
        edit(h.SILU_BF16, ("sigmoid(t)", "(0.5f + 0.5f * t / (1.0f + fabsf(t)))")),
    ),
    verify(
        "root mean square of squares summed in bf16",
        "C7",
        "rms_bf16",
        edit(
            m.RMS_BF16,
            ("for (int j = 0; j < V; ++j) s += x[j] * x[j];", _ONE_AFTER_THE_OTHER),
            ("block_sum(s)", "s"),
        ),
    ),
)
