"""Honest kernels: right, in the styles that generators write. The judge must not refuse one for what it computes.

(On the host target a right kernel may still lose on cost; that is no refusal of its result.)
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.redteam import honest_corners as corners
from benchmarks.redteam import honest_lines as few
from benchmarks.redteam import honest_more as more
from benchmarks.redteam import honest_ranges as ranges


@dataclass(frozen=True, slots=True)
class Honest:
    name: str
    region: str  # of regions.py
    code: str


SILU_SCALAR = """// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d1) return;
  float t = ld(in0 + i) * ld(in1 + i % d1);
  st(out0 + i, t * sigmoid(t) + 0.5f);
}
"""

SILU_VECTOR = """// launch: k<<<cdiv(d0*d1, 512), 128>>>(in0, in1, out0)
__global__ void __launch_bounds__(128) k(const f32* __restrict__ in0, const f32* __restrict__ in1,
                                         f32* __restrict__ out0 DIMS) {
  constexpr int V = 4;
  static_assert(d1 % V == 0);
  int i = (blockIdx.x * 128 + threadIdx.x) * V;
  if (i >= d0 * d1) return;
  float a[V], b[V];
  vload<V>(in0 + i, a);
  vload<V>(in1 + i % d1, b);
  #pragma unroll
  for (int j = 0; j < V; ++j) {
    float t = a[j] * b[j];
    a[j] = fmaf(t, 1.0f / (1.0f + expf(-t)), 0.5f);
  }
  vstore<V>(out0 + i, a);
}
"""

SILU_BF16 = """// launch: k<<<cdiv(d0*d1, 256), 256>>>(in0, in1, out0)
__global__ void k(const bf16* in0, const bf16* in1, bf16* out0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d1) return;
  float t = ld(in0 + i) * ld(in1 + i % d1);
  st(out0 + i, t * sigmoid(t));
}
"""

SILU_BF16_ROUNDED = """// launch: k<<<cdiv(d0*d1, 2048), 256>>>(in0, in1, out0)
__global__ void k(const bf16* in0, const bf16* in1, bf16* out0 DIMS) {
  constexpr int V = 8;
  int i = (blockIdx.x * 256 + threadIdx.x) * V;
  if (i >= d0 * d1) return;
  float a[V], b[V];
  vload<V>(in0 + i, a);
  vload<V>(in1 + i % d1, b);
  for (int j = 0; j < V; ++j) {
    float t = round_to<bf16>(a[j] * b[j]);
    a[j] = t * round_to<bf16>(sigmoid(t));
  }
  vstore<V>(out0 + i, a);
}
"""

SOFTMAX_BLOCK = """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  f32* y = out0 + blockIdx.x * d1;
  float m = -INFINITY;
  for (int i = threadIdx.x; i < d1; i += 128) m = maximum(m, ld(x + i));
  m = block_max(m);
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 128) s += expf(ld(x + i) - m);
  s = block_sum(s);
  for (int i = threadIdx.x; i < d1; i += 128) st(y + i, expf(ld(x + i) - m) / s);
}
"""

SOFTMAX_WARP = """// launch: k<<<cdiv(d0, 4), 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= d0) return;
  constexpr int R = (d1 + 31) / 32;
  float v[R];
  float m = -INFINITY;
  #pragma unroll
  for (int j = 0; j < R; ++j) {
    int i = j * 32 + lane;
    v[j] = i < d1 ? ld(in0 + row * d1 + i) : -INFINITY;
    m = maximum(m, v[j]);
  }
  m = warp_max(m);
  float s = 0.0f;
  #pragma unroll
  for (int j = 0; j < R; ++j) { v[j] = expf(v[j] - m); s += v[j]; }
  float r = 1.0f / warp_sum(s);
  #pragma unroll
  for (int j = 0; j < R; ++j) {
    int i = j * 32 + lane;
    if (i < d1) st(out0 + row * d1 + i, v[j] * r);
  }
}
"""

SOFTMAX_ONLINE = """// launch: k<<<d0, 64>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  float m = -INFINITY, s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 64) {
    float v = ld(x + i), n = maximum(m, v);
    if (n != -INFINITY) s = s * expf(m - n) + expf(v - n);
    m = n;
  }
  float all = block_max(m);
  s = block_sum(s * expf(m - all));
  for (int i = threadIdx.x; i < d1; i += 64) st(out0 + blockIdx.x * d1 + i, expf(ld(x + i) - all) / s);
}
"""

SOFTMAX_THREAD = """// launch: k<<<cdiv(d0, 32), 32>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int row = blockIdx.x * 32 + threadIdx.x;
  if (row >= d0) return;
  const f32* x = in0 + row * d1;
  float m = -INFINITY, s = 0.0f;
  for (int i = 0; i < d1; ++i) m = maximum(m, ld(x + i));
  for (int i = 0; i < d1; ++i) s += expf(ld(x + i) - m);
  for (int i = 0; i < d1; ++i) st(out0 + row * d1 + i, expf(ld(x + i) - m) / s);
}
"""

LAYERNORM_BLOCK = """// launch: k<<<d0, 128>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const f32* in1, const f32* in2, f32* out0 DIMS) {
  const f32* x = in0 + blockIdx.x * d1;
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 128) s += ld(x + i);
  float mean = block_sum(s) / d1;
  float q = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 128) { float d = ld(x + i) - mean; q += d * d; }
  float r = rsqrtf(block_sum(q) / d1 + 1e-5f);
  for (int i = threadIdx.x; i < d1; i += 128)
    st(out0 + blockIdx.x * d1 + i, (ld(x + i) - mean) * r * ld(in1 + i) + ld(in2 + i));
}
"""

LAYERNORM_WARP = """// launch: k<<<cdiv(d0, 4), 128>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const f32* in1, const f32* in2, f32* out0 DIMS) {
  int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= d0) return;
  const f32* x = in0 + row * d1;
  float s = 0.0f, q = 0.0f;
  for (int i = lane; i < d1; i += 32) s += ld(x + i);
  float mean = warp_sum(s) * (1.0f / d1);
  for (int i = lane; i < d1; i += 32) { float d = ld(x + i) - mean; q = fmaf(d, d, q); }
  float r = 1.0f / sqrtf(warp_sum(q) * (1.0f / d1) + 1e-5f);
  for (int i = lane; i < d1; i += 32)
    st(out0 + row * d1 + i, fmaf((ld(x + i) - mean) * r, ld(in1 + i), ld(in2 + i)));
}
"""

COLUMN_THREAD = """// launch: k<<<cdiv(d1, 64), 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int c = blockIdx.x * 64 + threadIdx.x;
  if (c >= d1) return;
  float s = 0.0f;
  for (int r = 0; r < d0; ++r) s = fmaf(ld(in0 + r * d1 + c), ld(in1 + r * d1 + c), s);
  st(out0 + c, s);
}
"""

COLUMN_SCRATCH = """// scratch: s0 f32[16*d1]
// launch: part<<<dim3(cdiv(d1, 32), 16), 32>>>(in0, in1, s0)
// launch: join<<<cdiv(d1, 32), 32>>>(s0, out0)
__global__ void part(const f32* in0, const f32* in1, f32* s0 DIMS) {
  int c = blockIdx.x * 32 + threadIdx.x;
  if (c >= d1) return;
  float s = 0.0f;
  for (int r = blockIdx.y; r < d0; r += 16) s += ld(in0 + r * d1 + c) * ld(in1 + r * d1 + c);
  s0[blockIdx.y * d1 + c] = s;
}
__global__ void join(const f32* s0, f32* out0 DIMS) {
  int c = blockIdx.x * 32 + threadIdx.x;
  if (c >= d1) return;
  float s = 0.0f;
  for (int p = 0; p < 16; ++p) s += s0[p * d1 + c];
  st(out0 + c, s);
}
"""

COLUMN_ATOMIC = """// scratch: s0 f32[d1] = 0
// launch: add<<<dim3(cdiv(d1, 32), 10), 32>>>(in0, in1, s0)
// launch: copy<<<cdiv(d1, 32), 32>>>(s0, out0)
__global__ void add(const f32* in0, const f32* in1, f32* s0 DIMS) {
  int c = blockIdx.x * 32 + threadIdx.x;
  if (c >= d1) return;
  float s = 0.0f;
  for (int r = blockIdx.y; r < d0; r += 10) s += ld(in0 + r * d1 + c) * ld(in1 + r * d1 + c);
  atomic_add(s0 + c, s);
}
__global__ void copy(const f32* s0, f32* out0 DIMS) {
  int c = blockIdx.x * 32 + threadIdx.x;
  if (c < d1) st(out0 + c, s0[c]);
}
"""

BATCH_BLOCK = """// launch: k<<<d1, 128>>>(in0, out0, out1, out2)
__global__ void k(const f32* in0, f32* out0, f32* out1, f32* out2 DIMS) {
  constexpr int P = d2 * d3;
  constexpr int N = d0 * P;
  int c = blockIdx.x;
  float s = 0.0f;
  for (int i = threadIdx.x; i < N; i += 128) s += ld(in0 + (i / P * d1 + c) * P + i % P);
  float mean = block_sum(s) / N;
  float q = 0.0f;
  for (int i = threadIdx.x; i < N; i += 128) {
    float d = ld(in0 + (i / P * d1 + c) * P + i % P) - mean;
    q += d * d;
  }
  float var = block_sum(q) / N;
  float r = rsqrtf(var + 1e-5f);
  for (int i = threadIdx.x; i < N; i += 128) {
    int at = (i / P * d1 + c) * P + i % P;
    st(out0 + at, (ld(in0 + at) - mean) * r);
  }
  if (threadIdx.x == 0) { st(out1 + c, mean); st(out2 + c, var); }
}
"""

BATCH_SPLIT = """// scratch: s0 f32[2*d1]
// launch: stats<<<d1, 64>>>(in0, s0, out1, out2)
// launch: apply<<<cdiv(d0*d1*d2*d3, 128), 128>>>(in0, s0, out0)
__global__ void stats(const f32* in0, f32* s0, f32* out1, f32* out2 DIMS) {
  constexpr int P = d2 * d3;
  int c = blockIdx.x;
  float n = 0.0f, mean = 0.0f, m2 = 0.0f;
  for (int b = 0; b < d0; ++b)
    for (int i = threadIdx.x; i < P; i += 64) {
      float x = ld(in0 + (b * d1 + c) * P + i);
      n += 1.0f;
      float d = x - mean;
      mean += d / n;
      m2 += d * (x - mean);
    }
  float all = block_sum(n * mean) / (d0 * P);
  float e = mean - all;
  float var = block_sum(m2 + n * e * e) / (d0 * P);
  if (threadIdx.x == 0) {
    s0[c] = all;
    s0[d1 + c] = rsqrtf(var + 1e-5f);
    st(out1 + c, all);
    st(out2 + c, var);
  }
}
__global__ void apply(const f32* in0, const f32* s0, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1 * d2 * d3) return;
  int c = i / (d2 * d3) % d1;
  st(out0 + i, (ld(in0 + i) - s0[c]) * s0[d1 + c]);
}
"""

POOL = """// launch: k<<<cdiv(d0*d1*d4*d5, 128), 128>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1 * d4 * d5) return;
  int x = i % d5, y = i / d5 % d4;
  const f32* p = in0 + i / (d4 * d5) * (d2 * d3);
  float m = -INFINITY;
  for (int a = 0; a < k0; ++a)
    for (int b = 0; b < k1; ++b) {
      int h = 2 * y + a - 1, w = 2 * x + b - 1;
      if (h >= 0 && h < d2 && w >= 0 && w < d3) m = maximum(m, ld(p + h * d3 + w));
    }
  st(out0 + i, m);
}
"""

THRESHOLD = """// launch: k<<<cdiv(d0*d1, 128), 128>>>(in0, in1, out0, out1)
__global__ void k(const f32* in0, const f32* in1, bool* out0, f32* out1 DIMS) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1) return;
  float x = ld(in0 + i);
  bool keep = x > 0.25f;
  st(out0 + i, keep);
  st(out1 + i, (keep ? ld(in1 + i) : 0.0f) * x);
}
"""

ARGMAX = """// launch: k<<<d0, 64>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, i64* out0 DIMS) {
  float best = -INFINITY;
  int at = 2147483647;
  for (int i = threadIdx.x; i < d1; i += 64) {
    float v = ld(in0 + blockIdx.x * d1 + i) + ld(in1 + i);
    if (v > best || at == 2147483647 || (v != v && best == best)) { best = v; at = i; }
  }
  block_argmax(best, at);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, (long long)at);
}
"""

EMBEDDING = """// launch: k<<<d0, 64>>>(in0, in1, in2, out0)
__global__ void k(const f32* in0, const i64* in1, const f32* in2, f32* out0 DIMS) {
  int row = (int)ld(in1 + blockIdx.x);
  for (int i = threadIdx.x; i < d1; i += 64)
    st(out0 + blockIdx.x * d1 + i, (ld(in0 + row * d1 + i) + ld(in2 + blockIdx.x * d1 + i)) * 0.5f);
}
"""

LONG_SUM_BLOCK = """// launch: k<<<d0, 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 256) s += ld(in0 + blockIdx.x * d1 + i) * 1.25f;
  s = block_sum(s);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s);
}
"""

LONG_SUM_WARP = """// launch: k<<<d0, 32>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  float s = 0.0f;
  for (int i = threadIdx.x; i < d1; i += 32) s = fmaf(ld(in0 + blockIdx.x * d1 + i), 1.25f, s);
  s = warp_sum(s);
  if (threadIdx.x == 0) st(out0 + blockIdx.x, s);
}
"""

STRIDED = """// launch: k<<<dim3(cdiv(d1, 32), d0), 32>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y;
  if (c < d1) st(out0 + r * out0_d0 + c, tanhf(ld(in0 + r * in0_d0 + c) * ld(in1 + c * d0 + r)));
}
"""

HONEST: tuple[Honest, ...] = (
    Honest("pointwise scalar", "silu", SILU_SCALAR),
    Honest("pointwise vector", "silu", SILU_VECTOR),
    Honest("pointwise bf16, f32 inside", "silu_bf16", SILU_BF16),
    Honest("pointwise bf16, rounded as eager", "silu_bf16", SILU_BF16_ROUNDED),
    Honest("softmax, block a row", "softmax", SOFTMAX_BLOCK),
    Honest("softmax, warp a row in registers", "softmax", SOFTMAX_WARP),
    Honest("softmax, online", "softmax", SOFTMAX_ONLINE),
    Honest("softmax, thread a row", "softmax", SOFTMAX_THREAD),
    Honest("softmax, blocks that wait", "softmax", more.SOFTMAX_WAITING),
    Honest("layernorm, block, two passes", "layernorm", LAYERNORM_BLOCK),
    Honest("layernorm, warp, fma", "layernorm", LAYERNORM_WARP),
    Honest("column sum, thread a column", "column_sum", COLUMN_THREAD),
    Honest("column sum through scratch", "column_sum", COLUMN_SCRATCH),
    Honest("column sum with atomics", "column_sum", COLUMN_ATOMIC),
    Honest("batch norm, block a channel", "batch_stats", BATCH_BLOCK),
    Honest("batch norm, Welford and a second launch", "batch_stats", BATCH_SPLIT),
    Honest("max pool", "max_pool", POOL),
    Honest("threshold with a mask", "threshold", THRESHOLD),
    Honest("argmax", "argmax", ARGMAX),
    Honest("embedding", "embedding", EMBEDDING),
    Honest("long sum, block", "long_sum", LONG_SUM_BLOCK),
    Honest("long sum, one warp", "long_sum", LONG_SUM_WARP),
    Honest("strided input and output", "strided", STRIDED),
    Honest("expanded input", "expanded", more.EXPANDED),
    Honest("total of 300,000", "total", more.TOTAL),
    Honest("product with bias", "matmul", more.MATMUL),
    Honest("product of bf16", "matmul_bf16", more.MATMUL_BF16),
    Honest("convolution", "convolution", more.CONVOLUTION),
    Honest("masked softmax", "masked_softmax", more.MASKED_SOFTMAX),
    Honest("integers", "integers", more.INTEGERS),
    Honest("any number of rows", "any_rows", more.ANY_ROWS),
    Honest("any number of indices", "any_indices", more.ANY_INDICES),
    Honest("mask of a product", "computed_mask", more.COMPUTED_MASK),
    Honest("root mean square norm, bf16", "rms_bf16", more.RMS_BF16),
    Honest("rounding to i8", "quantise", more.QUANTISE),
    Honest("sums along both axes", "both_sums", more.BOTH_SUMS),
    Honest("running sum", "running_sum", more.RUNNING_SUM),
    Honest("pointwise f64", "silu_f64", more.SILU_F64),
    Honest("any and largest of f16", "any_large", more.ANY_LARGE),
    Honest("argmax of windows, rounded once", "window_argmax", more.WINDOW_ARGMAX),
    Honest("tanh of what a number scales", "scaled_tanh", more.SCALED_TANH),
    Honest("logsumexp of three rows", "three_losses", more.THREE_LOSSES),
    Honest("cosines of bf16", "cosine_bf16", more.COSINE_BF16),
    Honest("mask at a bound that float32 cannot hold", "uneven_mask", more.UNEVEN_MASK),
    Honest("eight masks", "eight_masks", more.EIGHT_MASKS),
    Honest("cast to an integer beside another output", "cast_and_relu", more.CAST_AND_RELU),
    Honest("any number of rows and columns", "any_table", more.ANY_ROWS),
    Honest("product of half types", "half_product", more.HALF_PRODUCT),
    Honest("sum of half types", "half_sum", more.HALF_SUM),
    Honest("cast to a half type", "half_cast", more.HALF_CAST),
    Honest("factors held in a half type", "half_factors", more.HALF_FACTORS),
    Honest("computed factors in float32, others in a half type", "half_factors", more.WHOLE_FACTORS),
    Honest("quotients that may be NaN", "quotient", corners.QUOTIENT),
    Honest("log softmax, thread a row", "log_softmax", corners.LOG_SOFTMAX),
    Honest("affine map and relu", "affine_relu", corners.AFFINE_RELU),
    Honest("vectors of eight over any number", "any_products", corners.ANY_PRODUCTS),
    Honest("eight rows a block, any number of them", "any_products", corners.ANY_PRODUCT_ROWS),
    Honest("norm of rows of any length", "any_norm", corners.ANY_NORM),
    Honest("sums of rows of any length", "any_wide_rows", corners.ANY_WIDE_ROWS),
    Honest("rows of any table", "any_embedding", corners.ANY_EMBEDDING),
    Honest("convolution and a clamp, by a kernel named a", "convolution_relu6", corners.CONVOLUTION_RELU6),
    Honest("where the largest and the smallest are", "both_ends", corners.BOTH_ENDS),
    Honest("squared error of rows", "squared_error", corners.SQUARED_ERROR),
    Honest("gradient of a norm", "norm_gradient", corners.NORM_GRADIENT),
    Honest("missing values replaced", "missing_values", corners.MISSING_VALUES),
    Honest("products of i32 that wrap", "wrapped_products", corners.WRAPPED_PRODUCTS),
    Honest("the maximum of a convolution", "convolution_maximum", corners.CONVOLUTION_MAXIMUM),
    Honest("rows of f16 summed in pairs", "half_row_sums", corners.HALF_ROW_SUMS),
    Honest("long products of f16", "half_long_dot", corners.HALF_LONG_DOT),
    Honest("logarithms and their sums", "logarithms", corners.LOGARITHMS),
    Honest("layernorm, Welford in a tree", "layernorm", corners.LAYERNORM_TREE),
    Honest("any number of rows, counted by ballots", "any_rows", corners.ANY_ROWS_COUNTED),
    Honest("sums of rows of their own lengths", "lengths", ranges.LENGTHS),
    Honest("one class a row", "one_hot", ranges.ONE_HOT),
    Honest("a bound of integers", "until_500", ranges.UNTIL_500),
    Honest("roots", "root", ranges.ROOT),
    Honest("logarithms of a mask", "log_mask", ranges.LOG_MASK),
    Honest("the norm of all", "total_norm", ranges.TOTAL_NORM),
    Honest("absolute values that wrap", "narrow_abs", ranges.NARROW_ABS),
    Honest("means of masked columns", "column_mean", ranges.COLUMN_MEAN),
    Honest("means of the rows of a mask", "chosen_rows", ranges.CHOSEN_ROWS),
    Honest("images of which anything is chosen", "any_image", ranges.ANY_IMAGE),
    Honest("the place before", "previous", ranges.PREVIOUS),
    Honest("any index, held inside", "held_inside", ranges.HELD_INSIDE),
    Honest("sums beyond 32 bits", "wide_counts", ranges.WIDE_COUNTS),
    Honest("the least of integers", "least_integer", ranges.LEAST_INTEGER),
    Honest("all over one number", "over_a_scalar", ranges.OVER_A_SCALAR),
    Honest("products of rows", "row_product", ranges.ROW_PRODUCT),
    Honest("the part of a table that is here", "split_table", ranges.SPLIT_TABLE),
    Honest("rows counted from the end", "from_the_end", ranges.FROM_THE_END),
    Honest("rows from the 700th on", "late_rows", ranges.LATE_ROWS),
    Honest("any number of rows of 512", "rows_of_512", ranges.ROWS_OF_512),
    Honest("a total that blocks share", "shared_total", few.SHARED_TOTAL),
    Honest("a scan in chunks", "chunked_scan", few.CHUNKED_SCAN),
    Honest("a grid with a limit", "strided_rows", few.STRIDED_ROWS),
    Honest("two rows' softmax in one pass", "two_rows", few.TWO_ROWS),
    Honest("rows behind a mask of numbers", "masked_rows", few.MASKED_ROWS),
    Honest("rows in bf16", "bf16_rows", few.BF16_ROWS),
    Honest("the larger of two integers", "larger_of_two", few.LARGER_OF_TWO),
    Honest("the larger of two wide integers", "larger_of_two_wide", few.LARGER_OF_TWO_WIDE),
    Honest("the mean over labels that count", "mean_of_labelled", few.MEAN_OF_LABELLED),
    Honest("an image with a frame", "framed_image", few.FRAMED_IMAGE),
)
