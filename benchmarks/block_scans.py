"""Kernels over running sums: one block a row, and many blocks that look back."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block, fill, make_work

CARRY = """
// launch: k<<<d0, 512>>>(in0, out0)
__global__ void __launch_bounds__(512) k(const f32* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  float q[2][4], carry = 0.0f;
  for (int b = 0; b < d1; b += 2 * 512 * 4) {
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      const int c = min(b + (k * 512 + (int)threadIdx.x) * 4, d1 - 4);
      vload<4>(in0 + blockIdx.x * d1 + c, q[k]);
    }
    block_scan_sum(q, carry);
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      const int c = b + (k * 512 + threadIdx.x) * 4;
      if (c < d1) vstore<4>(out0 + blockIdx.x * d1 + c, q[k]);
    }
  }
}
"""
LOOK_BACK = """
// scratch: s0 f32[d0, 64]
// scratch: s1 i32[d0] = 0
// launch: k<<<d0 * 64, 512>>>(in0, out0, s0, s1)
__global__ void __launch_bounds__(512) k(const f32* __restrict__ in0, f32* __restrict__ out0, f32* __restrict__ s0,
                                         i32* __restrict__ s1 DIMS) {
  constexpr int C = cdiv(d1, 64 * 512 * 4);
  const int g = blockIdx.x / 64, part = blockIdx.x % 64, b = part * C * 512 * 4;
  float q[C][4], carry = 0.0f;
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = b + (k * 512 + threadIdx.x) * 4;
    if (c < d1) vload<4>(in0 + g * d1 + c, q[k]);
    else for (int j = 0; j < 4; j++) q[k][j] = 0.0f;
  }
  block_scan_sum(q, carry);
  carry = block_before_sum(s0 + g * 64, s1 + g, part, 64, carry);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = b + (k * 512 + threadIdx.x) * 4;
    if (c >= d1) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) q[k][j] += carry;
    vstore<4>(out0 + g * d1 + c, q[k]);
  }
}
"""


def scans(small: bool) -> Iterator[Block]:
    lines = ("in0 f32[d0,d1]", "t0 f32[d0,d1] = cumsum(in0) along d1", "out0 f32[d0,d1] = t0")
    for name, text, sizes in (
        ("block_scan_sum", CARRY, {"d0": 2, "d1": 5000} if small else {"d0": 1056, "d1": 65536}),
        ("block_before_sum", LOOK_BACK, {"d0": 1, "d1": 20000} if small else {"d0": 64, "d1": 1 << 20}),
    ):
        yield Block(name, "f32", make_work("running sums", sizes, *lines), fill(text))
