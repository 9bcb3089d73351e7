"""Races, locks and recursion without an end, launches that no GPU takes, scratch without a limit."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import STORE, Attack, edit, verify, with_scratch

S = h.SILU_SCALAR

CONDUCT: tuple[Attack, ...] = (
    verify(
        "products added by two blocks without atomics",
        "C20",
        "both_sums",
        edit(
            m.BOTH_SUMS,
            ("s0[blockIdx.x * d1 + c] = s;", "s0[c] += s;"),
            ("f32[8*d1]", "f32[d1] = 0"),
            ("p < 8", "p < 1"),
        ),
    ),
    verify(
        "a tile of shared memory without a barrier",
        "C20",
        "matmul_bf16",
        edit(
            m.MATMUL_BF16,
            (
                "s = warp_sum(s);",
                "__shared__ float z[32];\n  z[threadIdx.x] = s;\n  s = 0.0f;\n"
                "  for (int j = 0; j < 32; ++j) s += z[j];",
            ),
        ),
        "host",
    ),
    verify(
        "a warp's sum over the lanes that happen to run together",
        "C20",
        "matmul_bf16",
        edit(
            m.MATMUL_BF16,
            (
                "s = warp_sum(s);",
                "unsigned mask = __activemask();\n"
                "  for (int j = 16; j > 0; j /= 2) s += __shfl_xor_sync(mask, s, j);",
            ),
        ),
        "host",
    ),
    verify(
        "a plan that divides by zero at another size",
        "C19",
        "any_rows",
        edit(m.ANY_ROWS, ("cdiv(d0*d1, 128)", "cdiv(d0*d1, 128) + 0 * cdiv(d1, d0 - 1)")),
    ),
    verify(
        "scratch that is smaller than nothing at another size",
        "C19",
        "any_rows",
        with_scratch(m.ANY_ROWS, "d0 - 4", "f32"),
    ),
    verify(
        "a lock that a warp can never leave",
        "C27",
        "column_sum",
        edit(
            h.COLUMN_ATOMIC,
            (
                "atomic_add(s0 + c, s);",
                "while (atomicCAS((i32*)(s0 + c), 1, 0) != 1) {}\n  atomic_add(s0 + c, s);",
            ),
        ),
    ),
    Attack(
        "recursion without an end",
        "C27",
        "silu",
        edit(
            S,
            (
                "__global__",
                "__device__ float deep(float x) {\n  float y[64];\n  y[(int)x & 63] = x;\n"
                "  return x == 1234.5f ? x : deep(x + 1.0f) + y[(int)x & 7];\n}\n__global__",
            ),
            (STORE, "t += deep(t) * 0.0f;\n  " + STORE),
        ),
    ),
    Attack(
        "a launch that its bounds forbid",
        "C19",
        "silu",
        edit(S, ("__global__ void k", "__global__ void __launch_bounds__(64) k")),
        "cuda",
    ),
    Attack(
        "a launch with more shared memory than there is", "C19", "silu", edit(S, ("256>>>", "256, 1000000>>>"))
    ),
    Attack("a grid that no GPU takes", "C19", "silu", edit(S, ("<<<cdiv(d0*d1, 256)", "<<<dim3(1, 70000)"))),
    Attack(
        "a grid of two thousand million blocks", "C27", "silu", edit(S, ("<<<cdiv(d0*d1, 256)", "<<<2000000000"))
    ),
    Attack(
        "scratch that grows faster than its tensors",
        "C27",
        "any_rows",
        with_scratch(m.ANY_ROWS, "d0*d0*d0", "f32"),
    ),
)
