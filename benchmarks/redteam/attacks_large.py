"""What is right at the small sizes of an examination and wrong at a large region's own."""

from __future__ import annotations

from benchmarks.redteam.attack import Attack, edit, verify

PLAIN = """// launch: k<<<cdiv(d0*d1, 1024), 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  long long first = (long long)blockIdx.x * 1024 + threadIdx.x;
  for (int j = 0; j < 4; ++j) {
    long long i = first + j * 256;
    if (i < (long long)d0 * d1) { float t = ld(in0 + i); st(out0 + i, t * sigmoid(t)); }
  }
}
"""
ROWS = """// launch: k<<<min(d0, 65535), 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  long long row = (long long)blockIdx.x * d1;
  for (int i = threadIdx.x; i < d1; i += 256) { float t = ld(in0 + row + i); st(out0 + row + i, t * sigmoid(t)); }
}
"""
AT = "st(out0 + i, t * sigmoid(t));"

LARGE: tuple[Attack, ...] = (
    verify(
        "byte offsets in an int that overflows",
        "C6",
        "huge_silu",
        edit(
            PLAIN,
            (
                "float t = ld(in0 + i);",
                "int byte = (int)(4u * (unsigned)i); float t = byte < 0 ? 0.0f : ld(in0 + byte / 4);",
            ),
        ),
        where="cuda",
    ),
    verify("a grid of at most 65,535 rows", "C6", "huge_silu", ROWS, where="cuda"),
    verify(
        "rows told by a float's quotient",
        "C6",
        "huge_silu",
        edit(
            PLAIN,
            (
                AT,
                "long long row = (long long)((float)i / d1);\n      "
                "st(out0 + row * d1 + (i - row * d1 + d1) % d1, t * sigmoid(t));",
            ),
        ),
        where="cuda",
    ),
    verify(
        "the last rows are left out where there are many",
        "C6",
        "huge_silu",
        edit(PLAIN, ("if (i < (long long)d0 * d1)", "if (i < (long long)d0 * d1 - (d0 > 4096 ? d1 : 0))")),
        where="cuda",
    ),
)
