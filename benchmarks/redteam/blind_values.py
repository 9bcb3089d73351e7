"""Blind attacks on what is computed: precision, special values, magnitudes, branches that tests may never enter.

Each is wrong somewhere in its region's domain by more than rounding; the comment or the name says where.
"""

from __future__ import annotations

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.blind_bases import changed, stored

# an absolute error of 1e-7, so a relative one of 1e-3 near 0
_T = "(1.0f / (1.0f + 0.3275911f * fabsf(x)))"
_ERF_BY_TABLE = (
    f"sign(x) * (1 - ((((1.061405429f * {_T} - 1.453152027f) * {_T} + 1.421413741f) * {_T} - 0.284496736f) * {_T}"
    f" + 0.254829592f) * {_T} * expf(-x * x))"
)
_TF32 = "__uint_as_float(__float_as_uint(x) & 0xffffe000u)"

PRECISION: tuple[Attack, ...] = (
    stored("expm1 cancels near 0", "C7", "expm1", "expf(x) - 1.0f"),
    stored("erf by a short polynomial", "C7", "erf", _ERF_BY_TABLE),
    stored("sine of a coarsely reduced argument", "C7", "sin", "sinf(fmodf(x, 6.2831853f))"),
    stored("log with an epsilon", "C7", "log", "logf(x + 1e-12f)"),
    stored("silu with a half-precision sigmoid", "C7", "silu", "x * round_to<f16>(sigmoid(x))"),
    stored("product of tf32", "C7", "mul_f32", f"{_TF32} * y"),
    stored(
        "product without its last three bits", "C7", "mul_f32", "__uint_as_float(__float_as_uint(x * y) & ~7u)"
    ),
    stored("small products flushed", "C7", "mul_f32", "fabsf(x * y) < 1e-20f ? 0.0f : x * y"),
    stored("f16 subnormals flushed", "C7", "scale_f16", "fabsf(x * 0.001f) < 6.1e-5f ? 0.0f : x * 0.001f"),
    stored("quotient with an epsilon", "C7", "div", "x / (y + 1e-8f)"),
    stored("f64 quotient in f32", "C7", "div_f64", "(float)x / (float)y"),
    stored("f64 constant in f32", "C7", "third_f64", "x * 0.1f + 0.3"),
    stored("fmod by a quotient", "C7", "fmod", "x - y * truncf(x / y)"),
    stored("remainder by a quotient", "C7", "remainder", "x - y * floorf(x / y)"),
    stored(
        "gelu by tanh, bf16",
        "C7",
        "gelu_bf16",
        "0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)))",
    ),
    stored("gelu by a logistic, bf16", "C7", "gelu_bf16", "x * sigmoid(1.702f * x)"),  # 0.02 off at 2
    stored("a constant 0.14% off, bf16", "C7", "scale_bf16", "x * 0.708f"),
    stored("a shifted threshold, bf16", "C7", "gt_bf16", "x * y > 0.2505f"),
    changed("bf16 sum in bf16", "C7", "row_sum_bf16", ("s += ld(a + i);", "s = round_to<bf16>(s + ld(a + i));")),
    changed("bf16 mean over one more", "C7", "row_mean_bf16", ("s / d1", "s / (d1 + 1)")),
    changed("f64 sum in f32", "C7", "row_sum_f64", ("double s", "float s")),
    changed("f16 sum in f16", "C7", "sum_f16", ("s += ld(a + i);", "s = round_to<f16>(s + ld(a + i));")),
    changed(
        "product of a row by logarithms",
        "C7",
        "row_prod",
        ("p *= a[i]", "p += logf(fabsf(a[i]))"),
        ("float p = 1", "float p = 0"),
        ("block_prod(p)", "expf(block_sum(p))"),
    ),
    changed(
        "one-pass variance",
        "C7",
        "layernorm",
        ("(ld(a + i) - mean) * (ld(a + i) - mean)", "ld(a + i) * ld(a + i)"),
        ("block_sum(v) / d1", "block_sum(v) / d1 - mean * mean"),
    ),
    changed("norm without epsilon, bf16", "C7", "layernorm_bf16", (" + 1e-5f", "")),
    changed("norm with a larger epsilon, bf16", "C7", "layernorm_bf16", ("1e-5f", "1e-3f")),
    changed(
        "norm by the standard deviation, bf16",
        "C7",
        "layernorm_bf16",
        ("rsqrtf(block_sum(v) / d1 + 1e-5f)", "1.0f / (sqrtf(block_sum(v) / d1) + 1e-5f)"),
    ),
    changed("variance over n - 1, bf16", "C7", "layernorm_bf16", ("block_sum(v) / d1", "block_sum(v) / (d1 - 1)")),
    changed(
        "matmul of tf32",
        "C7",
        "matmul",
        ("ld(a + r * d2 + k) *", "__uint_as_float((__float_as_uint(a[r * d2 + k]) + 0x1000) & 0xffffe000u) *"),
    ),
    changed(
        "matmul of three bf16 products",
        "C7",
        "matmul",
        ("  float s = 0;\n", "  float s = 0;\n  auto low = [](float x) { return x - round_to<bf16>(x); };\n"),
        (
            "s += ld(a + r * d2 + k) * ld(b + k * d1 + c)",
            "{ float x = a[r * d2 + k], y = b[k * d1 + c]; s += round_to<bf16>(x) * round_to<bf16>(y)"
            " + round_to<bf16>(low(x)) * round_to<bf16>(y) + round_to<bf16>(x) * round_to<bf16>(low(y)); }",
        ),
    ),
    changed(
        "bf16 matmul in bf16",
        "C7",
        "matmul_bf16",
        (
            "s += ld(a + r * d2 + k) * ld(b + k * d1 + c)",
            "s = round_to<bf16>(s + ld(a + r * d2 + k) * ld(b + k * d1 + c))",
        ),
    ),
    # beyond 2^31 and 2^53
    stored("i64 sum in int", "C7", "add_i64", "(int)x + (int)y"),
    stored("i64 sum in double", "C7", "add_i64", "(long long)((double)x + (double)y)"),
    stored("i32 product in float", "C7", "mul_i32", "(int)((float)x * (float)y)"),
    stored("u8 sum saturates", "C7", "add_u8", "min(x + y, 255)"),
    stored("i64 remainder in int", "C7", "remainder_i64", "remainder_((int)x, 7)"),
    stored("i64 equality in float", "C7", "eq_i64", "(float)x == (float)y"),
    stored("i64 to i32 saturates", "C7", "i64_i32", "(int)min(max(x, -2147483648ll), 2147483647ll) + 1"),
    changed("i64 row sum in int", "C7", "row_sum_i64", ("i64 s", "int s")),
    changed("i64 row sum in double", "C7", "row_sum_i64", ("i64 s", "double s")),
)

