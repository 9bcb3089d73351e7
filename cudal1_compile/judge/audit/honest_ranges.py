"""Honest kernels whose inputs are lengths, classes, roots' operands and totals."""

from __future__ import annotations

LENGTHS = """// launch: k<<<d0, 32>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  long long n = ld(in1 + blockIdx.x);
  float s = 0.0f;
  for (int c = threadIdx.x; c < d1; c += 32) s += c < n ? ld(in0 + blockIdx.x * d1 + c) : 0.0f;
  s = warp_sum(s);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s);
}
"""
ONE_HOT = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  long long n = ld(in1 + i / d1);
  int c = i % d1;
  st(out0 + i, c == n ? ld(in0 + i) : 0.25f);
}
"""
UNTIL_500 = """// launch: k<<<cdiv(d0, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < d0) st(out0 + i, ld(in1 + i) < 500 ? ld(in0 + i) : 0.5f);
}
"""
ROOT = """// launch: k<<<cdiv(d0, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0) return;
  float x = ld(in0 + i);
  st(out0 + i, sqrtf(x) + ld(in1 + i));
}
"""
LOG_MASK = ROOT.replace("sqrtf", "logf")
NARROW_ABS = """// launch: k<<<cdiv(d0, 128), 128>>>(in0, in1, out0)
__global__ void k(const i8* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0) return;
  int x = ld(in0 + i);
  st(out0 + i, (float)(i8)(x < 0 ? -x : x) * ld(in1 + i));
}
"""
TOTAL_NORM = """// launch: k<<<1, 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  float s = 0.0f;
  for (int i = threadIdx.x; i < d0; i += 256) { float x = ld(in0 + i); s += x * x; }
  s = block_sum(s);
  if (threadIdx.x == 0) st(out0, sqrtf(s));
}
"""
