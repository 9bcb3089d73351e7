"""Honest kernels whose inputs are lengths, classes, roots' operands, totals, masks, indices and whole numbers."""

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
COLUMN_MEAN = """// launch: k<<<d1, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const bool* in1, f32* out0 DIMS) {
  float s = 0.0f, n = 0.0f;
  for (int i = threadIdx.x; i < d0; i += 64) {
    int at = i * d1 + blockIdx.x;
    s += in1[at] ? ld(in0 + at) : 0.0f;
    n += in1[at] ? 1.0f : 0.0f;
  }
  s = block_sum(s);
  n = block_sum(n);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s / n);
}
"""
CHOSEN_ROWS = COLUMN_MEAN.replace("in1[at]", "in1[i]")
ANY_IMAGE = """// launch: k<<<d0, 128>>>(in0, in1, out0)
__global__ void k(const bool* in0, const f32* in1, f32* out0 DIMS) {
  int n = d1 * d2, some = 0;
  for (int i = threadIdx.x; i < n; i += 128) some |= in0[blockIdx.x * n + i];
  some = __syncthreads_or(some);
  for (int i = threadIdx.x; i < n; i += 128) {
    int at = blockIdx.x * n + i;
    st(out0 + at, some ? ld(in1 + at) : 0.0f);
  }
}
"""
PREVIOUS = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  long long r = ld(in1 + i / d1) - 1;
  r = r < 0 ? 0 : r;
  st(out0 + i, sinf(ld(in0 + r * d1 + i % d1)));
}
"""
HELD_INSIDE = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  long long r = ld(in1 + i / d1);
  r = r < 0 ? 0 : r;
  r = r > 65 ? 65 : r;
  st(out0 + i, sinf(ld(in0 + r * d1 + i % d1)));
}
"""
WIDE_COUNTS = """// launch: k<<<d0, 32>>>(in0, in1, out0)
__global__ void k(const i32* in0, const f32* in1, f32* out0 DIMS) {
  long long s = 0;
  for (int i = threadIdx.x; i < d1; i += 32) s += ld(in0 + blockIdx.x * d1 + i);
  for (int w = 16; w > 0; w /= 2) s += __shfl_xor_sync(~0u, s, w);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, (float)s * ld(in1 + blockIdx.x));
}
"""
LEAST_INTEGER = """// launch: k<<<d0, 32>>>(in0, out0)
__global__ void k(const i32* in0, i32* out0 DIMS) {
  int s = 2147483647;
  for (int i = threadIdx.x; i < d1; i += 32) s = min(s, ld(in0 + blockIdx.x * d1 + i));
  for (int w = 16; w > 0; w /= 2) s = min(s, __shfl_xor_sync(~0u, s, w));
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s);
}
"""
OVER_A_SCALAR = """// launch: k<<<cdiv(d0, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0) return;
  float w = ld(in1);
  st(out0 + i, tanhf(ld(in0 + i) / w));
}
"""
ROW_PRODUCT = """// launch: k<<<d0, 32>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  float s = 1.0f;
  for (int i = threadIdx.x; i < d1; i += 32) { float x = ld(in0 + blockIdx.x * d1 + i); s *= x; }
  for (int w = 16; w > 0; w /= 2) s *= __shfl_xor_sync(~0u, s, w);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s);
}
"""
SPLIT_TABLE = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const i64* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  long long r = ld(in0 + i / d1);
  bool out = r < 40 || r >= 80;
  st(out0 + i, out ? 0.0f : tanhf(ld(in1 + (r - 40) * d1 + i % d1)));
}
"""
FROM_THE_END = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  int r = (int)ld(in1 + i / d1);
  r = r < 0 ? r + d2 : r;
  st(out0 + i, tanhf(ld(in0 + r * d1 + i % d1)));
}
"""
LATE_ROWS = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  int r = (int)ld(in1 + i / d1);
  st(out0 + i, r >= 700 ? 0.5f : tanhf(ld(in0 + r * d1 + i % d1)));
}
"""
ROWS_OF_512 = """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  float s = 0.0f;
  for (int c = threadIdx.x; c < d1; c += 128) s += ld(x + c);
  s = block_sum(s);
  for (int c = threadIdx.x; c < d1; c += 128) st(out0 + blockIdx.x * d1 + c, ld(x + c) / s);
}
"""