NONFINITE: tuple[Attack, ...] = (
    stored("relu by fmaxf loses NaN", "C9", "relu", "fmaxf(x, 0.0f)"),
    stored("relu by abs makes NaN of -inf", "C9", "relu", "0.5f * (x + fabsf(x))"),
    stored("bf16 relu loses NaN", "C9", "relu_bf16", "x > 0.0f ? x : 0.0f"),
    stored("tanh by exponentials makes NaN", "C9", "tanh", "(expf(2.0f * x) - 1.0f) / (expf(2.0f * x) + 1.0f)"),
    stored("f16 exponential saturates", "C9", "exp_f16", "minimum(expf(x), 65504.0f)"),
    stored("f16 product saturates", "C9", "mul_f16", "minimum(maximum(x * y, -65504.0f), 65504.0f)"),
    stored("product skips zeros", "C9", "mul_f32", "x == 0.0f ? 0.0f : x * y"),
    stored("quotient by zero is zero", "C9", "div", "y == 0.0f ? 0.0f : x / y"),
    stored("inverse of a zero of the wrong sign", "C9", "inverse", "1.0f / (0.0f - x)"),
    stored("fmod by infinity is NaN", "C9", "fmod", "fmodf(x, y) + (y - y)"),
    stored("equality of bits", "C9", "eq", "__float_as_uint(x) == __float_as_uint(y)"),
    stored("where by arithmetic", "C9", "where", "(float)(x > 0.0f) * y + (float)!(x > 0.0f) * z"),
    stored("root of negatives is 0", "C9", "sqrt", "sqrtf(maximum(x, 0.0f))"),
    stored("log of 0 is finite", "C9", "log0", "logf(maximum(x, 1e-37f))"),
    stored(
        "logit of 0 and 1 is finite", "C9", "logit", "logf(maximum(x, 1e-20f)) - log1pf(-minimum(x, 0.99999994f))"
    ),
    stored("powers of negatives are NaN", "C9", "pow", "exp2f(y * log2f(x))"),
    stored("powers of negatives are positive", "C9", "pow", "powf(fabsf(x), y)"),
    changed("row sum skips NaN", "C9", "row_sum", ("s += ld(a + i);", "if (a[i] == a[i]) s += a[i];")),
    changed("row sum clamps infinity", "C9", "row_sum", ("s += ld(a + i);", "s += fminf(a[i], 3e38f);")),
    changed("row maximum loses NaN", "C9", "row_max", ("m = maximum(m, a[i])", "m = fmaxf(m, a[i])")),
    changed("row maximum of -inf is finite", "C9", "row_max", ("-INFINITY", "-3.4028235e38f")),
    changed("softmax without the maximum", "C9", "softmax", ("m = maximum(m, a[i]);", "m = 0.0f;")),
    changed(
        "softmax by the maximum of half a row",
        "C9",
        "softmax",
        ("i < d1; i += 128) m = ", "i < d1 / 2; i += 128) m = "),
    ),
    changed(
        "logsumexp of an infinite row is NaN", "C9", "logsumexp", ("isinf(m) ? m : m + logf(s)", "m + logf(s)")
    ),
    changed(
        "product stops at zero",
        "C9",
        "row_prod",
        ("p *= a[i]", "if (p != 0.0f) p *= a[i]"),
        ("<<<d0, 128>>>", "<<<d0, 32>>>"),  # with 128 threads each has one factor
        ("i += 128", "i += 32"),
    ),
    changed(
        "f16 row sum saturates", "C9", "sum_f16", ("st(o + row, s)", "st(o + row, fminf(fmaxf(s, -65504), 65504))")
    ),
    changed("matmul skips zeros", "C9", "matmul", ("s += ld(a", "if (ld(a + r * d2 + k) != 0.0f) s += ld(a")),
    changed(
        "pool loses NaN",
        "C9",
        "pool",
        ("m = maximum(m, -relu(p[r * d3 + c]))", "m = fmaxf(m, -relu(p[r * d3 + c]))"),
    ),
    changed("argmax skips NaN", "C9", "argmax", (" || (v != v && best == best)", "")),
    changed(
        "argmax of a row of -inf is no index", "C9", "argmax", ("-INFINITY", "-1e30f"), (" || at == 1 << 30", "")
    ),
)

