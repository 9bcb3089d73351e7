"""Honest kernels of layers (norm, pooling, products, gathers, argmax), for the blind attacks."""

from __future__ import annotations

from benchmarks.redteam.blind_regions import Base

LAYERS: dict[str, Base] = {
    "stats": Base(
        """region v1
dims d0=4 d1=12 d2=9 d3=9
in0 f32[d0,d1,d2,d3]
in1 f32[d1]
t0 f32[d1] = mean(in0) over d0,d2,d3
t1 f32[d0,d1,d2,d3] = sub(in0, t0)
t2 f32[d0,d1,d2,d3] = mul(t1, t1)
t3 f32[d1] = mean(t2) over d0,d2,d3
t4 f32[d1] = add(t3, 1e-05)
t5 f32[d1] = rsqrt(t4)
t6 f32[d0,d1,d2,d3] = mul(t1, t5)
t7 f32[d0,d1,d2,d3] = mul(t6, in1)
out0 f32[d0,d1,d2,d3] = t7
out1 f32[d1] = t0
out2 f32[d1] = t3
""",
        """// launch: k<<<d1, 128>>>(in0, in1, out0, out1, out2)
__global__ void k(const f32* a, const f32* b, f32* o, f32* mean_o, f32* var_o DIMS) {
  const int c = blockIdx.x, t = threadIdx.x, n = d0 * d2 * d3, plane = d2 * d3;
  float s = 0;
  for (int i = t; i < n; i += 128) s += a[(i / plane * d1 + c) * plane + i % plane];
  const float mean = block_sum(s) / n;
  s = 0;
  for (int i = t; i < n; i += 128) {
    const float x = a[(i / plane * d1 + c) * plane + i % plane] - mean;
    s += x * x;
  }
  const float var = block_sum(s) / n, r = rsqrtf(var + 1e-5f) * b[c];
  for (int i = t; i < n; i += 128) {
    const int at = (i / plane * d1 + c) * plane + i % plane;
    o[at] = (a[at] - mean) * r;
  }
  if (t == 0) {
    mean_o[c] = mean;
    var_o[c] = var;
  }
}
""",
    ),
    "pool": Base(
        """region v1
dims d0=3 d1=5 d2=15 d3=14 d4=8 d5=7 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
t0 f32[d0,d1,d2,d3] = relu(in0)
t1 f32[d0,d1,d2,d3] = neg(t0)
t2 f32[d0,d1,d4,d5] = amax(t1[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
out0 f32[d0,d1,d4,d5] = t2
""",
        """// launch: k<<<cdiv(d0*d1*d4*d5, 128), 128>>>(in0, out0)
__global__ void k(const f32* a, f32* o DIMS) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1 * d4 * d5) return;
  const int x = i % d5, y = i / d5 % d4;
  const f32* p = a + i / (d4 * d5) * d2 * d3;
  float m = -INFINITY;
  for (int ky = 0; ky < 3; ky++)
    for (int kx = 0; kx < 3; kx++) {
      const int r = 2 * y + ky - 1, c = 2 * x + kx - 1;
      if (r >= 0 && r < d2 && c >= 0 && c < d3) m = maximum(m, -relu(p[r * d3 + c]));
    }
  o[i] = m;
}
""",
    ),
    "average": Base(
        """region v1
dims d0=3 d1=5 d2=15 d3=14 d4=8 d5=7 k0=3 k1=3
in0 bf16[d0,d1,d2,d3]
t90 bf16[d0,d1,d2,d3] = neg(in0)
t91 bf16[d0,d1,d2,d3] = neg(t90)
t0 f32[d0,d1,d2,d3] = cast(t91)
t1 f32[d0,d1,d4,d5] = sum(t0[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
t2 f32[d0,d1,d4,d5] = mul(t1, 0.1111111111111111)
out0 f32[d0,d1,d4,d5] = t2
""",
        """// launch: k<<<cdiv(d0*d1*d4*d5, 128), 128>>>(in0, out0)
__global__ void k(const bf16* a, f32* o DIMS) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d0 * d1 * d4 * d5) return;
  const int x = i % d5, y = i / d5 % d4;
  const bf16* p = a + i / (d4 * d5) * d2 * d3;
  float s = 0;
  for (int ky = 0; ky < 3; ky++)
    for (int kx = 0; kx < 3; kx++) {
      const int r = 2 * y + ky - 1, c = 2 * x + kx - 1;
      if (r >= 0 && r < d2 && c >= 0 && c < d3) s += ld(p + r * d3 + c);
    }
  o[i] = s * 0.11111111f;
}
""",
    ),
    "matmul": Base(
        """region v1
dims d0=40 d1=37 d2=50
in0 f32[d0,d2]
in1 f32[d2,d1]
t0 f32[d0,d1] = dot(in0, in1) over d2
t1 f32[d0,d1] = relu(t0)
t2 f32[d0,d1] = mul(t1, 0.5)
t3 f32[d0,d1] = neg(t2)
t4 f32[d0,d1] = neg(t3)
t5 f32[d0,d1] = mul(t4, t0)
out0 f32[d0,d1] = t5
""",
        """// launch: k<<<dim3(cdiv(d1, 32), cdiv(d0, 4)), dim3(32, 4)>>>(in0, in1, out0)
__global__ void k(const f32* a, const f32* b, f32* o DIMS) {
  const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 4 + threadIdx.y;
  if (c >= d1 || r >= d0) return;
  float s = 0;
  for (int k = 0; k < d2; k++) s += ld(a + r * d2 + k) * ld(b + k * d1 + c);
  st(o + r * d1 + c, relu(s) * 0.5f * s);
}
""",
    ),
    "matmul_bf16": Base(
        """region v1
dims d0=40 d1=37 d2=515
in0 bf16[d0,d2]
in1 bf16[d2,d1]
t0 bf16[d0,d1] = dot(in0, in1) over d2
t1 bf16[d0,d1] = relu(t0)
t2 bf16[d0,d1] = mul(t1, 0.5)
t3 bf16[d0,d1] = neg(t2)
t4 bf16[d0,d1] = neg(t3)
t5 bf16[d0,d1] = mul(t4, t0)
out0 bf16[d0,d1] = t5
""",
        """// launch: k<<<dim3(cdiv(d1, 32), cdiv(d0, 4)), dim3(32, 4)>>>(in0, in1, out0)
__global__ void k(const bf16* a, const bf16* b, bf16* o DIMS) {
  const int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 4 + threadIdx.y;
  if (c >= d1 || r >= d0) return;
  float s = 0;
  for (int k = 0; k < d2; k++) s += ld(a + r * d2 + k) * ld(b + k * d1 + c);
  st(o + r * d1 + c, relu(s) * 0.5f * s);
}
""",
    ),
    "gather": Base(
        """region v1
dims d0=60 d1=48 d2=3001
in0 f32[d2,d1]
in1 i64[d0] in [0,d2)
in2 f32[d0,d1]
t0 f32[d0,d1] = add(in0[d2=in1], in2)
t1 f32[d0,d1] = relu(t0)
t2 f32[d0,d1] = mul(t1, in2)
out0 f32[d0,d1] = t2
""",
        """// launch: k<<<d0, 48>>>(in0, in1, in2, out0)
__global__ void k(const f32* w, const i64* index, const f32* b, f32* o DIMS) {
  const int i = blockIdx.x * d1 + threadIdx.x;
  const i64 row = index[blockIdx.x];
  o[i] = relu(w[row * d1 + threadIdx.x] + b[i]) * b[i];
}
""",
    ),
    "argmax": Base(
        """region v1
dims d0=40 d1=130
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = add(in0, in1)
t1 f32[d0,d1] = mul(t0, 0.5)
t2 i64[d0] = argmax(t1) over d1
t3 f32[d0] = amax(t1) over d1
out0 i64[d0] = t2
out1 f32[d0] = t3
""",
        """// launch: k<<<d0, 32>>>(in0, in1, out0, out1)
__global__ void k(const f32* a, const f32* b, i64* o, f32* m DIMS) {
  float best = -INFINITY;
  int at = 1 << 30;
  for (int i = threadIdx.x; i < d1; i += 32) {
    const float v = (a[blockIdx.x * d1 + i] + b[i]) * 0.5f;
    if (v > best || (v != v && best == best) || at == 1 << 30) best = v, at = i;
  }
  warp_argmax(best, at);
  if (threadIdx.x == 0) {
    o[blockIdx.x] = at;
    m[blockIdx.x] = best;
  }
}
""",
    ),
    "argmax_bf16": Base(
        """region v1
dims d0=40 d1=130
in0 bf16[d0,d1]
t90 bf16[d0,d1] = neg(in0)
t91 bf16[d0,d1] = neg(t90)
t92 bf16[d0,d1] = neg(t91)
t93 bf16[d0,d1] = neg(t92)
t2 i64[d0] = argmax(t93) over d1
out0 i64[d0] = t2
""",
        """// launch: k<<<d0, 32>>>(in0, out0)
__global__ void k(const bf16* a, i64* o DIMS) {
  float best = -INFINITY;
  int at = 1 << 30;
  for (int i = threadIdx.x; i < d1; i += 32) {
    const float v = ld(a + blockIdx.x * d1 + i);
    if (v > best || (v != v && best == best) || at == 1 << 30) best = v, at = i;
  }
  warp_argmax(best, at);
  if (threadIdx.x == 0) o[blockIdx.x] = at;
}
""",
    ),
}
