"""Further honest kernels: those that attacks_corners.py starts from."""

from __future__ import annotations

QUOTIENT = """// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d1) return;
  float x = in0[i], y = in1[i], v = x / y * (x - y);
  out0[i] = v;
}
"""

LOG_SOFTMAX = """// launch: k<<<cdiv(d0, 64), 64>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int r = blockIdx.x * 64 + threadIdx.x;
  if (r >= d0) return;
  float m = -INFINITY, s = 0.0f;
  for (int i = 0; i < d1; ++i) m = maximum(m, in0[r * d1 + i]);
  for (int i = 0; i < d1; ++i) s += expf(in0[r * d1 + i] - m);
  s = logf(s);
  for (int i = 0; i < d1; ++i) out0[r * d1 + i] = in0[r * d1 + i] - m - s;
}
"""

AFFINE_RELU = """// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const f32* in1, const f32* in2, f32* out0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d1) return;
  float w = in1[i % d1], b = in2[i % d1];
  out0[i] = relu(in0[i] * w + b);
}
"""

ANY_PRODUCTS = """// launch: k<<<cdiv(d0*d1, 1024), 128>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = (blockIdx.x * 128 + threadIdx.x) * 8, left = d0 * d1 - i;
  float p[8], q[8];
  vload<8>(in0 + i, 0, left, p);
  vload<8>(in1 + i, 0, left, q);
  for (int j = 0; j < 8; ++j) p[j] = relu(p[j] * q[j] + 2.0f);
  vstore<8>(out0 + i, 0, left, p);
}
"""

# eight rows a block
ANY_PRODUCT_ROWS = """// launch: k<<<cdiv(d0, 8), dim3(32, 8)>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int r = blockIdx.x * 8 + threadIdx.y;
  if (r >= d0) return;
  for (int i = r * d1 + threadIdx.x; i < (r + 1) * d1; i += 32) out0[i] = relu(in0[i] * in1[i] + 2.0f);
}
"""

ANY_NORM = """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  float s = 0.0f, q = 0.0f;
  for (int j = 0; j < cdiv(d1, 128); ++j) {
    int i = j * 128 + threadIdx.x;
    if (i < d1) s += x[i];
  }
  float mean = block_sum(s) / d1;
  for (int j = 0; j < cdiv(d1, 128); ++j) {
    int i = j * 128 + threadIdx.x;
    if (i < d1) q += (x[i] - mean) * (x[i] - mean);
  }
  float scale = rsqrtf(block_sum(q) / d1 + 1e-5f);
  for (int i = threadIdx.x; i < d1; i += 128) out0[blockIdx.x * d1 + i] = (x[i] - mean) * scale;
}
"""

ANY_WIDE_ROWS = """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int r = blockIdx.x;
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 128) s += in0[r * d1 + i];
  s = block_sum(s);
  if (threadIdx.x == 0) out0[r] = s;
}
"""

ANY_EMBEDDING = """// launch: k<<<cdiv(d0*d2, 128), 128>>>(in0, in1, out0)
__global__ void k(const i64* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d2) return;
  int row = (int)in0[i / d2];
  out0[i] = expf(in1[row * d2 + i % d2] * 1.5f);
}
"""

