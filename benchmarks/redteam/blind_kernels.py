"""Honest kernels with shared memory, scratch, strides, several launches or symbolic sizes, for blind attacks."""

from __future__ import annotations

from benchmarks.redteam.blind_regions import Base

COOPERATING: dict[str, Base] = {
    "tree": Base(
        """region v1
dims d0=33 d1=250
in0 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in0)
t1 f32[d0] = mean(t0) over d1
t2 f32[d0,d1] = sub(in0, t1)
t3 f32[d0,d1] = mul(t2, in0)
out0 f32[d0,d1] = t3
""",
        """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* a, f32* o DIMS) {
  __shared__ float part[128];
  const int t = threadIdx.x;
  a += blockIdx.x * d1;
  float s = 0;
  for (int i = t; i < d1; i += 128) s += a[i] * a[i];
  part[t] = s;
  __syncthreads();
  for (int n = 64; n > 0; n /= 2) {
    if (t < n) part[t] += part[t + n];
    __syncthreads();
  }
  const float mean = part[0] / d1;
  for (int i = t; i < d1; i += 128) o[blockIdx.x * d1 + i] = (a[i] - mean) * a[i];
}
""",
    ),
    "columns": Base(
        """region v1
dims d0=301 d1=70
in0 f32[d0,d1]
in1 f32[d0,d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = mul(t0, in0)
t2 f32[d1] = sum(t1) over d0
out0 f32[d1] = t2
""",
        """// scratch: s0 f32[d1] = 0
// launch: add<<<dim3(cdiv(d1, 32), 8), dim3(32, 4)>>>(in0, in1, s0)
// launch: put<<<cdiv(d1, 128), 128>>>(s0, out0)
__global__ void add(const f32* a, const f32* b, f32* s DIMS) {
  const int c = blockIdx.x * 32 + threadIdx.x;
  if (c >= d1) return;
  float v = 0;
  for (int r = blockIdx.y * 4 + threadIdx.y; r < d0; r += 32) v += a[r * d1 + c] * b[r * d1 + c] * a[r * d1 + c];
  atomicAdd(s + c, v);
}
__global__ void put(const f32* s, f32* o DIMS) {
  const int c = blockIdx.x * 128 + threadIdx.x;
  if (c < d1) o[c] = s[c];
}
""",
    ),
    "scan": Base(
        """region v1
dims d0=20 d1=300
in0 f32[d0,d1]
t90 f32[d0,d1] = neg(in0)
t91 f32[d0,d1] = neg(t90)
t0 f32[d0,d1] = cumsum(t91) along d1
t1 f32[d0,d1] = mul(t0, in0)
out0 f32[d0,d1] = t1
""",
        """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* a, f32* o DIMS) {
  float carry = 0, total;
  for (int base = 0; base < d1; base += 128) {
    const int i = base + threadIdx.x;
    const float x = i < d1 ? a[blockIdx.x * d1 + i] : 0.0f;
    const float s = block_scan_sum(x, total) + carry;
    if (i < d1) o[blockIdx.x * d1 + i] = s * x;
    carry += total;
  }
}
""",
    ),
    "staged": Base(
        """region v1
dims d0=33 d1=250
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = mul(t1, in0)
t3 f32[d0,d1] = relu(t2)
out0 f32[d0,d1] = t3
""",
        """// scratch: s0 f32[d0]
// launch: means<<<d0, 32>>>(in0, s0)
// launch: apply<<<cdiv(d0*d1, 256), 256>>>(in0, s0, out0)
__global__ void means(const f32* a, f32* s DIMS) {
  float v = 0;
  for (int i = threadIdx.x; i < d1; i += 32) v += a[blockIdx.x * d1 + i];
  v = warp_sum(v);
  if (threadIdx.x == 0) s[blockIdx.x] = v / d1;
}
__global__ void apply(const f32* a, const f32* s, f32* o DIMS) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < d0 * d1) o[i] = relu((a[i] - s[i / d1]) * a[i]);
}
""",
    ),
    "strided": Base(
        """region v1
dims d0=20 d1=60
in0 f32[d0,d1] strides(64,1)
in1 f32[d1,d0]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = tanh(t0)
t2 f32[d0,d1] = mul(t1, in0)
out0 f32[d0,d1] strides(72,1) = t2
""",
        """// launch: k<<<d0, 64>>>(in0, in1, out0)
__global__ void k(const f32* a, const f32* b, f32* o DIMS) {
  const int r = blockIdx.x, c = threadIdx.x;
  if (c < d1) o[r * 72 + c] = tanhf(a[r * 64 + c] * b[c * d0 + r]) * a[r * 64 + c];
}
""",
    ),
    "symbolic": Base(
        """region v1
dims d0=?24 d1=?504
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = mul(in0, in1)
t1 f32[d0,d1] = relu(t0)
t2 f32[d0] = mean(t1) over d1
t3 f32[d0,d1] = sub(t1, t2)
t4 f32[d0,d1] = relu(t3)
out0 f32[d0,d1] = t4
""",
        """// launch: k<<<d0, 128>>>(in0, in1, out0)
__global__ void k(const f32* a, const f32* b, f32* o DIMS) {
  float s = 0;
  a += blockIdx.x * d1;
  for (int i = threadIdx.x; i < d1; i += 128) s += relu(a[i] * b[i]);
  const float mean = block_sum(s) / d1;
  for (int i = threadIdx.x; i < d1; i += 128) o[blockIdx.x * d1 + i] = relu(relu(a[i] * b[i]) - mean);
}
""",
    ),
    "odd_bf16": Base(
        """region v1
dims d0=33 d1=251
in0 bf16[d0,d1]
t90 bf16[d0,d1] = neg(in0)
t91 bf16[d0,d1] = neg(t90)
t0 bf16[d0,d1] = relu(t91)
t1 bf16[d0,d1] = neg(t0)
out0 bf16[d0,d1] = t1
""",
        """// launch: k<<<cdiv(d0*d1, 512), 256>>>(in0, out0)
__global__ void k(const bf16* a, bf16* o DIMS) {
  const int i = (blockIdx.x * 256 + threadIdx.x) * 2;
  if (i >= d0 * d1) return;
  float v[2];
  if (i + 1 < d0 * d1) {
    vload<2>(a + i, v);
    v[0] = -relu(v[0]);
    v[1] = -relu(v[1]);
    vstore<2>(o + i, v);
  } else {
    st(o + i, -relu(ld(a + i)));
  }
}
""",
    ),
    "rare_mean": Base(
        """region v1
dims d0=33 d1=250
in0 f32[d0,d1]
t0 f32[d0] = mean(in0) over d1
t1 bool[d0] = lt(t0, -20.0)
t2 f32[d0,d1] = relu(in0)
t3 f32[d0,d1] = where(t1, in0, t2)
t4 f32[d0,d1] = neg(t3)
out0 f32[d0,d1] = t4
""",
        """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* a, f32* o DIMS) {
  float s = 0;
  a += blockIdx.x * d1;
  for (int i = threadIdx.x; i < d1; i += 128) s += a[i];
  const bool low = block_sum(s) / d1 < -20.0f;
  for (int i = threadIdx.x; i < d1; i += 128) o[blockIdx.x * d1 + i] = -(low ? a[i] : relu(a[i]));
}
""",
    ),
    "all_negative": Base(
        """region v1
dims d0=33 d1=250
in0 f32[d0,d1]
t0 bool[d0,d1] = lt(in0, 0.0)
t1 bool[d0] = all(t0) over d1
t2 f32[d0,d1] = relu(in0)
t3 f32[d0,d1] = where(t1, in0, t2)
out0 f32[d0,d1] = t3
""",
        """// launch: k<<<d0, 128>>>(in0, out0)
__global__ void k(const f32* a, f32* o DIMS) {
  bool all = true;
  a += blockIdx.x * d1;
  for (int i = threadIdx.x; i < d1; i += 128) all = all && a[i] < 0;
  all = block_all(all);
  for (int i = threadIdx.x; i < d1; i += 128) o[blockIdx.x * d1 + i] = all ? a[i] : relu(a[i]);
}
""",
    ),
}
