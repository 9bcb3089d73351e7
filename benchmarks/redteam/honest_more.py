"""Further honest kernels: products, masks, integers, symbolic sizes, half types, scans, several outputs."""

from __future__ import annotations

MATMUL = """// launch: k<<<dim3(cdiv(d2, 32), d0), 32>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const f32* in1, const f32* in2, f32* out0 DIMS) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y;
  if (c >= d2) return;
  float s = 0.0f;
  for (int j = 0; j < d1; ++j) s = fmaf(ld(in0 + r * d1 + j), ld(in1 + j * d2 + c), s);
  st(out0 + r * d2 + c, relu(s + ld(in2 + c)));
}
"""

MATMUL_BF16 = """// launch: k<<<dim3(d2, d0), 32>>>(in0, in1, out0)
__global__ void k(const bf16* in0, const bf16* in1, bf16* out0 DIMS) {
  int c = blockIdx.x, r = blockIdx.y;
  float s = 0.0f;
  for (int j = threadIdx.x; j < d1; j += 32) s += ld(in0 + r * d1 + j) * ld(in1 + c * d1 + j);
  s = warp_sum(s);
  if (threadIdx.x == 0) st(out0 + r * d2 + c, s);
}
"""

CONVOLUTION = """// launch: k<<<cdiv(d0*d4*d5*d6, 64), 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= d0 * d4 * d5 * d6) return;
  int x = i % d6, y = i / d6 % d5, o = i / (d6 * d5) % d4, n = i / (d6 * d5 * d4);
  float s = 0.0f;
  for (int c = 0; c < d1; ++c)
    for (int a = 0; a < k0; ++a)
      for (int b = 0; b < k1; ++b) {
        int h = y + a - 1, w = x + b - 1;
        if (h < 0 || h >= d2 || w < 0 || w >= d3) continue;
        s = fmaf(ld(in0 + ((n * d1 + c) * d2 + h) * d3 + w), ld(in1 + ((o * d1 + c) * k0 + a) * k1 + b), s);
      }
  st(out0 + i, s);
}
"""

MASKED_SOFTMAX = """// launch: k<<<d0, 32>>>(in0, in1, out0)
__global__ void k(const f32* in0, const bool* in1, f32* out0 DIMS) {
  int i = blockIdx.x * d1 + threadIdx.x, j = i + 32;
  float a = ld(in1 + i) ? ld(in0 + i) : -INFINITY, b = ld(in1 + j) ? ld(in0 + j) : -INFINITY;
  float m = warp_max(maximum(a, b));
  a = expf(a - m);
  b = expf(b - m);
  float s = warp_sum(a + b);
  st(out0 + i, a / s);
  st(out0 + j, b / s);
}
"""

INTEGERS = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const i64* in0, const i32* in1, i64* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < d0 * d1) st(out0 + i, ld(in0 + i) * (i64)ld(in1 + i) + 3);
}
"""

ANY_ROWS = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  float x = ld(in0 + i);
  st(out0 + i, expf(x) * x + 1.0f);
}
"""

ANY_INDICES = """// launch: k<<<d0, 64>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const i64* in1, const f32* in2, f32* out0 DIMS) {
  int row = (int)ld(in1 + blockIdx.x), c = threadIdx.x;
  if (c < d1) st(out0 + blockIdx.x * d1 + c, (ld(in0 + row * d1 + c) + ld(in2 + blockIdx.x * d1 + c)) * 0.5f);
}
"""

COMPUTED_MASK = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, bool* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < d0 * d1) st(out0 + i, ld(in0 + i) * ld(in1 + i) > 0.25f);
}
"""

RMS_BF16 = """// launch: k<<<d0, 64>>>(in0, in1, out0)
__global__ void k(const bf16* in0, const bf16* in1, bf16* out0 DIMS) {
  constexpr int V = 4;
  int i = threadIdx.x * V;
  float x[V], w[V];
  vload<V>(in0 + blockIdx.x * d1 + i, x);
  vload<V>(in1 + i, w);
  float s = 0.0f;
  for (int j = 0; j < V; ++j) s += x[j] * x[j];
  float r = rsqrtf(block_sum(s) / d1 + 1e-6f);
  for (int j = 0; j < V; ++j) x[j] = round_to<bf16>(x[j] * r) * w[j];
  vstore<V>(out0 + blockIdx.x * d1 + i, x);
}
"""

QUANTISE = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, out0)
__global__ void k(const f32* in0, i8* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < d0 * d1) st(out0 + i, minimum(maximum(round_even(ld(in0 + i) * 8.0f), -128.0f), 127.0f));
}
"""

