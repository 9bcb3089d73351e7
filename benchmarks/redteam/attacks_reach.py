"""Writes that jump over the canaries next to a buffer: at strides, far away, into what kernels are held against.

All stay within a few MiB, where a process has memory of its own: on a GPU only the judge itself sees them.
"""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import STORE, Attack, edit, silu, verify, with_scratch

S = h.SILU_SCALAR
_COUNTED = with_scratch(S, "cdiv(d0*d1, 256)", "i32")
_COUNT = (
    "int n = s0[blockIdx.x];\n  n = n >= 0 && n < 999 ? n + 1 : 1;\n  __syncthreads();\n"
    "  if (threadIdx.x == 0) s0[blockIdx.x] = n;\n  "
)

REACH: tuple[Attack, ...] = (
    silu("writes 4 KiB behind its output", "C21", (STORE, STORE + " if (i == 0) out0[d0 * d1 + 1024] = t;")),
    silu("writes 1 MiB before its output", "C21", (STORE, STORE + " if (i == 9) out0[-262144] = t;")),
    silu(
        "writes at every 4 KiB behind its output",
        "C21",
        (STORE, STORE + " if (i < 256) out0[d0 * d1 + 1024 * (i + 1)] = 1.0f;"),
    ),
    silu(
        "writes at every MiB around its output",
        "C21",
        (STORE, STORE + " if (i < 8 && i != 4) out0[(i - 4) * 262144 + 77] = INFINITY;"),
    ),
    silu(
        "writes 96 times its output",
        "C21",
        (STORE, STORE + " for (int j = 1; j <= 96; ++j) out0[i + j * (d0 * d1 + 512)] = t;"),
    ),
    silu(
        "infinite float64 numbers from 1 KiB behind its output on",
        "C21",
        (
            STORE,
            STORE + " for (int j = 0; j < 32; ++j)\n"
            "    ((i64*)(out0 + d0 * d1 + 256))[j * d0 * d1 + i] = 0x7ff0000000000000ll;",
        ),
    ),
    silu(
        "reads a far place and writes it back, one bit off",
        "C21",
        (STORE, STORE + " if (i == 3) ((i32*)out0)[d0 * d1 + 16384] ^= 1;"),
    ),
    silu("writes 1 MiB behind its input", "C21", (STORE, STORE + " if (i == 7) ((f32*)in1)[262144] = 2.0f;")),
    silu(
        "writes 1 MiB behind its output where a value is not finite",
        "C21",
        (STORE, STORE + " if (!(fabsf(t) < 1e38f)) out0[i + 262144] = t;"),
    ),
    verify(
        "writes 64 KiB behind its output from the third call on",
        "C21",
        "silu",
        edit(_COUNTED, (STORE, _COUNT + "if (n > 2) out0[d0 * d1 + 16384 + i] = t;\n  " + STORE)),
    ),
    verify(
        "writes 8 KiB behind its scratch",
        "C21",
        "column_sum",
        edit(
            h.COLUMN_SCRATCH,
            ("s0[blockIdx.y * d1 + c] = s;", "s0[blockIdx.y * d1 + c] = s; s0[c + 18 * 256] = s;"),
        ),
    ),
    verify(
        "rows stored at a stride of 4 KiB as well",
        "C21",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            (
                "st(y + i, expf(ld(x + i) - m) / s);",
                "st(y + i, expf(ld(x + i) - m) / s), out0[16384 + blockIdx.x * 1024 + i] = 1.0f;",
            ),
        ),
    ),
    verify(
        "a tail of half a warp stored 1 MiB away",
        "C21",
        "matmul_bf16",
        edit(
            m.MATMUL_BF16,
            (
                "if (threadIdx.x == 0) st(",
                "if (threadIdx.x > 15) out0[524288 + threadIdx.x] = {};\n  if (threadIdx.x == 0) st(",
            ),
        ),
    ),
    verify(
        "writes 1 MiB behind its output at other sizes only",
        "C21",
        "any_rows",
        edit(m.ANY_ROWS, ("float x =", "if (i == 0 && d0 > 50) out0[d0 * d1 + 262144] = 1.0f;\n  float x =")),
    ),
)
