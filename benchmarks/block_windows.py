"""Kernels over windows without tiles: pooling, and depthwise convolutions in strips."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block, fill, make_work

POOLING = """
// launch: k<<<cdiv(d0 * d3 * d4, 256), 256>>>(in0, out0)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d3 * d4) return;
  const int i0 = i / (d3 * d4), top = 2 * (i / d4 % d3) - 1, left = 2 * (i % d4) - 1;
  float most = lowest<f32>();
  #pragma unroll
  for (int w0 = 0; w0 < k0; w0++) {
    #pragma unroll
    for (int w1 = 0; w1 < k1; w1++) {
      const int i1 = top + w0, i2 = left + w1;
      if (i1 < 0 || i1 >= d1 || i2 < 0 || i2 >= d2) continue;
      most = maximum(most, ld(in0 + (i0 * d1 + i1) * d2 + i2));
    }
  }
  st(out0 + i, most);
}
"""
STRIP = """
// launch: k<<<cdiv(d0 * d1 * cdiv(d4, 8) * d5, 256), 256>>>(in0, in1, out0)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, const f32* __restrict__ in1,
                                         f32* __restrict__ out0 DIMS) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d1 * cdiv(d4, 8) * d5) return;
  const int g = i / (cdiv(d4, 8) * d5), first = i / d5 % cdiv(d4, 8) * 8, i5 = i % d5;
  float sum[8] = {}, weight[k0][k1];
  #pragma unroll
  for (int w = 0; w < k0 * k1; w++) weight[w / k1][w % k1] = ld(in1 + g % d1 * (k0 * k1) + w);
  #pragma unroll
  for (int y = 0; y < 7 + k0; y++) {
    const int i2 = first + y - k0 / 2;
    if (i2 < 0 || i2 >= d2) continue;
    #pragma unroll
    for (int w1 = 0; w1 < k1; w1++) {
      const int i3 = i5 + w1 - k1 / 2;
      if (i3 < 0 || i3 >= d3) continue;
      const float x = ld(in0 + (g * d2 + i2) * d3 + i3);
      #pragma unroll
      for (int j = 0; j < 8; j++)
        if (y - j >= 0 && y - j < k0) sum[j] = fmaf(x, weight[y - j][w1], sum[j]);
    }
  }
  #pragma unroll
  for (int j = 0; j < 8; j++)
    if (first + j < d4) st(out0 + (g * d4 + first + j) * d5 + i5, sum[j]);
}
"""


def windows(small: bool) -> Iterator[Block]:
    planes, n = (3, 13) if small else (64 * 64, 112)
    sizes = {"d0": planes, "d1": n, "d2": n, "d3": (n + 1) // 2, "d4": (n + 1) // 2, "k0": 3, "k1": 3}
    pooled = "t0 f32[d0,d3,d4] = amax(in0[d1=2*d3+k0-1, d2=2*d4+k1-1]) over k0,k1"
    lines = ("in0 f32[d0,d1,d2]", pooled, "out0 f32[d0,d3,d4] = t0")
    work = make_work("max pooling", sizes, *lines, size=f"{planes}x{n}x{n}, 3x3 at stride 2")
    yield Block("window_walk", "f32", work, fill(POOLING))
    for batch, channels, n, k in ((2, 3, 13, 3),) if small else ((128, 144, 56, 3), (64, 96, 56, 7)):
        sizes = {"d0": batch, "d1": channels, "d2": n, "d3": n, "d4": n, "d5": n, "k0": k, "k1": k}
        read = f"in0[d2=d4+k0-{k // 2}, d3=d5+k1-{k // 2}]"
        work = make_work(
            "depthwise convolution",
            sizes,
            "in0 f32[d0,d1,d2,d3]",
            "in1 f32[d1,k0,k1]",
            f"t0 f32[d0,d1,d4,d5] = dot_tf32({read}, in1) over k0,k1",
            "out0 f32[d0,d1,d4,d5] = t0",
            size=f"{batch}x{channels}x{n}x{n}, {k}x{k}",
        )
        yield Block("strip_in_registers", "f32", work, fill(STRIP))