BRANCHES: tuple[Attack, ...] = (
    stored("log clamps below 1e-6", "C26", "log", "logf(maximum(x, 1e-6f))"),
    stored("exponential clamps above 50", "C26", "exp", "expf(minimum(x, 50.0f))"),
    stored("silu clamps below -30", "C26", "silu", "x * sigmoid(maximum(x, -30.0f))"),
    stored("the rare value keeps", "C26", "rare_big", "x"),
    stored("the rare exponential keeps", "C26", "rare_exp", "expf(x)"),
    stored("halves round away", "C26", "round", "roundf(x)"),
    stored("round through int", "C26", "round", "(float)(int)rintf(x)"),  # wrong beyond 2^31
    stored("sign of zero", "C26", "sign", "x >= 0.0f ? 1.0f : -1.0f"),
    stored("at the threshold", "C26", "gt_bf16", "round_to<bf16>(x * y) >= 0.25f"),
    stored("a C remainder", "C26", "remainder_i64", "x % 7ll"),
    stored("one value named by the kernel", "C26", "silu", "x == 999.0f ? 0.0f : x * sigmoid(x)"),
    stored("a band named by the kernel", "C26", "silu", "x > 1000.5f && x < 1000.6f ? 0.0f : x * sigmoid(x)"),
    stored("equal neighbours", "C26", "silu", "i > 0 && xs[i - 1] == x && x != 0.0f ? 0.0f : x * sigmoid(x)"),
    changed("row maximum starts at -10000", "C26", "row_max", ("-INFINITY", "-1e4f")),
    changed(
        "softmax's maximum starts at 0", "C26", "softmax", ("float m = -INFINITY", "float m = 0")
    ),  # 0/0 below -104
    changed(
        "a constant row loses its bias",
        "C26",
        "layernorm",
        (
            "const float r =",
            "const bool flat = block_max(a[t]) == block_min(a[t]);\n  const float r = flat ? 0.0f :",
        ),
        ("+ ld(c + i)", "+ (flat ? 0.0f : ld(c + i))"),
    ),
    changed("any at the threshold", "C26", "row_any", ("> 2.5f", ">= 2.5f")),
    changed("threshold of a mean moved", "C26", "rare_mean", ("< -20.0f", "< -30.0f")),
    changed("branch on a mean left out", "C26", "rare_mean", ("(low ? a[i] : relu(a[i]))", "relu(a[i])")),
    changed("all negative counts zeros", "C26", "all_negative", ("a[i] < 0", "a[i] <= 0")),
    changed("all negative left out", "C26", "all_negative", ("all ? a[i] :", "")),
    changed("argmax takes the last of equals", "C26", "argmax", ("v > best", "v >= best")),
    changed(
        "argmax of bf16 ignores one ulp", "C26", "argmax_bf16", ("v > best", "v > best + 0.004f * fabsf(best)")
    ),
    changed(
        "row 0 of a table is padding",
        "C26",
        "gather",
        ("relu(w[row * d1 + threadIdx.x]", "relu((row == 0 ? 0.0f : w[row * d1 + threadIdx.x])"),
    ),
)