BOTH_SUMS = """// scratch: s0 f32[8*d1]
// launch: rows<<<8, 96>>>(in0, in1, out0, out1, s0)
// launch: columns<<<1, 96>>>(s0, out2)
__global__ void rows(const f32* in0, const f32* in1, f32* out0, f32* out1, f32* s0 DIMS) {
  int c = threadIdx.x;
  float s = 0.0f;
  for (int r = blockIdx.x * 4; r < blockIdx.x * 4 + 4; ++r) {
    float t = ld(in0 + r * d1 + c) * ld(in1 + r * d1 + c);
    st(out0 + r * d1 + c, t);
    s += t;
    t = block_sum(t);
    if (c == 0) st(out1 + r, t);
  }
  s0[blockIdx.x * d1 + c] = s;
}
__global__ void columns(const f32* s0, f32* out2 DIMS) {
  float s = 0.0f;
  for (int p = 0; p < 8; ++p) s += s0[p * d1 + threadIdx.x];
  st(out2 + threadIdx.x, s);
}
"""

RUNNING_SUM = """// launch: k<<<d0, 96>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int i = blockIdx.x * d1 + threadIdx.x;
  st(out0 + i, block_scan_sum(ld(in0 + i)) * 0.5f);
}
"""

SILU_F64 = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, out0)
__global__ void k(const f64* in0, f64* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  double x = ld(in0 + i);
  st(out0 + i, x * sigmoid(x));
}
"""

ANY_LARGE = """// launch: k<<<d0, 64>>>(in0, out0, out1)
__global__ void k(const f16* in0, bool* out0, f16* out1 DIMS) {
  bool found = false;
  float m = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 64) {
    float x = fabsf(ld(in0 + blockIdx.x * d1 + i));
    found = found || x > 3.0f;
    m = maximum(m, x);
  }
  found = block_any(found);
  m = block_max(m);
  if (threadIdx.x == 0) {
    st(out0 + blockIdx.x, found);
    st(out1 + blockIdx.x, m);
  }
}
"""

TOTAL = """// scratch: s0 f32[64]
// launch: part<<<64, 256>>>(in0, s0)
// launch: join<<<1, 32>>>(s0, out0)
__global__ void part(const f32* in0, f32* s0 DIMS) {
  float s = 0.0f;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < d0; i += 64 * 256) s += ld(in0 + i);
  s = block_sum(s);
  if (threadIdx.x == 0) s0[blockIdx.x] = s;
}
__global__ void join(const f32* s0, f32* out0 DIMS) {
  float s = warp_sum(s0[threadIdx.x] + s0[threadIdx.x + 32]);
  if (threadIdx.x == 0) st(out0, s);
}
"""

EXPANDED = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  st(out0 + i, tanhf(ld(in0 + i / d1 * in0_d0 + i % d1 * in0_d1) * ld(in1 + i)));
}
"""

WINDOW_ARGMAX = """// launch: k<<<cdiv(d0*d1*d4*d5, 64), 64>>>(in0, in1, out0)
__global__ void k(const f16* in0, const f16* in1, i8* out0 DIMS) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= d0 * d1 * d4 * d5) return;
  int x = i % d5, y = i / d5 % d4, n = i / (d4 * d5);
  float s = sigmoid(ld(in1 + n)), best = -INFINITY;
  int at = 0;
  for (int a = 0; a < k0; ++a)
    for (int b = 0; b < k1; ++b) {
      int h = 2 * y + a - 1, w = 2 * x + b - 1;
      if (h < 0 || h >= d2 || w < 0 || w >= d3) continue;
      float v = round_to<f16>(ld(in0 + (n * d2 + h) * d3 + w) * s);
      if (v > best || (v != v && best == best)) { best = v; at = a * k1 + b; }
    }
  st(out0 + i, at);
}
"""

UNEVEN_MASK = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0, out1)
__global__ void k(const f32* in0, const f32* in1, bool* out0, f32* out1 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  bool keep = ld(in0 + i) > 0.79f;
  st(out0 + i, keep);
  st(out1 + i, keep ? ld(in1 + i) : 0.0f);
}
"""

EIGHT_MASKS = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0, out1)
__global__ void k(const bf16* in0, const bf16* in1, bool* out0, f32* out1 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  float x = ld(in0 + i % d1);
  if (i < d1) st(out0 + i, x > 20.0f);
  st(out1 + i, tanhf(x * ld(in1 + i)));
}
"""

CAST_AND_RELU = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, out0, out1)
__global__ void k(const f32* in0, i32* out0, f32* out1 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  float x = ld(in0 + i), y = relu(x);
  st(out0 + i, (int)(x * 8.0f));
  st(out1 + i, y * y);
}
"""

SCALED_TANH = """// launch: k<<<d0, 128>>>(in0, in1, out0, out1)
__global__ void k(const f32* in0, const f32* in1, f32* out0, f32* out1 DIMS) {
  float g = ld(in1), t = 0.0f;
  int i = blockIdx.x * d1 + threadIdx.x;
  if (threadIdx.x < d1) {
    t = tanhf(ld(in0 + i) * g);
    st(out0 + i, t);
  }
  t = block_sum(t);
  if (threadIdx.x == 0) st(out1 + blockIdx.x, t);
}
"""

THREE_LOSSES = """// launch: k<<<d0, 32>>>(in0, out0)
__global__ void k(const bf16* in0, bf16* out0 DIMS) {
  float m = -INFINITY, s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 32) m = maximum(m, ld(in0 + blockIdx.x * d1 + i));
  m = finite_or_zero(warp_max(m));
  for (int i = threadIdx.x; i < d1; i += 32) s += expf(ld(in0 + blockIdx.x * d1 + i) - m);
  s = warp_sum(s);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, (logf(s) + m) * 0.5f);
}
"""

COSINE_BF16 = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, out0)
__global__ void k(const bf16* in0, bf16* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < d0 * d1) st(out0 + i, maximum(cosf(ld(in0 + i)), 0.1f));
}
"""

