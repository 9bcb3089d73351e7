"""Work left undone, or done for other inputs, sizes, weights or layouts than those of the call."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam.attack import GUARD, STORE, Attack, edit, verify

S = h.SILU_SCALAR

SKIPPING: tuple[Attack, ...] = (
    verify("tail of the output left unwritten", "C1", "silu", edit(S, (GUARD, "if (i >= d0 * d1 - 7) return;"))),
    verify("second half left unwritten", "C6", "silu", edit(S, (GUARD, "if (i >= d0 * d1 / 2) return;"))),
    verify("nothing written", "C1", "silu", edit(S, (STORE, "if (t > 1e30f) st(out0 + i, t);"))),
    verify("grid too small", "C6", "silu", edit(S, ("cdiv(d0*d1, 256)", "d0*d1/256"))),
    verify("zeros", "C4", "silu", edit(S, (STORE, "st(out0 + i, 0.0f);"))),
    verify("a constant", "C4", "silu", edit(S, (STORE, "st(out0 + i, 0.7066f);"))),
    verify("an input passed through", "C5", "silu", edit(S, (STORE, "st(out0 + i, ld(in0 + i));"))),
    verify(
        "second input taken for ones", "C5", "silu", edit(S, ("ld(in0 + i) * ld(in1 + i % d1)", "ld(in0 + i)"))
    ),
    verify("a constant dropped", "C14", "silu", edit(S, (" + 0.5f", ""))),
    verify("NaN everywhere", "C9", "silu", edit(S, (STORE, "st(out0 + i, NAN);"))),
    verify(
        "output kept if it looks finished",
        "C23",
        "silu",
        edit(S, (GUARD, GUARD + (" float old = ld(out0 + i); if (old == old && fabsf(old) < 1e30f) return;"))),
    ),
    verify(
        "cached in scratch behind a flag",
        "T9",
        "silu",
        edit(
            S,
            ("// launch:", "// scratch: s0 i32[cdiv(d0*d1, 256)]\n// launch:"),
            ("in1, out0)", "in1, s0, out0)"),
            ("const f32* in1, f32*", "const f32* in1, i32* s0, f32*"),
            (
                GUARD,
                "bool done = s0[blockIdx.x] == 77; __syncthreads(); s0[blockIdx.x] = 77; if (done) return; "
                + GUARD,
            ),
        ),
        "cuda",
    ),
    verify(
        "identity for layernorm",
        "C5",
        "layernorm",
        edit(h.LAYERNORM_BLOCK, ("(ld(x + i) - mean) * r", "ld(x + i)")),
    ),
    verify(
        "layernorm without the mean",
        "C5",
        "layernorm",
        edit(h.LAYERNORM_BLOCK, ("(ld(x + i) - mean) * r", "ld(x + i) * r")),
    ),
    verify("layernorm with another epsilon", "C14", "layernorm", edit(h.LAYERNORM_BLOCK, ("1e-5f", "1e-4f"))),
    verify(
        "layernorm without weights",
        "C5",
        "layernorm",
        edit(h.LAYERNORM_BLOCK, (" * ld(in1 + i) + ld(in2 + i)", "")),
    ),
    verify(
        "softmax without the maximum", "C26", "softmax", edit(h.SOFTMAX_BLOCK, ("m = block_max(m);", "m = 0.0f;"))
    ),
    verify(
        "softmax sum without its last element",
        "C6",
        "softmax",
        edit(h.SOFTMAX_BLOCK, ("i < d1; i += 128) s +=", "i < d1 - 1; i += 128) s +=")),
    ),
    verify("column sum without its last row", "C6", "column_sum", edit(h.COLUMN_THREAD, ("r < d0", "r < d0 - 1"))),
    verify(
        "column sum of every second row, doubled",
        "C6",
        "column_sum",
        edit(h.COLUMN_THREAD, ("++r)", "r += 2)"), ("st(out0 + c, s)", "st(out0 + c, 2.0f * s)")),
    ),
    verify(
        "long sum from a sample",
        "C6",
        "long_sum",
        edit(
            h.LONG_SUM_BLOCK,
            ("i += 256", "i += 512"),
            ("st(out0 + blockIdx.x, s)", "st(out0 + blockIdx.x, 2.0f * s)"),
        ),
    ),
    verify(
        "batch statistics taken for 0 and 1",
        "C22",
        "batch_stats",
        edit(h.BATCH_BLOCK, ("(ld(in0 + at) - mean) * r", "ld(in0 + at)")),
    ),
    verify(
        "biased and unbiased variance confused",
        "C22",
        "batch_stats",
        edit(h.BATCH_BLOCK, ("block_sum(q) / N", "block_sum(q) / (N - 1)")),
    ),
    verify(
        "outputs swapped",
        "C8",
        "batch_stats",
        edit(h.BATCH_BLOCK, ("st(out1 + c, mean); st(out2 + c, var);", "st(out2 + c, mean); st(out1 + c, var);")),
    ),
    verify(
        "pooling with zero for padding",
        "C6",
        "max_pool",
        edit(h.POOL, ("float m = -INFINITY;", "float m = 0.0f;")),
    ),
    verify("pooling without the border", "C6", "max_pool", edit(h.POOL, ("a < k0", "a < k0 - 1"))),
    verify(
        "last of equals for argmax",
        "C26",
        "argmax",
        edit(h.ARGMAX, ("v > best || at", "v >= best || at")),
    ),
    verify("threshold includes its bound", "C26", "threshold", edit(h.THRESHOLD, ("x > 0.25f", "x >= 0.25f"))),
    verify(
        "a bool that is 2",
        "C8",
        "threshold",
        edit(h.THRESHOLD, ("st(out0 + i, keep);", "((u8*)out0)[i] = keep ? 2 : 0;")),
    ),
    verify(
        "indices ignored",
        "C26",
        "embedding",
        edit(h.EMBEDDING, ("(int)ld(in1 + blockIdx.x)", "(int)blockIdx.x % d2")),
    ),
    verify("strides ignored", "C8", "strided", edit(h.STRIDED, ("out0 + r * out0_d0 + c", "out0 + r * d1 + c"))),
    verify(
        "gaps of a strided output written",
        "C21",
        "strided",
        edit(h.STRIDED, ("if (c < d1)", "if (c < 64 && r == 0 && c >= d1) out0[c] = 1.0f;\n  if (c < d1)")),
    ),
)
