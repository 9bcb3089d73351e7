"""Honest kernels of few rows, vectors beside rows, whole dtypes and sizes far beyond the example's."""

from __future__ import annotations

SHARED_TOTAL = """// scratch: s0 f32[cdiv(d0, 1024)]
// scratch: s1 i32[1] = 0
// launch: k<<<cdiv(d0, 1024), 256>>>(in0, s0, s1, out0)
__global__ void k(const f32* in0, f32* s0, i32* s1, f32* out0 DIMS) {
  float s = 0.0f;
  for (int j = 0; j < 4; ++j) {
    int i = blockIdx.x * 1024 + j * 256 + threadIdx.x;
    if (i < d0) { float v = ld(in0 + i); s += v * v; }
  }
  s = block_sum(s);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    s0[blockIdx.x] = s;
    __threadfence();
    last = atomicAdd(s1, 1) == (int)gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  float t = 0.0f;
  for (int j = threadIdx.x; j < (int)gridDim.x; j += 256) t += *(volatile f32*)(s0 + j);
  t = block_sum(t);
  if (threadIdx.x == 0) st(out0, sqrtf(t));
}
"""
CHUNKED_SCAN = """// scratch: s0 f32[d0*cdiv(d1, 256)]
// launch: part<<<dim3(cdiv(d1, 256), d0), 256>>>(in0, s0)
// launch: scan<<<dim3(cdiv(d1, 256), d0), 256>>>(in0, s0, out0)
__global__ void part(const f32* in0, f32* s0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float v = i < d1 ? ld(in0 + blockIdx.y * d1 + i) : 0.0f;
  v = block_sum(v);
  if (threadIdx.x == 0) s0[blockIdx.y * cdiv(d1, 256) + blockIdx.x] = v;
}
__global__ void scan(const f32* in0, const f32* s0, f32* out0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float before = 0.0f;
  for (int j = threadIdx.x; j < (int)blockIdx.x; j += 256) before += s0[blockIdx.y * cdiv(d1, 256) + j];
  before = block_sum(before);
  float v = block_scan_sum(i < d1 ? ld(in0 + blockIdx.y * d1 + i) : 0.0f);
  if (i < d1) st(out0 + blockIdx.y * d1 + i, (before + v) * 0.5f);
}
"""
STRIDED_ROWS = """// launch: k<<<min(cdiv(d0*d1, 128), 4096), 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  for (int i = blockIdx.x * 128 + threadIdx.x; i < d0 * d1; i += gridDim.x * 128) {
    float x = ld(in0 + i);
    st(out0 + i, expf(x) * x + 1.0f);
  }
}
"""
TWO_ROWS = """// launch: k<<<d0, 64>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  float m = -INFINITY, s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 64) {
    float v = ld(x + i), n = maximum(m, v);
    if (n != -INFINITY) s = s * expf(m - n) + expf(v - n);
    m = n;
  }
  float all = block_max(m);
  s = block_sum(m == -INFINITY ? 0.0f * all : s * expf(m - all));
  for (int i = threadIdx.x; i < d1; i += 64) st(out0 + blockIdx.x * d1 + i, expf(ld(x + i) - all) / s);
}
"""
MASKED_ROWS = """// launch: k<<<d0, 32>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < d1; i += 32) m = maximum(m, ld(x + i) + ld(in1 + i));
  m = warp_max(m);
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 32) s += expf(ld(x + i) + ld(in1 + i) - m);
  s = warp_sum(s);
  for (int i = threadIdx.x; i < d1; i += 32) st(out0 + blockIdx.x * d1 + i, expf(ld(x + i) + ld(in1 + i) - m) / s);
}
"""
BF16_ROWS = """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const bf16* in0, bf16* out0 DIMS) {
  const bf16* x = in0 + blockIdx.x * d1;
  bf16* y = out0 + blockIdx.x * d1;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < d1; i += 128) m = maximum(m, ld(x + i));
  m = block_max(m);
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 128) s += expf(ld(x + i) - m);
  s = block_sum(s);
  for (int i = threadIdx.x; i < d1; i += 128) st(y + i, expf(ld(x + i) - m) / s);
}
"""
LARGER_OF_TWO = """// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, in1, out0, out1)
__global__ void k(const i32* in0, const i32* in1, i32* out0, bool* out1 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d1) return;
  i32 a = in0[i], b = in1[i];
  bool less = a < b;
  i32 best = less ? b : a;
  out0[i] = (i32)(unsigned(0) - ((unsigned)best + unsigned(5)));
  out1[i] = less;
}
"""
LARGER_OF_TWO_WIDE = LARGER_OF_TWO.replace("i32", "i64").replace("unsigned", "ULL")
LARGER_OF_TWO_WIDE = LARGER_OF_TWO_WIDE.replace("__global__", "typedef unsigned long long ULL;\n__global__")
MEAN_OF_LABELLED = """// launch: k<<<1, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const i64* in1, f32* out0 DIMS) {
  float s = 0.0f, n = 0.0f;
  for (int r = threadIdx.x; r < d0; r += 64) {
    i64 c = in1[r];
    float m = -INFINITY, e = 0.0f;
    for (int j = 0; j < d1; ++j) m = maximum(m, ld(in0 + r * d1 + j));
    float z = finite_or_zero(m);
    for (int j = 0; j < d1; ++j) e += expf(ld(in0 + r * d1 + j) - z);
    float l = z + logf(e);
    if (c != -100) { s += l - ld(in0 + r * d1 + (int)c); n += 1.0f; }
  }
  s = block_sum(s); n = block_sum(n);
  if (threadIdx.x == 0) st(out0, s / n);
}
"""
FRAMED_IMAGE = """// launch: a<<<cdiv(d0*d1*d5*d6, 128), 128>>>(in0, in1, in2, out0)
__global__ void a(const f32* in0, const f32* in1, const f32* in2, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1 * d5 * d6) return;
  int x = i % d6, y = i / d6 % d5, o = i / (d6 * d5) % d1, n = i / (d6 * d5 * d1);
  float s = 0.0f;
  for (int c = 0; c < d2; ++c)
    for (int p = 0; p < k0; ++p)
      for (int q = 0; q < k1; ++q) {
        int h = y + p - 1, w = x + q - 1;
        if (h < 0 || h >= d3 || w < 0 || w >= d4) continue;
        float v = in0[((n * d2 + c) * d3 + h) * d4 + w], f = in1[((o * d2 + c) * k0 + p) * k1 + q];
        s = fmaf(v, f, s);
      }
  s += in2[o];
  out0[i] = minimum(relu(s), 6.0f);
}
"""
