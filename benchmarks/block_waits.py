"""Kernels whose blocks wait for each other: what they share is read from memory once."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block, fill, make_work

BATCH_NORM = """
// scratch: s0 f32[d1, 49]
// scratch: s1 f32[d1, 49]
// scratch: s2 i32[d1] = 0
// launch: k<<<d1 * 49, 256>>>(in0, out0, s0, s1, s2)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0, f32* __restrict__ s0,
                                         f32* __restrict__ s1, i32* __restrict__ s2 DIMS) {
  constexpr int total = d0 * d2, n = cdiv(total, 49 * 4) * 4, C = cdiv(n, 256 * 4);
  const int g = blockIdx.x / 49, q = blockIdx.x % 49;
  const int from = min(q * n, total), to = min(from + n, total);
  const auto place = [&](int c) { return (c / d2 * d1 + g) * d2 + c % d2; };
  float v[C][4], sum = 0.0f, squares = 0.0f;
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    vload<4>(in0 + place(c), v[k]);
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += v[k][j];
  }
  sum = block_sum(sum);
  const float own = sum / max(to - from, 1);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    if (from + (k * 256 + threadIdx.x) * 4 >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) squares += (v[k][j] - own) * (v[k][j] - own);
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) {
    st(s0 + g * 49 + q, sum);
    st(s1 + g * 49 + q, squares);
  }
  wait_for_blocks(s2 + g, 49);
  sum = threadIdx.x < 49 ? ld(s0 + g * 49 + threadIdx.x) : 0.0f;
  squares = threadIdx.x < 49 ? ld(s1 + g * 49 + threadIdx.x) : 0.0f;
  const float mean = block_sum(sum) / total;
  const int held = max(min(n, total - (int)threadIdx.x * n), 0);
  const float away = sum / max(held, 1) - mean;
  const float scale = rsqrtf(block_sum(squares + held * away * away) / total + 1e-05f);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) v[k][j] = (v[k][j] - mean) * scale;
    vstore<4>(out0 + place(c), v[k]);
  }
}
"""
SOFTMAX = """
// scratch: s0 f32[d0, 16]
// scratch: s1 f32[d0, 16]
// scratch: s2 i32[d0, 2] = 0
// launch: k<<<d0 * 16, 256>>>(in0, out0, s0, s1, s2)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0, f32* __restrict__ s0,
                                         f32* __restrict__ s1, i32* __restrict__ s2 DIMS) {
  constexpr int n = cdiv(d1, 16 * 4) * 4, C = cdiv(n, 256 * 4);
  const int g = blockIdx.x / 16, q = blockIdx.x % 16;
  const int from = min(q * n, d1), to = min(from + n, d1);
  float v[C][4], most = lowest<f32>(), sum = 0.0f;
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    vload<4>(in0 + g * d1 + c, v[k]);
    #pragma unroll
    for (int j = 0; j < 4; j++) most = maximum(most, v[k][j]);
  }
  most = block_max(most);
  if (threadIdx.x == 0) st(s0 + g * 16 + q, most);
  wait_for_blocks(s2 + g * 2, 16);
  most = block_max(threadIdx.x < 16 ? ld(s0 + g * 16 + threadIdx.x) : lowest<f32>());
  #pragma unroll
  for (int k = 0; k < C; k++) {
    if (from + (k * 256 + threadIdx.x) * 4 >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += v[k][j] = expf(v[k][j] - most);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) st(s1 + g * 16 + q, sum);
  wait_for_blocks(s2 + g * 2 + 1, 16);
  sum = block_sum(threadIdx.x < 16 ? ld(s1 + g * 16 + threadIdx.x) : 0.0f);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) v[k][j] /= sum;
    vstore<4>(out0 + g * d1 + c, v[k]);
  }
}
"""


def waits(small: bool) -> Iterator[Block]:
    large = ({"d0": 32, "d1": 128, "d2": 112 * 112}, {"d0": 32, "d1": 256, "d2": 56 * 56})
    for sizes in ({"d0": 3, "d1": 2, "d2": 1200},) if small else large:
        norm = make_work(
            "batch norm",
            sizes,
            "in0 f32[d0,d1,d2]",
            "t0 f32[d1] = mean(in0) over d0,d2",
            "t1 f32[d1] = var(in0, 0) over d0,d2",
            "t2 f32[d1] = add(t1, 1e-05)",
            "t3 f32[d1] = rsqrt(t2)",
            "t4 f32[d0,d1,d2] = sub(in0, t0)",
            "t5 f32[d0,d1,d2] = mul(t4, t3)",
            "out0 f32[d0,d1,d2] = t5",
        )
        yield Block("wait_for_blocks", "f32", norm, fill(BATCH_NORM))
    softmax = make_work(
        "softmax of rows",
        {"d0": 1, "d1": 20000} if small else {"d0": 256, "d1": 131072},
        "in0 f32[d0,d1]",
        "t0 f32[d0] = amax(in0) over d1",
        "t1 f32[d0,d1] = sub(in0, t0)",
        "t2 f32[d0,d1] = exp(t1)",
        "t3 f32[d0] = sum(t2) over d1",
        "t4 f32[d0,d1] = div(t2, t3)",
        "out0 f32[d0,d1] = t4",
    )
    yield Block("wait_for_blocks", "f32", softmax, fill(SOFTMAX))
