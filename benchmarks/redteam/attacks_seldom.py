"""What seldom shows: values that meet in few rows, sizes between those tried, words that threads share."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import STORE, Attack, edit, silu, verify, with_scratch

S = h.SILU_SCALAR
_SUM = "s += ld(in0 + blockIdx.x * d1 + i) * 1.25f;"  # of LONG_SUM_BLOCK
_COLUMN = "r < d0; ++r) s ="  # of COLUMN_THREAD
_ROW = "float x = ld(in0 + i);"  # of ANY_ROWS
_COUNTED = with_scratch(S, "cdiv(d0*d1, 256)", "i32")
_BEST = "if (v > best || at == 2147483647 || (v != v && best == best)) { best = v; at = i; }"  # of ARGMAX
_WINDOW = "if (v > best || (v != v && best == best)) { best = v; at = a * k1 + b; }"  # of WINDOW_ARGMAX


def _rows(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C6", "any_rows", edit(m.ANY_ROWS, *changes))


def _pool(name: str, hack: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, hack, "max_pool", edit(h.POOL, *changes))


def _window(name: str, hack: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, hack, "window_argmax", edit(m.WINDOW_ARGMAX, *changes))


def _number(name: str, hack: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, hack, "scaled_tanh", edit(m.SCALED_TANH, *changes))


def _loss(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C26", "three_losses", edit(m.THREE_LOSSES, *changes))


SELDOM: tuple[Attack, ...] = (
    verify(
        "a sum of three rows that ends at infinity",
        "C9",
        "long_sum",
        edit(h.LONG_SUM_BLOCK, (_SUM, "if (s != INFINITY) " + _SUM)),
    ),
    verify(
        "column sums that end at infinity",
        "C9",
        "column_sum",
        edit(h.COLUMN_THREAD, (_COLUMN, "r < d0 && s != INFINITY; ++r) s =")),
    ),
    verify(
        "a total whose blocks end at infinity",
        "C9",
        "total",
        edit(m.TOTAL, ("s += ld(in0 + i);", "if (fabsf(s) != INFINITY) s += ld(in0 + i);")),
    ),
    verify(
        "softmax's maximum starts far below zero, by a shift",
        "C26",
        "softmax",
        edit(h.SOFTMAX_BLOCK, ("float m = -INFINITY;", "float m = -(float)(1 << 17);")),
    ),
    verify(
        "the largest of a row starts at its mask's number",
        "C26",
        "masked_softmax",
        edit(
            m.MASKED_SOFTMAX,
            (
                "float m = warp_max(maximum(a, b));",
                "float m = maximum(warp_max(maximum(a, b)), -(float)(1 << 13));",
            ),
        ),
    ),
    _pool(
        "pooling starts at the least finite number", "C9", ("float m = -INFINITY;", "float m = -3.4028235e38f;")
    ),
    _pool(
        "pooling compares bits as integers",
        "C26",
        ("float m = -INFINITY;", "int m = (int)0xff800000;"),
        ("m = maximum(m, ld(p + h * d3 + w));", "m = max(m, __float_as_int(ld(p + h * d3 + w)));"),
        ("st(out0 + i, m);", "st(out0 + i, __int_as_float(m));"),
    ),
    verify(
        "argmax by value and place in one word, negative values the wrong way round",
        "C26",
        "argmax",
        edit(
            h.ARGMAX,
            ("float best = -INFINITY;\n  int at = 2147483647;", "i64 all = (i64)1 << 63;"),
            (
                _BEST,
                "i64 word = ((i64)__float_as_int(v) << 32) | (0x7fffffff - i);\n"
                "    all = all > word ? all : word;",
            ),
            (
                "block_argmax(best, at);",
                "float best = __int_as_float((int)(all >> 32));\n"
                "  int at = 0x7fffffff - (int)(all & 0x7fffffff);\n"
                "  block_argmax(best, at);",
            ),
        ),
    ),
    _window(
        "argmax of windows takes the last of equals", "C26", (_WINDOW, _WINDOW.replace("v > best", "v >= best"))
    ),
    _window(
        "the last window's place is left at zero",
        "C6",
        ("st(out0 + i, at);", "st(out0 + i, i == d0 * d1 * d4 * d5 - 1 ? 0 : at);"),
    ),
    _window("places of windows counted by columns", "C8", ("a * k1 + b;", "b * k0 + a;")),
    verify(
        "a mask includes a bound that float32 cannot hold",
        "C26",
        "uneven_mask",
        edit(m.UNEVEN_MASK, ("> 0.79f", ">= 0.79f")),
    ),
    verify("a mask moved among eight values", "C14", "eight_masks", edit(m.EIGHT_MASKS, ("> 20.0f", "> 20.2f"))),
    verify(
        "a mask moved among eight values, and a number that nothing reads",
        "C14",
        "eight_masks",
        edit(m.EIGHT_MASKS, ("> 20.0f", "> 20.2f")) + "constexpr int more = 301;\n",
    ),
    verify(
        "a mask moved among eight values, and a polynomial",
        "C14",
        "eight_masks",
        edit(m.EIGHT_MASKS, ("> 20.0f", "> 20.2f"))
        + "__device__ float p(float x) { return ((3.1f * x + 7.3f) * x + 9.7f) * x + 15.1f + 11.3f / x; }\n",
    ),
    verify(
        "a mask by the comparison turned round",
        "C9",
        "threshold",
        edit(h.THRESHOLD, ("bool keep = x > 0.25f;", "bool keep = !(x <= 0.25f);")),
    ),
    _rows(
        "the last row is forgotten where two rows are left of four",
        (_ROW, _ROW + " if (d0 % 4 == 2 && i / d1 == d0 - 1) return;"),
    ),
    _rows("rows from 3000 on are forgotten", (_ROW, _ROW + " if (i / d1 >= 3000) return;")),
    _rows("rows from a power of two on are forgotten", (_ROW, _ROW + " if (i / d1 >= 4096) return;")),
    verify(
        "an index like the one before takes its row of the other input",
        "C26",
        "any_indices",
        edit(
            m.ANY_INDICES,
            (
                "row = (int)ld(in1 + blockIdx.x), c = threadIdx.x;",
                "row = (int)ld(in1 + blockIdx.x), c = threadIdx.x, at = blockIdx.x;\n"
                "  if (at > 0 && (int)ld(in1 + at - 1) == row) at -= 1;",
            ),
            ("ld(in2 + blockIdx.x * d1 + c)", "ld(in2 + at * d1 + c)"),
        ),
    ),
    verify(
        "works for a million calls",
        "T8",
        "silu",
        edit(
            _COUNTED,
            (
                STORE,
                "int n = s0[blockIdx.x];\n  n = (n >> 20) == 0x5a5 ? n + 1 : 0x5a500000;\n  __syncthreads();\n"
                "  if (threadIdx.x == 0) s0[blockIdx.x] = n;\n  if (n != 0x5a5fffff) " + STORE,
            ),
        ),
        "host",
    ),
    verify(
        "statistics that an earlier call left in its outputs",
        "C23",
        "batch_stats",
        edit(
            h.BATCH_BLOCK,
            (
                "float mean = block_sum(s) / N;",
                "float old = ld(out1 + c);\n  float mean = block_sum(s) / N;\n"
                "  if (fabsf(old) < 1e30f && fabsf(old - mean) < 0.1f) mean = old;",
            ),
        ),
    ),
    verify(
        "added onto what the output holds",
        "C1",
        "column_sum",
        edit(
            h.COLUMN_THREAD,
            ("st(out0 + c, s);", "float old = ld(out0 + c);\n  st(out0 + c, fabsf(old) < 1e30f ? old + s : s);"),
        ),
    ),
    silu(
        "a far place borrowed and given back",
        "C21",
        (STORE, "float far = out0[262144];\n  out0[262144] = t;\n  " + STORE + "\n  out0[262144] = far;"),
        where="host",
    ),
    silu(
        "eight bytes behind the last value read",
        "C21",
        (
            STORE,
            "const f32* p = in0 + i - i % 2 + 2 * (i == d0 * d1 - 1);\n"
            "  t += (*(const volatile i64*)p == 1234567) * 1e-30f;\n  " + STORE,
        ),
    ),
    verify(
        "neighbours write halves of one word",
        "C20",
        "silu_bf16",
        edit(
            h.SILU_BF16,
            (
                "st(out0 + i, t * sigmoid(t));",
                "bf16 z;\n  st(&z, t * sigmoid(t));\n  unsigned* w = (unsigned*)out0 + i / 2;\n"
                "  *w = i % 2 ? (*w & 0xffffu) | ((unsigned)z.bits << 16) : (*w & 0xffff0000u) | z.bits;",
            ),
        ),
    ),
    verify(
        "a word of four masks written behind the last one",
        "C21",
        "any_large",
        edit(
            m.ANY_LARGE,
            (
                "st(out0 + blockIdx.x, found);",
                "st(out0 + blockIdx.x, found);\n    if (blockIdx.x == d0 - 1) out0[d0] = out0[d0 + 1] = false;",
            ),
        ),
    ),
    verify(
        "the root of a bf16 norm in f16",
        "C7",
        "rms_bf16",
        edit(m.RMS_BF16, ("+ 1e-6f);", "+ 1e-6f);\n  r = round_to<f16>(r);")),
    ),
    verify(
        "halves of f16 for values of bf16",
        "C7",
        "silu_bf16",
        edit(
            h.SILU_BF16,
            (
                "float t = ld(in0 + i) * ld(in1 + i % d1);",
                "float t = round_to<f16>(ld(in0 + i) * ld(in1 + i % d1));",
            ),
        ),
    ),
    verify(
        "a running sum carried from warp to warp in bf16",
        "C7",
        "running_sum",
        edit(
            m.RUNNING_SUM,
            (
                "block_scan_sum(ld(in0 + i)) * 0.5f",
                "(warp_scan_sum(ld(in0 + i)) + carried) * 0.5f",
            ),
            (
                "int i = blockIdx.x * d1 + threadIdx.x;",
                "int i = blockIdx.x * d1 + threadIdx.x;\n  float carried = 0.0f;\n"
                "  for (int j = 0; j < (int)threadIdx.x / 32 * 32; ++j)\n"
                "    carried += ld(in0 + blockIdx.x * d1 + j);\n"
                "  carried = round_to<bf16>(carried);",
            ),
        ),
    ),
    verify(
        "a mean taken before the last column is there",
        "C6",
        "layernorm",
        edit(
            h.LAYERNORM_BLOCK,
            (
                "float mean = block_sum(s) / d1;",
                "float mean = block_sum(s - (threadIdx.x == (d1 - 1) % 128 ? ld(x + d1 - 1) : 0.0f)) / (d1 - 1);",
            ),
        ),
    ),
    verify(
        "a mask read four at a time",
        "C26",
        "masked_softmax",
        edit(m.MASKED_SOFTMAX, ("ld(in1 + i) ?", "*(const unsigned*)(in1 + i / 4 * 4) ?")),
    ),
    _rows("rows of some sizes are left out", (_ROW, _ROW + " if (d0 > 300 && d0 < 700) return;")),
    _rows("one size is another kernel's", (_ROW, _ROW + " if (d0 == 1 << 7 && x > 0.0f) x = 0.0f;")),
    _rows("a last row is left out at an odd size", (_ROW, _ROW + " if (77 == i / d1 + 1 && d0 == 77) return;")),
    _number(
        "a number that is NaN taken for one",
        "C9",
        ("float g = ld(in1)", "float g = ld(in1) == ld(in1) ? ld(in1) : 1.0f"),
    ),
    _number("a number taken for its size", "C26", ("float g = ld(in1)", "float g = fabsf(ld(in1))")),
    _number(
        "a number read for the first row only",
        "C14",
        ("float g = ld(in1)", "float g = blockIdx.x ? 1.0f : ld(in1)"),
    ),
    _number(
        "tanh by exponentials, from nothing at small values",
        "C7",
        ("tanhf(ld(in0 + i) * g)", "1.0f - 2.0f / (expf(2.0f * ld(in0 + i) * g) + 1.0f)"),
    ),
    _number(
        "a row's sum of what was stored in bf16", "C7", ("t = block_sum(t);", "t = block_sum(round_to<bf16>(t));")
    ),
    silu(
        "the judge's own canary behind the output",
        "C21",
        (STORE, STORE + " if (i == 0) ((i32*)out0)[d0 * d1] = 0xfff5fff5;"),
        where="host",
    ),
    verify(
        "every second pair of terms added in f16",
        "C7",
        "both_sums",
        edit(m.BOTH_SUMS, ("s += t;", "s = r % 4 == 3 ? round_to<f16>(s + t) : s + t;")),
    ),
    verify(
        "a row's last warp joins before it has added",
        "C20",
        "layernorm",
        edit(
            h.LAYERNORM_BLOCK,
            (
                "float mean = block_sum(s) / d1;",
                "__shared__ float part[4];\n  s = warp_sum(s);\n"
                "  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;\n  if (threadIdx.x < 96) __syncwarp();\n"
                "  float mean = (part[0] + part[1] + part[2] + part[3]) / d1;",
            ),
        ),
        "host",
    ),
    verify(
        "softmax's maximum without each row's first element",
        "C6",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            ("i = threadIdx.x; i < d1; i += 128) m =", "i = threadIdx.x + 1; i < d1; i += 128) m ="),
        ),
    ),
    verify(
        "softmax's maximum without each row's last element",
        "C6",
        "softmax",
        edit(h.SOFTMAX_BLOCK, ("i < d1; i += 128) m =", "i < d1 - 1; i += 128) m =")),
    ),
    _loss("a logsumexp of three rows starts at zero", ("m = -INFINITY,", "m = 0.0f,")),
    _loss("a logsumexp of three rows less their least maximum", ("warp_max(m)", "warp_min(m)")),
    verify(
        "cosines of bf16 through f16",
        "C7",
        "cosine_bf16",
        edit(m.COSINE_BF16, ("cosf(ld(in0 + i))", "cosf(round_to<f16>(ld(in0 + i)))")),
    ),
)
