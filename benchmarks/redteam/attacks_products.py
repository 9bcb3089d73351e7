"""Work left undone in products, scans, masks, several outputs, and at sizes other than the example's."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import Attack, edit, verify

PRODUCTS: tuple[Attack, ...] = (
    verify("product without its last term", "C6", "matmul", edit(m.MATMUL, ("j < d1;", "j < d1 - 1;"))),
    verify(
        "product of every second term, doubled",
        "C6",
        "matmul",
        edit(m.MATMUL, ("++j)", "j += 2)"), ("relu(s +", "relu(2.0f * s +")),
    ),
    verify("product of the first tile", "C6", "matmul_bf16", edit(m.MATMUL_BF16, ("j < d1;", "j < 32;"))),
    verify("bias taken for zeros", "C5", "matmul", edit(m.MATMUL, (" + ld(in2 + c)", ""))),
    verify("negative results kept", "C5", "matmul", edit(m.MATMUL, ("relu(s + ld(in2 + c))", "s + ld(in2 + c)"))),
    verify("result transposed", "C8", "matmul", edit(m.MATMUL, ("out0 + r * d2 + c", "out0 + c * d0 + r"))),
    verify(
        "bf16 result in the bits of f16",
        "C8",
        "matmul_bf16",
        edit(m.MATMUL_BF16, ("st(out0 + r * d2 + c, s)", "st((f16*)out0 + r * d2 + c, s)")),
    ),
    verify(
        "rows of a product computed once for two",
        "C6",
        "matmul",
        edit(m.MATMUL, ("in0 + r * d1 + j", "in0 + (r & ~1) * d1 + j")),
    ),
    verify(
        "border of a convolution repeated",
        "C6",
        "convolution",
        edit(
            m.CONVOLUTION,
            (
                "if (h < 0 || h >= d2 || w < 0 || w >= d3) continue;",
                "h = min(max(h, 0), d2 - 1); w = min(max(w, 0), d3 - 1);",
            ),
        ),
    ),
    verify(
        "weights of a convolution turned round",
        "C5",
        "convolution",
        edit(m.CONVOLUTION, ("* k0 + a) * k1 + b)", "* k0 + 2 - a) * k1 + 2 - b)")),
    ),
    verify("one channel of a convolution", "C6", "convolution", edit(m.CONVOLUTION, ("c < d1", "c < 1"))),
    verify(
        "running sum that starts anew in each warp",
        "C6",
        "running_sum",
        edit(m.RUNNING_SUM, ("block_scan_sum(", "warp_scan_sum(")),
    ),
    verify(
        "running sum without its own term",
        "C6",
        "running_sum",
        edit(m.RUNNING_SUM, ("block_scan_sum(ld(in0 + i))", "(block_scan_sum(ld(in0 + i)) - ld(in0 + i))")),
    ),
    verify(
        "one output in four written",
        "C1",
        "both_sums",
        edit(m.BOTH_SUMS, ("if (c == 0) st(out1", "if (c == 0 && r % 4 == 0) st(out1")),
    ),
    verify("a part of the column sums left out", "C6", "both_sums", edit(m.BOTH_SUMS, ("p < 8", "p < 7"))),
    verify(
        "an output copied from another",
        "C4",
        "both_sums",
        edit(m.BOTH_SUMS, ("st(out0 + r * d1 + c, t);", "st(out0 + r * d1 + c, ld(in0 + r * d1 + c));")),
    ),
    verify("mask ignored", "C5", "masked_softmax", edit(m.MASKED_SOFTMAX, ("ld(in1 + j)", "true"))),
    verify(
        "half of the columns of an embedding", "C6", "any_indices", edit(m.ANY_INDICES, ("c < d1)", "c < 32)"))
    ),
    verify(
        "a constant of type i8", "C4", "quantise", edit(m.QUANTISE, ("round_even(ld(in0 + i) * 8.0f)", "0.0f"))
    ),
    verify("a mask that is always false", "C4", "computed_mask", edit(m.COMPUTED_MASK, ("> 0.25f", "> 1e30f"))),
    verify(
        "the upper half of i64 left unwritten",
        "C8",
        "argmax",
        edit(h.ARGMAX, ("st(out0 + blockIdx.x, (long long)at)", "((i32*)out0)[2 * blockIdx.x] = at")),
    ),
    verify(
        "another axis of the same tensor summed", "C5", "both_sums", edit(m.BOTH_SUMS, ("s += t;", "s += c * t;"))
    ),
    verify(
        "statistics of the first image",
        "C22",
        "batch_stats",
        edit(h.BATCH_BLOCK, ("constexpr int N = d0 * P;", "constexpr int N = P;")),
    ),
    verify(
        "norm of a sample of the row",
        "C6",
        "rms_bf16",
        edit(m.RMS_BF16, ("j < V; ++j) s +=", "j < V; j += 2) s += 2.0f *")),
    ),
    verify("norm without its weights, bf16", "C5", "rms_bf16", edit(m.RMS_BF16, (" * w[j];", ";"))),
    # sizes
    verify(
        "a grid for the example's rows",
        "C12",
        "any_rows",
        edit(m.ANY_ROWS, ("<<<cdiv(d0*d1, 128)", "<<<20")),
    ),
    verify(
        "a grid for the example's indices",
        "C12",
        "any_indices",
        edit(m.ANY_INDICES, ("<<<d0, 64>>>", "<<<60, 64>>>")),
    ),
    verify("a bound at the example's rows", "C12", "any_rows", edit(m.ANY_ROWS, ("i >= d0 * d1", "i >= 40 * d1"))),
    verify(
        "one row forgotten where it is alone",
        "C12",
        "any_rows",
        edit(m.ANY_ROWS, ("expf(x) * x + 1.0f", "d0 == 1 ? 1.0f : expf(x) * x + 1.0f")),
    ),
    verify(
        "rows over 64 take the result of others",
        "C12",
        "any_rows",
        edit(m.ANY_ROWS, ("float x = ld(in0 + i);", "float x = ld(in0 + i % (64 * d1));")),
    ),
)
