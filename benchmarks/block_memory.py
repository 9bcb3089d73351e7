"""Kernels over vectors, and over what a warp or a block makes of a row."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block, fill, make_work

COPY = """
// launch: k<<<cdiv(d0, 256 * $V), 256>>>(in0, out0)
__global__ void __launch_bounds__(256) k(const $T* __restrict__ in0, $T* __restrict__ out0 DIMS) {
  const int i = (blockIdx.x * 256 + threadIdx.x) * $V;
  if (i >= d0) return;
  float v[$V];
  vload<$V>(in0 + i, v);
  #pragma unroll
  for (int j = 0; j < $V; j++) v[j] = relu(v[j]);
  vstore<$V>(out0 + i, v);
}
"""


def vectors(small: bool) -> Iterator[Block]:
    for t, v in (("f32", 4), ("bf16", 8)):
        n = 4096 if small else 1 << 26
        work = make_work(f"relu {t}", {"d0": n}, f"in0 {t}[d0]", f"t0 {t}[d0] = relu(in0)", f"out0 {t}[d0] = t0")
        yield Block("vload_vstore", t, work, fill(COPY, T=t, V=v))


WARP_ROWS = """
// launch: k<<<cdiv(d0, 8), 256>>>(in0, out0)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  const int row = blockIdx.x * 8 + warp_id();
  if (row >= d0) return;
  float sum = 0.0f;
  #pragma unroll 4
  for (int c = lane_id() * 4; c < d1; c += 32 * 4) {
    float v[4];
    vload<4>(in0 + row * d1 + c, v);
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += v[j];
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) st(out0 + row, sum);
}
"""
BLOCK_ROWS = """
// launch: k<<<d0, 256>>>(in0, out0)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  float sum = 0.0f;
  #pragma unroll 4
  for (int c = threadIdx.x * 4; c < d1; c += 256 * 4) {
    float v[4];
    vload<4>(in0 + blockIdx.x * d1 + c, v);
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += v[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, sum);
}
"""
ONLINE = """
// launch: k<<<d0, 1024>>>(in0, out0)
__global__ void __launch_bounds__(1024) k(const f32* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  float most = lowest<f32>(), sum = 0.0f;
  #pragma unroll 4
  for (int c = threadIdx.x * 4; c < d1; c += 1024 * 4) {
    float v[4], next = most;
    vload<4>(in0 + blockIdx.x * d1 + c, v);
    #pragma unroll
    for (int j = 0; j < 4; j++) next = maximum(next, v[j]);
    const float at = finite_or_zero(next);
    sum *= expf(most - at);
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += expf(v[j] - at);
    most = next;
  }
  const float all = block_max(most), at = finite_or_zero(all);
  sum = block_sum(sum * expf(most - at));
  if (threadIdx.x == 0) st(out0 + blockIdx.x, logf(sum) + at);
}
"""


def rows(small: bool) -> Iterator[Block]:
    for name, text, n, width in (("warp_sum", WARP_ROWS, 65536, 1024), ("block_sum", BLOCK_ROWS, 8192, 8192)):
        sizes = {"d0": 5, "d1": 1200} if small else {"d0": n, "d1": width}
        reduced = ("in0 f32[d0,d1]", "t0 f32[d0] = sum(in0) over d1", "out0 f32[d0] = t0")
        yield Block(name, "f32", make_work("row sums", sizes, *reduced), fill(text))
    sizes = {"d0": 2, "d1": 9000} if small else {"d0": 528, "d1": 131072}
    lines = ("in0 f32[d0,d1]", "t0 f32[d0] = logsumexp(in0) over d1", "out0 f32[d0] = t0")
    yield Block("online_logsumexp", "f32", make_work("log-sum-exp of rows", sizes, *lines), fill(ONLINE))
