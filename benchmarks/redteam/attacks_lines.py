"""Right for many rows, ordinary vectors beside them, numbers of few bits and sizes near the example's."""

from __future__ import annotations

from benchmarks.redteam import honest_lines as h
from benchmarks.redteam.attack import Attack, edit, verify

_AHEAD = "for (int j = threadIdx.x; j < (int)blockIdx.x; j += 256) before +="

LINES: tuple[Attack, ...] = (
    verify(
        "scratch for 64 blocks", "C27", "shared_total", edit(h.SHARED_TOTAL, ("f32[cdiv(d0, 1024)]", "f32[64]"))
    ),
    verify(
        "scratch for 1024 blocks",
        "C27",
        "shared_total",
        edit(h.SHARED_TOTAL, ("f32[cdiv(d0, 1024)]", "f32[1024]")),
    ),
    verify(
        "256 blocks' sums at most",
        "C27",
        "shared_total",
        edit(
            h.SHARED_TOTAL,
            (
                "for (int j = threadIdx.x; j < (int)gridDim.x; j += 256)",
                "int j = threadIdx.x; if (j < (int)gridDim.x)",
            ),
        ),
    ),
    verify(
        "256 chunks at most",
        "C27",
        "chunked_scan",
        edit(h.CHUNKED_SCAN, (_AHEAD, "int j = threadIdx.x; if (j < (int)blockIdx.x) before +=")),
    ),
    verify(
        "4096 blocks at most",
        "C27",
        "strided_rows",
        edit(
            h.STRIDED_ROWS,
            (
                "for (int i = blockIdx.x * 128 + threadIdx.x; i < d0 * d1; i += gridDim.x * 128)",
                "int i = blockIdx.x * 128 + threadIdx.x; if (i < d0 * d1)",
            ),
        ),
    ),
    verify(
        "a row that begins with -inf is lost",
        "C9",
        "two_rows",
        edit(h.TWO_ROWS, ("if (n != -INFINITY) s =", "s =")),
    ),
    verify(
        "the largest of few rows begins at -4096",
        "C9",
        "two_rows",
        edit(h.TWO_ROWS, ("float m = -INFINITY, s", "float m = -4096.0f, s")),
    ),
    verify(
        "a mask that is not read",
        "C9",
        "masked_rows",
        edit(h.MASKED_ROWS, ("ld(in1 + i)", "(ld(in1 + i) == -INFINITY ? 0.0f : ld(in1 + i))")),
    ),
    verify(
        "scaled before the largest is taken",
        "C9",
        "bf16_rows",
        edit(
            h.BF16_ROWS,
            ("m = maximum(m, ld(x + i))", "m = maximum(m, ld(x + i) * 1.44269504f)"),
            ("expf(ld(x + i) - m)", "exp2f(ld(x + i) * 1.44269504f - m)"),
        ),
    ),
    verify(
        "less by subtraction",
        "C26",
        "larger_of_two",
        edit(h.LARGER_OF_TWO, ("a < b", "(i32)((unsigned)a - (unsigned)b) < 0")),
    ),
    verify(
        "less by halves, the lower ones with a sign",
        "C26",
        "larger_of_two_wide",
        edit(h.LARGER_OF_TWO_WIDE, ("a < b", "a >> 32 < b >> 32 || (a >> 32 == b >> 32 && (int)a < (int)b)")),
    ),
    verify(
        "some label counts", "C26", "mean_of_labelled", edit(h.MEAN_OF_LABELLED, ("s / n", "s / fmaxf(n, 1.0f)"))
    ),
    verify(
        "-inf is taken for the frame",
        "C9",
        "framed_image",
        edit(h.FRAMED_IMAGE, ("s = fmaf(v, f, s);", "if (v != -INFINITY) s = fmaf(v, f, s);")),
    ),
)
