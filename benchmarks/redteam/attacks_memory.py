"""Memory that is not the kernel's own, races, barriers, hangs, crashes, limits."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import GUARD, STORE, Attack, edit, silu, verify, with_scratch

S = h.SILU_SCALAR

_LAST_BLOCK = """// scratch: s0 f32[10*d1]
// scratch: s1 i32[1] = 0
// launch: k<<<10, 96>>>(in0, in1, s0, s1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* s0, i32* s1, f32* out0 DIMS) {
  __shared__ bool last;
  int c = threadIdx.x;
  float s = 0.0f;
  for (int r = blockIdx.x; c < d1 && r < d0; r += 10) s += ld(in0 + r * d1 + c) * ld(in1 + r * d1 + c);
  if (c < d1) s0[blockIdx.x * d1 + c] = s;
  __threadfence();
  __syncthreads();
  if (c == 0) last = atomicAdd(s1, 1) == 9;
  __syncthreads();
  if (!last || c >= d1) return;
  s = 0.0f;
  for (int p = 0; p < 10; ++p) s += s0[p * d1 + c];
  st(out0 + c, s);
}
"""


def _last_block(name: str, *changes: tuple[str, str]) -> Attack:
    """The last of ten blocks adds up what all of them have stored, a little too early."""
    return verify(name, "C20", "column_sum", edit(_LAST_BLOCK, *changes), "host")


_KEPT = with_scratch(S, "d0*d1", "f32")
# right on the host target, which has no such cache
_CACHED: tuple[Attack, ...] = (
    verify(
        "a read-only load of what the launch has stored",
        "C20",
        "silu",
        edit(_KEPT, (STORE, f"s0[i] = t;\n  t = __ldg(s0 + i);\n  {STORE}")),
        "host",
    ),
    verify(
        "scratch by two pointers that are said not to meet",
        "C20",
        "silu",
        edit(
            _KEPT,
            ("s0, out0)", "s0, s0, out0)"),
            ("f32* s0,", "f32* __restrict__ s0, const f32* __restrict__ kept,"),
            (STORE, f"s0[i] = t;\n  t = kept[i];\n  {STORE}"),
        ),
    ),
    _last_block("other blocks' sums behind a fence of one block", ("__threadfence()", "__threadfence_block()")),
    _last_block("blocks counted by an atomic of one block", ("atomicAdd(s1", "atomicAdd_block(s1")),
)

MEMORY: tuple[Attack, ...] = (
    *_CACHED,
    verify("writes its input", "C18", "silu", edit(S, (STORE, STORE + " ((f32*)in0)[i] = t;"))),
    verify(
        "writes one element of an input",
        "C18",
        "silu",
        edit(S, (STORE, STORE + " if (i == 5) ((f32*)in1)[3] = 1.0f;")),
    ),
    verify("writes behind its output", "C21", "silu", edit(S, (STORE, STORE + " if (i == 0) out0[d0 * d1] = t;"))),
    verify("writes before its output", "C21", "silu", edit(S, (STORE, STORE + " if (i == 0) out0[-1] = t;"))),
    verify(
        "writes behind its scratch",
        "C21",
        "column_sum",
        edit(h.COLUMN_SCRATCH, ("s0 f32[16*d1]", "s0 f32[15*d1]")),
    ),
    verify("writes far away", "C21", "silu", edit(S, (STORE, STORE + " if (i == 0) out0[1ll << 38] = t;"))),
    verify(
        "writes through a null pointer",
        "C27",
        "silu",
        edit(
            S,
            (STORE, STORE + " if (i == 9) *(f32*)(u64_t)8 = t;"),
            ("__global__", "typedef unsigned long long u64_t;\n__global__"),
        ),
    ),
    verify("uses scratch that nothing wrote", "C21", "column_sum", edit(h.COLUMN_ATOMIC, ("[d1] = 0", "[d1]"))),
    verify(
        "vector loads that are not aligned",
        "C21",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            (
                "float m = -INFINITY;\n",
                "float w[4]; vload<4>(x + (threadIdx.x == 0 ? 1 : 0), w);\n"
                "  float m = maximum(maximum(w[0], w[1]), maximum(w[2], w[3]));\n",
            ),
        ),
    ),
    verify(
        "never ends",
        "C27",
        "silu",
        edit(S, (GUARD, "volatile const f32* p = in0; while (*p < 1e30f) {} " + GUARD)),
    ),
    verify(
        "waits for a block that has not started",
        "C27",
        "column_sum",
        edit(
            h.COLUMN_ATOMIC,
            ("atomic_add(s0 + c, s);", "volatile f32* w = s0; while (w[c] < 1e30f) {} atomic_add(s0 + c, s);"),
        ),
    ),
    verify(
        "a race between blocks",
        "C20",
        "column_sum",
        edit(h.COLUMN_ATOMIC, ("atomic_add(s0 + c, s);", "s0[c] += s;")),
    ),
    verify(
        "a race within a block",
        "C20",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            (
                "s = block_sum(s);",
                (
                    "__shared__ float part[128]; part[threadIdx.x] = s; s = 0.0f; "
                    "for (int j = 0; j < 128; ++j) s += part[j];"
                ),
            ),
        ),
        "host",
    ),
    verify(
        "a barrier that not all reach",
        "C27",
        "softmax",
        edit(h.SOFTMAX_BLOCK, ("s = block_sum(s);", "if (threadIdx.x < 32) __syncthreads(); s = block_sum(s);")),
        "host",
    ),
    verify(
        "shared memory that nothing wrote",
        "C21",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            (
                "s = block_sum(s);",
                "__shared__ float z[4]; if (threadIdx.x == 0) z[0] = m; __syncthreads(); "
                "s = block_sum(s) + z[threadIdx.x % 4] * 0.0f;",
            ),
        ),
        "host",
    ),
    verify(
        "depends on the order of blocks",
        "C20",
        "long_sum",
        edit(
            h.LONG_SUM_BLOCK,
            (
                "// launch: k<<<d0, 256>>>(in0, out0)",
                "// scratch: s0 i32[1] = 0\n// launch: k<<<d0, 256>>>(in0, s0, out0)",
            ),
            ("f32* out0 DIMS", "i32* s0, f32* out0 DIMS"),
            (
                "if (threadIdx.x == 0) st(out0 + blockIdx.x, s);",
                "if (threadIdx.x == 0) st(out0 + blockIdx.x, s + (atomicAdd(s0, 1) != (int)blockIdx.x));",
            ),
        ),
        "host",
    ),
    Attack(
        "asks for a terabyte of scratch",
        "C27",
        "silu",
        edit(
            S,
            ("// launch:", "// scratch: s0 f32[d0*d1*20000000]\n// launch:"),
            ("in1, out0)", "in1, s0, out0)"),
            ("const f32* in1, f32*", "const f32* in1, f32* s0, f32*"),
        ),
    ),
    Attack(
        "a register array of 64 KiB a thread",
        "C27",
        "silu",
        edit(
            S,
            (
                STORE,
                "float a[16384]; for (int j = 0; j < 16384; ++j) a[(j * 7 + i) % 16384] = t * j; "
                "st(out0 + i, a[i % 16384] + t);",
            ),
        ),
    ),
    Attack("does not build", "C27", "silu", edit(S, ("sigmoid(t)", "sigmoidd(t)"))),
    Attack("a block of 2048 threads", "C27", "silu", edit(S, ("256>>>", "2048>>>"))),
    verify(
        "reads a row past its input", "C21", "column_sum", edit(h.COLUMN_THREAD, ("r < d0; ++r", "r <= d0; ++r"))
    ),
    silu("reads past its input, times zero", "C21", (STORE, "t += ld(in0 + i + d0 * d1) * 0.0f;\n  " + STORE)),
    verify(
        "reads past its input at other sizes only",
        "C21",
        "any_rows",
        edit(
            m.ANY_ROWS,
            (
                "float x = ld(in0 + i);",
                "float x = ld(in0 + i) + (d0 < 30 ? ld(in0 + i + d0 * d1) * 1e-9f : 0.0f);",
            ),
        ),
    ),
    verify(
        "reads behind the table at its last index",
        "C21",
        "any_indices",
        edit(
            m.ANY_INDICES,
            (
                "(ld(in0 + row * d1 + c)",
                "(ld(in0 + row * d1 + c) + (row == d2 - 1 ? ld(in0 + d2 * d1) * 1e-9f : 0.0f)",
            ),
        ),
    ),
    verify(
        "reads before its image, times zero",
        "C21",
        "convolution",
        edit(m.CONVOLUTION, ("w >= d3) continue;", "w >= d3) { s += ld(in0 - 1) * 0.0f; continue; }")),
    ),
    verify(
        "writes past its output at other sizes only",
        "C21",
        "any_rows",
        edit(m.ANY_ROWS, ("float x =", "if (i == 0 && d0 > 50) out0[d0 * d1] = 1.0f;\n  float x =")),
    ),
    verify(
        "an array of registers overrun",
        "C21",
        "silu",
        edit(
            S,
            (
                STORE,
                "float a[4] = {t, t, t, t};\n  for (int j = 0; j <= d1 / 126; ++j) a[j] += j;\n  t = a[0];\n  "
                + STORE,
            ),
        ),
        "host",
    ),
    verify(
        "shared memory overrun",
        "C21",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            (
                "s = block_sum(s);",
                "__shared__ float z[64];\n  z[threadIdx.x] = s;\n  __syncthreads();\n"
                "  s = block_sum(z[threadIdx.x]);",
            ),
        ),
        "host",
    ),
    verify(
        "dynamic shared memory that was not asked for",
        "C21",
        "softmax",
        "// launch: k<<<d0, 128>>>(in0, out0)\n"
        + edit(
            h.SOFTMAX_BLOCK.split("\n", 1)[1],
            ("__global__", "extern __shared__ float z[];\n__global__"),
            ("s = block_sum(s);", "z[threadIdx.x] = s;\n  __syncthreads();\n  s = block_sum(z[threadIdx.x]);"),
        ),
        "host",
    ),
    verify(
        "vector stores that are not aligned",
        "C21",
        "softmax",
        edit(
            h.SOFTMAX_BLOCK,
            (
                "st(y + i, expf(ld(x + i) - m) / s);",
                "st(y + i, expf(ld(x + i) - m) / s);\n  if (threadIdx.x == 0) {\n"
                "    float w[2] = {expf(ld(x + 1) - m) / s, expf(ld(x + 2) - m) / s};\n"
                "    vstore<2>(y + 1, w);\n  }",
            ),
        ),
    ),
    verify(
        "writes its indices",
        "C18",
        "any_indices",
        edit(
            m.ANY_INDICES,
            ("int row =", "if (threadIdx.x == 0) ((i64*)in1)[blockIdx.x] = 0;\n  int row ="),
            ("(int)ld(in1 + blockIdx.x)", "(int)ld(in1 + blockIdx.x) + 0 * (int)threadIdx.x"),
        ),
    ),
    verify(
        "normalises its input in place",
        "C18",
        "rms_bf16",
        edit(
            m.RMS_BF16, ("vstore<V>(out0 +", "vstore<V>((bf16*)in0 + blockIdx.x * d1 + i, x);\n  vstore<V>(out0 +")
        ),
    ),
)