CONVOLUTION_RELU6 = """// launch: a<<<cdiv(d0*d1*d5*d6, 128), 128>>>(in0, in1, in2, out0)
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

BOTH_ENDS = """// launch: k<<<d0, 32>>>(in0, out0, out1)
__global__ void k(const f32* in0, i64* out0, i64* out1 DIMS) {
  float high = -INFINITY, low = INFINITY;
  int at_high = d1, at_low = d1;
  for (int i = threadIdx.x; i < d1; i += 32) {
    float v = in0[blockIdx.x * d1 + i];
    join_argmax(high, at_high, v, i);
    join_argmin(low, at_low, v, i);
  }
  warp_argmax(high, at_high);
  warp_argmin(low, at_low);
  if (threadIdx.x == 0) {
    out0[blockIdx.x] = at_high;
    out1[blockIdx.x] = at_low;
  }
}
"""

SQUARED_ERROR = """// launch: k<<<d0, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 64) {
    float x = in0[blockIdx.x * d1 + i], y = in1[blockIdx.x * d1 + i];
    s += (x - y) * (x - y);
  }
  s = block_sum(s);
  if (threadIdx.x == 0) out0[blockIdx.x] = s / d1;
}
"""

NORM_GRADIENT = """// launch: k<<<d1, 128>>>(in0, in1, in2, out0, out1)
__global__ void k(const f32* in0, const f32* in1, const f32* in2, f32* out0, f32* out1 DIMS) {
  int c = blockIdx.x;
  float mean = in2[c], s = 0.0f, g = 0.0f;
  for (int j = threadIdx.x; j < d0 * d2; j += 128) {
    int i = (j / d2 * d1 + c) * d2 + j % d2;
    g += in0[i];
    s += in0[i] * (in1[i] - mean);
  }
  s = block_sum(s);
  g = block_sum(g);
  if (threadIdx.x == 0) {
    out0[c] = s;
    out1[c] = g;
  }
}
"""

MISSING_VALUES = """// launch: k<<<cdiv(d0, 128), 128>>>(in0, in1, out0, out1)
__global__ void k(const f32* in0, const f32* in1, f32* out0, bool* out1 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0) return;
  bool missing = isnan(in1[i]);
  out1[i] = missing;
  out0[i] = in0[i] * (missing ? 0.0f : in1[i]);
}
"""

WRAPPED_PRODUCTS = """// launch: k<<<cdiv(d0, 128), 128>>>(in0, in1, out0, out1)
__global__ void k(const i32* in0, const i32* in1, i32* out0, bool* out1 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0) return;
  int p = (int)((unsigned)remainder_(in0[i], in1[i]) * (unsigned)in0[i]);
  bool less = p < in1[i];
  out1[i] = less;
  out0[i] = less ? (int)p : in1[i];
}
"""

CONVOLUTION_MAXIMUM = """// launch: k<<<d0 * d1, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int t = threadIdx.x, n = blockIdx.x / d1, f = blockIdx.x % d1;
  float s = 0.0f;
  if (t < d4)
    for (int c = 0; c < d2; ++c)
      for (int p = 0; p < k0; ++p) s = fmaf(in0[(n * d2 + c) * d3 + t + 2 * p], in1[(f * d2 + c) * k0 + p], s);
  float m = block_max(t < d4 ? 0.5f * s : -INFINITY);
  if (t == 0) out0[blockIdx.x] = m;
}
"""

# by two elements at a time
HALF_ROW_SUMS = """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f16* in0, f16* out0 DIMS) {
  float s = 0.0f;
  for (int i = threadIdx.x * 2; i < d1; i += 256) {
    float v[2];
    vload<2>(in0 + blockIdx.x * d1 + i, v);
    float p = v[0] + v[1];
    s += p;
  }
  s = block_sum(s);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s);
}
"""

HALF_LONG_DOT = """// launch: k<<<cdiv(d0*d2, 64), 64>>>(in0, in1, out0)
__global__ void k(const f16* in0, const f16* in1, f16* out0 DIMS) {
  int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= d0 * d2) return;
  const f16 *x = in0 + i / d2 * d1, *w = in1 + i % d2;
  float s = 0.0f;
  for (int j = 0; j < d1; j += 2) {
    float p = ld(x + j) * ld(w + j * d2) + ld(x + j + 1) * ld(w + (j + 1) * d2);
    s += p;
  }
  st(out0 + i, s);
}
"""

LOGARITHMS = """// launch: k<<<d0, 128>>>(in0, in1, out0, out1, out2)
__global__ void k(const f32* in0, const f32* in1, f32* out0, f32* out1, f32* out2 DIMS) {
  int i = blockIdx.x * d1 + threadIdx.x;
  float s = 0.0f;
  if (threadIdx.x < d1) {
    float x = in0[i], y = in1[i];
    out0[i] = x = log2f(x);
    out1[i] = y = log2f(y);
    s = x + y;
  }
  s = block_sum(s);
  if (threadIdx.x == 0) out2[blockIdx.x] = s;
}
"""

# each thread's deviations from its own mean, joined in a tree
LAYERNORM_TREE = """// launch: k<<<d0, 64>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const f32* in1, const f32* in2, f32* out0 DIMS) {
  __shared__ float means[64], squares[64], counts[64];
  const f32* x = in0 + blockIdx.x * d1;
  int t = threadIdx.x;
  float n = 0.0f, mean = 0.0f, q = 0.0f;
  for (int i = t; i < d1; i += 64) {
    n += 1.0f;
    float d = x[i] - mean;
    mean += d / n;
    q += d * (x[i] - mean);
  }
  means[t] = mean, squares[t] = q, counts[t] = n;
  __syncthreads();
  for (int w = 32; w > 0; w /= 2) {
    if (t < w && counts[t + w] > 0.0f) {
      float a = counts[t], b = counts[t + w], d = means[t + w] - means[t];
      means[t] += d * b / (a + b);
      squares[t] += squares[t + w] + d * d * a * b / (a + b);
      counts[t] = a + b;
    }
    __syncthreads();
  }
  float r = rsqrtf(squares[0] / d1 + 1e-5f);
  for (int i = t; i < d1; i += 64) out0[blockIdx.x * d1 + i] = (x[i] - means[0]) * r * in1[i] + in2[i];
}
"""

# a grid that does not grow, the last lane of a warp, a count of bits and numbers that functions make
ANY_ROWS_COUNTED = """// launch: k<<<64, 128>>>(in0, out0)
#define TWICE(a) (2.0f * (a))
__device__ float halved(float a) { return a / 2.0f; }
__global__ void k(const f32* in0, f32* out0 DIMS) {
  for (int i = blockIdx.x * 128 + threadIdx.x; i - (int)threadIdx.x % 32 < d0 * d1; i += 64 * 128) {
    int left = __popc(__ballot_sync(~0u, i < d0 * d1));
    float x = threadIdx.x % 32 < left ? in0[i] : 0.0f;
    if (threadIdx.x % 32 == 31 ? left == 32 : i < d0 * d1) out0[i] = expf(x) * x + halved(TWICE(1.0f));
  }
}
"""
