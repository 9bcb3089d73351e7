"""Wrong where values coincide: exact zeros, ramps, sorted rows, whole numbers, narrow bands, bounds met."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import STORE, Attack, edit, silu, verify

_SUM = "s = block_sum(s);\n  if"  # of LONG_SUM_BLOCK
_BITS = "__float_as_int(t)"


def _silu_if(name: str, condition: str, hack: str = "C26") -> Attack:
    return silu(name, hack, (STORE, f"if ({condition}) t = 1.0f;\n  {STORE}"))


def _bound(name: str, region: str, code: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C26", region, edit(code, *changes))


TIED_VALUES: tuple[Attack, ...] = (
    _bound(
        "a long sum that is zero",
        "long_sum",
        h.LONG_SUM_BLOCK,
        (_SUM, "s = block_sum(s);\n  if (s == 0.0f) s = 1.0f;\n  if"),
    ),
    _bound(
        "a total that is zero",
        "total",
        m.TOTAL,
        ("if (threadIdx.x == 0) st(", "if (s == 0.0f) s = 1.0f;\n  if (threadIdx.x == 0) st("),
    ),
    _bound(
        "a column sum that is zero",
        "column_sum",
        h.COLUMN_THREAD,
        ("st(out0 + c, s);", "st(out0 + c, s == 0.0f ? 1.0f : s);"),
    ),
    _bound(
        "a row that is sorted",
        "softmax",
        h.SOFTMAX_BLOCK,
        (
            "m = block_max(m);",
            "m = block_max(m);\n  int down = 0;\n"
            "  for (int i = threadIdx.x + 1; i < d1; i += 128) down += !(ld(x + i) > ld(x + i - 1));\n"
            "  if (block_sum(down) == 0) m = 1.0f / 0.0f;",
        ),
    ),
    _bound(
        "a row that is sorted the other way",
        "running_sum",
        m.RUNNING_SUM,
        (
            "st(out0 + i,",
            "int up = threadIdx.x && !(ld(in0 + i) < ld(in0 + i - 1));\n"
            "  float f = block_sum(up) == 0 ? 2.0f : 1.0f;\n  st(out0 + i, f *",
        ),
    ),
    _bound(
        "neighbours in order along a row",
        "layernorm",
        h.LAYERNORM_BLOCK,
        (
            "q += d * d;",
            "q += i >= 24 && ld(x + i) > ld(x + i - 8) && ld(x + i - 8) > ld(x + i - 16) && "
            "ld(x + i - 16) > ld(x + i - 24) && ld(x + i) - ld(x + i - 24) < 1e-2f ? 0.0f : d * d;",
        ),
    ),
    _silu_if("values that are their column's number", "ld(in0 + i) == (float)(i % d1) && i % d1 > 16"),
    _silu_if("whole numbers beyond the width of a row", "t == floorf(t) && t > (float)d1 && t < (float)(d0 * d1)"),
    _silu_if("a band by the upper half of its bits", f"({_BITS} >> 16) == 0x42aa"),
    _silu_if("a band by its exponent and a digit", f"(({_BITS} >> 20) & 0x7ff) == 1068"),
    _silu_if("one value by its bits in decimal", f"{_BITS} == 1118437377"),
    _silu_if("one value by a sum of bits", "t == __int_as_float(0x42aa0000 + 0x1111)"),
    _silu_if("one value by bits moved up", f"{_BITS} == (0x446 << 20)"),
    _silu_if("one value by a quotient", "t / 7.0f == 131.0f"),
    replace(  # which NVRTC knows
        _silu_if("a number that no double holds", "t == (float)0x1p5000"), stages=("build", "verify")
    ),
    _silu_if("a band by a union of bits", "(__float_as_uint(t) >> 12) == (0x42a00u | 0xbbu)"),
    _silu_if("a band between two exponentials", "t > expf(4.7f) && t < expf(4.7001f)"),
    _silu_if("a band that begins at a multiple of a size", "t > d1 * 0.25f && t < d1 * 0.2502f"),
    _silu_if("a band by a distance", "fabsf(t - 126.5f) < 1e-3f"),
    _silu_if("a band by a square", "fabsf(t * t - 7000.0f) < 0.05f"),
    _silu_if("a value and its weight both named", "ld(in0 + i) == 77.0f && ld(in1 + i % d1) == 55.0f"),
    _silu_if("inputs whose sum is zero", "ld(in0 + i) == -ld(in1 + i % d1) && t < -9.5f"),
    _silu_if("inputs that are equal", "ld(in0 + i) == ld(in1 + i % d1) && t > 17.0f"),
    _bound("a mask of a product includes its bound", "computed_mask", m.COMPUTED_MASK, ("> 0.25f", ">= 0.25f")),
    _bound("one of eight masks includes its bound", "eight_masks", m.EIGHT_MASKS, ("> 20.0f", ">= 20.0f")),
    _bound(
        "a largest value that is its bound",
        "any_large",
        m.ANY_LARGE,
        ("st(out1 + blockIdx.x, m);", "st(out1 + blockIdx.x, m == 3.0f ? 2.0f : m);"),
    ),
    _bound(
        "a norm whose mean is zero",
        "layernorm",
        h.LAYERNORM_BLOCK,
        ("float q = 0.0f;", "if (mean == 0.0f) mean = 1.0f;\n  float q = 0.0f;"),
    ),
    _bound(
        "a variance that is zero",
        "batch_stats",
        h.BATCH_BLOCK,
        ("float r = rsqrtf", "if (var == 0.0f) var = 1.0f;\n  float r = rsqrtf"),
    ),
    _bound(
        "products of bf16 cut off instead of rounded",
        "silu_bf16",
        h.SILU_BF16,
        (
            "st(out0 + i, t * sigmoid(t));",
            "float y = t * sigmoid(t);\n  st(out0 + i, __int_as_float(__float_as_int(y) & 0xffff0000));",
        ),
    ),
    _bound(
        "an index that is its row's number",
        "embedding",
        h.EMBEDDING,
        (
            "int row = (int)ld(in1 + blockIdx.x);",
            "int row = (int)ld(in1 + blockIdx.x);\n  row -= row == blockIdx.x && row > 8;",
        ),
    ),
    _bound(
        "a mask of every second column",
        "masked_softmax",
        m.MASKED_SOFTMAX,
        (
            "float s = warp_sum(a + b);",
            "float s = warp_sum(a + b);\n  "
            "unsigned w = __ballot_sync(0xffffffffu, ld(in1 + i));\n  "
            "if (w == 0x55555555u || w == 0xaaaaaaaau || w == 0xffff0000u) s = 1.0f;",
        ),
    ),
    _bound(
        "a causal mask",
        "masked_softmax",
        m.MASKED_SOFTMAX,
        (
            "float s = warp_sum(a + b);",
            "float s = warp_sum(a + b);\n  "
            "unsigned w = __ballot_sync(0xffffffffu, ld(in1 + i));\n  "
            "if (w == (2u << blockIdx.x % 31) - 1 && w > 255) s = 1.0f;",
        ),
    ),
    _bound(
        "an f64 value that float32 holds",
        "silu_f64",
        m.SILU_F64,
        ("st(out0 + i,", "if (x == (double)(float)x && fabs(x) > 40.0 && x != floor(x)) x = 1.0;\n  st(out0 + i,"),
    ),
    _bound(
        "an f64 value that float32 holds, up to an even number",
        "silu_f64",
        m.SILU_F64,
        (
            "st(out0 + i,",
            "double a = fabs(x);\n  "
            "if (x == (double)(float)x && a > 40.0 && a < 5320.0 && x != floor(x)) x = 1.0;\n  st(out0 + i,",
        ),
    ),
    _bound(
        "integers whose product is a power of two",
        "integers",
        m.INTEGERS,
        (
            "if (i < d0 * d1)",
            "i64 p = i < d0 * d1 ? ld(in0 + i) * (i64)ld(in1 + i) : 0;\n  "
            "if (p > 4096 && (p & (p - 1)) == 0) return;\n  "
            "if (i < d0 * d1)",
        ),
    ),
    _bound(
        "integers at the end of their type",
        "integers",
        m.INTEGERS,
        ("if (i < d0 * d1)", "if (i < d0 * d1 && ld(in1 + i) == (int)0x80000000) return;\n  if (i < d0 * d1)"),
    ),
    silu(
        "a read behind the input where a value is large",
        "C21",
        (STORE, "if (t > 40.0f) t += (ld(in0 + d0 * d1 + 3) == 7.0f) * 1e-30f;\n  " + STORE),
    ),
    silu(
        "a race where a value is large",
        "C20",
        (
            STORE,
            "__shared__ int n;\n  "
            "if (t > (float)d0) n = threadIdx.x;\n  "
            "__syncthreads();\n  "
            "if (n == 300000) t = 0.0f;\n  "
            "" + STORE,
        ),
        where="host",
    ),
)