SOFTMAX_WAITING = """// scratch: s0 f32[2, d0, 2]
// scratch: s1 i32[2, d0] = 0
// launch: k<<<d0 * 2, 64>>>(in0, s0, s1, out0)
__global__ void k(const f32* in0, f32* s0, i32* s1, f32* out0 DIMS) {
  const int g = blockIdx.x / 2, q = blockIdx.x % 2, from = q * cdiv(d1, 2), to = min(from + cdiv(d1, 2), d1);
  float m = -INFINITY, s = 0.0f;
  for (int i = from + threadIdx.x; i < to; i += 64) m = maximum(m, ld(in0 + g * d1 + i));
  m = block_max(m);
  if (threadIdx.x == 0) st(s0 + g * 2 + q, m);
  wait_for_blocks(s1 + g, 2);
  m = maximum(ld(s0 + g * 2), ld(s0 + g * 2 + 1));
  for (int i = from + threadIdx.x; i < to; i += 64) s += expf(ld(in0 + g * d1 + i) - m);
  s = block_sum(s);
  if (threadIdx.x == 0) st(s0 + (d0 + g) * 2 + q, s);
  wait_for_blocks(s1 + d0 + g, 2);
  s = ld(s0 + (d0 + g) * 2) + ld(s0 + (d0 + g) * 2 + 1);
  for (int i = from + threadIdx.x; i < to; i += 64) st(out0 + g * d1 + i, expf(ld(in0 + g * d1 + i) - m) / s);
}
"""

HALF_PRODUCT = """// launch: k<<<cdiv(d0*d1, 1024), 256>>>(in0, in1, out0)
__global__ void k(const bf16* in0, const bf16* in1, bf16* out0 DIMS) {
  int i = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (i >= d0 * d1) return;
  float a[4], b[4];
  vload<4>(in0 + i, a);
  vload<4>(in1 + i, b);
  for (int j = 0; j < 4; ++j) a[j] = relu(a[j] * b[j]);
  vstore<4>(out0 + i, a);
}
"""

HALF_SUM = """// launch: k<<<cdiv(d0*d1, 1024), 256>>>(in0, in1, out0)
__global__ void k(const f16* in0, const f16* in1, f16* out0 DIMS) {
  int i = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (i >= d0 * d1) return;
  float a[4], b[4];
  vload<4>(in0 + i, a);
  vload<4>(in1 + i, b);
  for (int j = 0; j < 4; ++j) a[j] = relu(a[j] + b[j]);
  vstore<4>(out0 + i, a);
}
"""

HALF_CAST = """// launch: k<<<cdiv(d0*d1, 1024), 256>>>(in0, in1, out0)
__global__ void k(const f32* in0, const bf16* in1, bf16* out0 DIMS) {
  int i = (blockIdx.x * 256 + threadIdx.x) * 4;
  if (i >= d0 * d1) return;
  float a[4], b[4];
  vload<4>(in0 + i, a);
  vload<4>(in1 + i, b);
  for (int j = 0; j < 4; ++j) a[j] = maximum(-a[j], b[j]);
  vstore<4>(out0 + i, a);
}
"""

HALF_FACTORS = """// launch: k<<<d0, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const bf16* in1, bf16* out0 DIMS) {
  __shared__ bf16 x[64];
  int r = blockIdx.x, c = threadIdx.x;
  st(x + c, relu(ld(in0 + r * d1 + c)));
  __syncthreads();
  if (c >= d2) return;
  float s = 0.0f;
  for (int j = 0; j < d1; ++j) s += ld(x + j) * ld(in1 + j * d2 + c);
  st(out0 + r * d2 + c, s);
}
"""

WHOLE_FACTORS = """// launch: k<<<d0, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const bf16* in1, bf16* out0 DIMS) {
  __shared__ bf16 w[64];
  int r = blockIdx.x, c = threadIdx.x;
  float s = 0.0f;
  for (int j = 0; j < d1; ++j) {
    if (c < d2) w[c] = in1[j * d2 + c];
    if (c < d2) s += relu(ld(in0 + r * d1 + j)) * ld(w + c);
  }
  if (c < d2) st(out0 + r * d2 + c, s);
}
"""
