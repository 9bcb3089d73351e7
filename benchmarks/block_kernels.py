"""A short kernel over each building block of the device header, in Reply V1, with the work that it does.

    for block in blocks(): ...      sizes that fill an H100; blocks(small=True): seconds each on the host target

Blocks that do the same work name the same `Work`, so that they are checked and timed side by side. Operands lie as
the teachers lay them: weights, and what wgmma reads, are packed by a launch of their own, which is in the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from string import Template

from cudal1_fx_passes.program import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Work:
    """What is computed."""

    name: str
    size: str
    region: str  # Region text V1


@dataclass(frozen=True, slots=True)
class Block:
    """One kernel over one block of the header."""

    name: str  # the block, as the header calls it
    dtype: str  # the arithmetic: of products a type of product.cuh, else the dtype in memory
    work: Work
    code: str  # device code with its launch plan

    @property
    def ident(self) -> str:
        return f"{self.name} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Of a product. warp: rows and columns of a warp, of product_pipe and product_patch; stages: copied ahead."""

    m: int
    n: int
    k: int
    warp: tuple[int, int] = (0, 0)
    stages: int = 3

    @property
    def warps(self) -> int:
        return (self.m // self.warp[0]) * (self.n // self.warp[1])


def blocks(small: bool = False) -> Iterator[Block]:
    yield from _vectors(small)
    yield from _rows(small)
    yield from _waits(small)
    yield from _scans(small)
    yield from _windows(small)
    yield from _matrices(small)
    yield from _split_sums(small)
    yield from _convolutions(small)
    yield from _transposed(small)


def _work(name: str, sizes: Mapping[str, int], *lines: str, size: str = "") -> Work:
    """size: by default that of all axes."""
    dims = " ".join(f"{axis}={n}" for axis, n in sizes.items())
    shown = size or "x".join(str(n) for n in sizes.values())
    return Work(name, shown, "\n".join(["region v1", f"dims {dims}", *lines]) + "\n")


def _fill(text: str, **words: object) -> str:
    return Template(text.lstrip("\n")).substitute({k: str(v) for k, v in words.items()})


# ---------------------------------------------------------------- memory
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


def _vectors(small: bool) -> Iterator[Block]:
    for t, v in (("f32", 4), ("bf16", 8)):
        n = 4096 if small else 1 << 26
        work = _work(f"relu {t}", {"d0": n}, f"in0 {t}[d0]", f"t0 {t}[d0] = relu(in0)", f"out0 {t}[d0] = t0")
        yield Block("vload_vstore", t, work, _fill(COPY, T=t, V=v))


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


def _rows(small: bool) -> Iterator[Block]:
    for name, text, n, width in (("warp_sum", WARP_ROWS, 65536, 1024), ("block_sum", BLOCK_ROWS, 8192, 8192)):
        sizes = {"d0": 5, "d1": 1200} if small else {"d0": n, "d1": width}
        reduced = ("in0 f32[d0,d1]", "t0 f32[d0] = sum(in0) over d1", "out0 f32[d0] = t0")
        yield Block(name, "f32", _work("row sums", sizes, *reduced), _fill(text))
    sizes = {"d0": 2, "d1": 9000} if small else {"d0": 528, "d1": 131072}
    lines = ("in0 f32[d0,d1]", "t0 f32[d0] = logsumexp(in0) over d1", "out0 f32[d0] = t0")
    yield Block("online_logsumexp", "f32", _work("log-sum-exp of rows", sizes, *lines), _fill(ONLINE))


# ---------------------------------------------------------------- blocks that wait
BATCH_NORM = """
// scratch: s0 f32[d1, 49]
// scratch: s1 f32[d1, 49]
// scratch: s2 i32[d1] = 0
// launch: k<<<d1 * 49, 256>>>(in0, out0, s0, s1, s2)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0, f32* __restrict__ s0,
                                         f32* __restrict__ s1, i32* __restrict__ s2 DIMS) {
  constexpr int total = d0 * d2, n = cdiv(total, 49 * 4) * 4, C = cdiv(n, 256 * 4);
  const int g = blockIdx.x / 49, q = blockIdx.x % 49;
  const int from = min(q * n, total), to = min(from + n, total);
  const auto place = [&](int c) { return (c / d2 * d1 + g) * d2 + c % d2; };
  float v[C][4], sum = 0.0f, squares = 0.0f;
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    vload<4>(in0 + place(c), v[k]);
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += v[k][j];
  }
  sum = block_sum(sum);
  const float own = sum / max(to - from, 1);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    if (from + (k * 256 + threadIdx.x) * 4 >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) squares += (v[k][j] - own) * (v[k][j] - own);
  }
  squares = block_sum(squares);
  if (threadIdx.x == 0) {
    st(s0 + g * 49 + q, sum);
    st(s1 + g * 49 + q, squares);
  }
  wait_for_blocks(s2 + g, 49);
  sum = threadIdx.x < 49 ? ld(s0 + g * 49 + threadIdx.x) : 0.0f;
  squares = threadIdx.x < 49 ? ld(s1 + g * 49 + threadIdx.x) : 0.0f;
  const float mean = block_sum(sum) / total;
  const int held = max(min(n, total - (int)threadIdx.x * n), 0);
  const float away = sum / max(held, 1) - mean;
  const float scale = rsqrtf(block_sum(squares + held * away * away) / total + 1e-05f);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) v[k][j] = (v[k][j] - mean) * scale;
    vstore<4>(out0 + place(c), v[k]);
  }
}
"""
SOFTMAX = """
// scratch: s0 f32[d0, 16]
// scratch: s1 f32[d0, 16]
// scratch: s2 i32[d0, 2] = 0
// launch: k<<<d0 * 16, 256>>>(in0, out0, s0, s1, s2)
__global__ void __launch_bounds__(256) k(const f32* __restrict__ in0, f32* __restrict__ out0, f32* __restrict__ s0,
                                         f32* __restrict__ s1, i32* __restrict__ s2 DIMS) {
  constexpr int n = cdiv(d1, 16 * 4) * 4, C = cdiv(n, 256 * 4);
  const int g = blockIdx.x / 16, q = blockIdx.x % 16;
  const int from = min(q * n, d1), to = min(from + n, d1);
  float v[C][4], most = lowest<f32>(), sum = 0.0f;
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    vload<4>(in0 + g * d1 + c, v[k]);
    #pragma unroll
    for (int j = 0; j < 4; j++) most = maximum(most, v[k][j]);
  }
  most = block_max(most);
  if (threadIdx.x == 0) st(s0 + g * 16 + q, most);
  wait_for_blocks(s2 + g * 2, 16);
  most = block_max(threadIdx.x < 16 ? ld(s0 + g * 16 + threadIdx.x) : lowest<f32>());
  #pragma unroll
  for (int k = 0; k < C; k++) {
    if (from + (k * 256 + threadIdx.x) * 4 >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) sum += v[k][j] = expf(v[k][j] - most);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) st(s1 + g * 16 + q, sum);
  wait_for_blocks(s2 + g * 2 + 1, 16);
  sum = block_sum(threadIdx.x < 16 ? ld(s1 + g * 16 + threadIdx.x) : 0.0f);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = from + (k * 256 + threadIdx.x) * 4;
    if (c >= to) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) v[k][j] /= sum;
    vstore<4>(out0 + g * d1 + c, v[k]);
  }
}
"""


def _waits(small: bool) -> Iterator[Block]:
    large = ({"d0": 32, "d1": 128, "d2": 112 * 112}, {"d0": 32, "d1": 256, "d2": 56 * 56})
    for sizes in ({"d0": 3, "d1": 2, "d2": 1200},) if small else large:
        norm = _work(
            "batch norm",
            sizes,
            "in0 f32[d0,d1,d2]",
            "t0 f32[d1] = mean(in0) over d0,d2",
            "t1 f32[d1] = var(in0, 0) over d0,d2",
            "t2 f32[d1] = add(t1, 1e-05)",
            "t3 f32[d1] = rsqrt(t2)",
            "t4 f32[d0,d1,d2] = sub(in0, t0)",
            "t5 f32[d0,d1,d2] = mul(t4, t3)",
            "out0 f32[d0,d1,d2] = t5",
        )
        yield Block("wait_for_blocks", "f32", norm, _fill(BATCH_NORM))
    softmax = _work(
        "softmax of rows",
        {"d0": 1, "d1": 20000} if small else {"d0": 256, "d1": 131072},
        "in0 f32[d0,d1]",
        "t0 f32[d0] = amax(in0) over d1",
        "t1 f32[d0,d1] = sub(in0, t0)",
        "t2 f32[d0,d1] = exp(t1)",
        "t3 f32[d0] = sum(t2) over d1",
        "t4 f32[d0,d1] = div(t2, t3)",
        "out0 f32[d0,d1] = t4",
    )
    yield Block("wait_for_blocks", "f32", softmax, _fill(SOFTMAX))


# ---------------------------------------------------------------- scans
CARRY = """
// launch: k<<<d0, 512>>>(in0, out0)
__global__ void __launch_bounds__(512) k(const f32* __restrict__ in0, f32* __restrict__ out0 DIMS) {
  float q[2][4], carry = 0.0f;
  for (int b = 0; b < d1; b += 2 * 512 * 4) {
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      const int c = min(b + (k * 512 + (int)threadIdx.x) * 4, d1 - 4);
      vload<4>(in0 + blockIdx.x * d1 + c, q[k]);
    }
    block_scan_sum(q, carry);
    #pragma unroll
    for (int k = 0; k < 2; k++) {
      const int c = b + (k * 512 + threadIdx.x) * 4;
      if (c < d1) vstore<4>(out0 + blockIdx.x * d1 + c, q[k]);
    }
  }
}
"""
LOOK_BACK = """
// scratch: s0 f32[d0, 64]
// scratch: s1 i32[d0] = 0
// launch: k<<<d0 * 64, 512>>>(in0, out0, s0, s1)
__global__ void __launch_bounds__(512) k(const f32* __restrict__ in0, f32* __restrict__ out0, f32* __restrict__ s0,
                                         i32* __restrict__ s1 DIMS) {
  constexpr int C = cdiv(d1, 64 * 512 * 4);
  const int g = blockIdx.x / 64, part = blockIdx.x % 64, b = part * C * 512 * 4;
  float q[C][4], carry = 0.0f;
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = b + (k * 512 + threadIdx.x) * 4;
    if (c < d1) vload<4>(in0 + g * d1 + c, q[k]);
    else for (int j = 0; j < 4; j++) q[k][j] = 0.0f;
  }
  block_scan_sum(q, carry);
  carry = block_before_sum(s0 + g * 64, s1 + g, part, 64, carry);
  #pragma unroll
  for (int k = 0; k < C; k++) {
    const int c = b + (k * 512 + threadIdx.x) * 4;
    if (c >= d1) break;
    #pragma unroll
    for (int j = 0; j < 4; j++) q[k][j] += carry;
    vstore<4>(out0 + g * d1 + c, q[k]);
  }
}
"""


def _scans(small: bool) -> Iterator[Block]:
    lines = ("in0 f32[d0,d1]", "t0 f32[d0,d1] = cumsum(in0) along d1", "out0 f32[d0,d1] = t0")
    for name, text, sizes in (
        ("block_scan_sum", CARRY, {"d0": 2, "d1": 5000} if small else {"d0": 1056, "d1": 65536}),
        ("block_before_sum", LOOK_BACK, {"d0": 1, "d1": 20000} if small else {"d0": 64, "d1": 1 << 20}),
    ):
        yield Block(name, "f32", _work("running sums", sizes, *lines), _fill(text))


# ---------------------------------------------------------------- windows
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


def _windows(small: bool) -> Iterator[Block]:
    planes, n = (3, 13) if small else (64 * 64, 112)
    sizes = {"d0": planes, "d1": n, "d2": n, "d3": (n + 1) // 2, "d4": (n + 1) // 2, "k0": 3, "k1": 3}
    pooled = "t0 f32[d0,d3,d4] = amax(in0[d1=2*d3+k0-1, d2=2*d4+k1-1]) over k0,k1"
    lines = ("in0 f32[d0,d1,d2]", pooled, "out0 f32[d0,d3,d4] = t0")
    work = _work("max pooling", sizes, *lines, size=f"{planes}x{n}x{n}, 3x3 at stride 2")
    yield Block("window_walk", "f32", work, _fill(POOLING))
    for batch, channels, n, k in ((2, 3, 13, 3),) if small else ((128, 144, 56, 3), (64, 96, 56, 7)):
        sizes = {"d0": batch, "d1": channels, "d2": n, "d3": n, "d4": n, "d5": n, "k0": k, "k1": k}
        read = f"in0[d2=d4+k0-{k // 2}, d3=d5+k1-{k // 2}]"
        work = _work(
            "depthwise convolution",
            sizes,
            "in0 f32[d0,d1,d2,d3]",
            "in1 f32[d1,k0,k1]",
            f"t0 f32[d0,d1,d4,d5] = dot_tf32({read}, in1) over k0,k1",
            "out0 f32[d0,d1,d4,d5] = t0",
            size=f"{batch}x{channels}x{n}x{n}, {k}x{k}",
        )
        yield Block("strip_in_registers", "f32", work, _fill(STRIP))


# ---------------------------------------------------------------- products
# a row of an operand as a functor of k, for product_tile; and of tap and k, for product_taps
CALLS = {
    "product_tile": """
  product_tile<$A, $BM, $BN, $BK, 8, 8>($DEPTH,
    [&](int m) {
      const auto p = a(m)(0);
      return [=](int k) { return p ? ld(p + k) : 0.0f; };
    },
    [&](int n) {
      const auto p = b(n)(0);
      return [=](int k) { return p ? ld(p + k) : 0.0f; };
    },
    [&](int m, int n, float v) { c(m)(n, v); });""",
    "product_taps": """
  product_taps<$A, $BM, $BN, $BK, 1, 8>($TAPS, $DEPTH,
    [&](int m) {
      const auto place = a(m);
      return [=](int tap) {
        const auto p = place(tap);
        return [=](int k) { return p ? ld(p + k * $SA) : 0.0f; };
      };
    },
    [&](int n) {
      const auto place = b(n);
      return [=](int tap) {
        const auto p = place(tap);
        return [=](int k) { return p ? ld(p + k) : 0.0f; };
      };
    },
    [&](int m, int n, float v) { c(m)(n, v); });""",
    "product_pipe": """
  product_pipe<$A, $BM, $BN, $BK, $WM, $WN, $STAGES, $VA, $SA, $VB, 1>($TAPS, $DEPTH, a, b, c);""",
    "product_wide": """
  product_wide<$A, $BM, $BN, $BK, $STAGES>($TAPS, $DEPTH, a, b, c);""",
    "product_patch": """
  const int first = ((m0 / (d5 * d6) * d2 + m0 / d6 % d5) - 1) * d3 + m0 % d6 - 1;
  const auto patch = [&](int p) {
    const int at = first + p, i0 = at / (d2 * d3), i = at % (d2 * d3);
    const bool inside = at >= 0 && at < d0 * d2 * d3;
    return [=](int) {
      return [=](int k) { return inside ? ld(image + (i0 * d1 + k) * (d2 * d3) + i) : 0.0f; };
    };
  };
  const auto place = [&](int m) {
    const int i = m0 + m, i0 = i / (d5 * d6), i5 = i / d6 % d5, i6 = i % d6;
    return [=](int, int tap) {
      const int i2 = i5 + tap / k1 - 1, i3 = i6 + tap % k1 - 1;
      const bool inside = i < d0 * d5 * d6 && i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
      return inside ? (i0 * d2 + i2) * d3 + i3 - first : -1;
    };
  };
  product_patch<$A, $BM, $BN, $BK, $WM, $WN, k0 * k1, 1, $PLACES, $VB, 1>(1, $DEPTH, patch, place, b, c);""",
}
MATRIX = """
__global__ void __launch_bounds__($THREADS) k(const $T* __restrict__ left, const $T* __restrict__ right,
                                              $SUM* __restrict__ out DIMS) {
  const int m0 = blockIdx.x * $BM, n0 = blockIdx.y * $BN, begin = blockIdx.z * $DEPTH;
  const auto a = [&](int m) {
    const int i = m0 + m;
    return [=](int) { return i < d0 ? left + i * d1 + begin : nullptr; };
  };
  const auto b = [&](int n) {
    const int j = n0 + n;
    return [=](int) { return j < d2 ? right + j * d1 + begin : nullptr; };
  };
  const auto c = [&](int m) {
    const int i = m0 + m;
    return [=](int n, float v) {
      if (i < d0 && n0 + n < d2) st(out + (blockIdx.z * d2 + n0 + n) * d0 + i, v);
    };
  };
$CALL
}
"""
MATRIX_LAUNCH = "// launch: k<<<dim3(cdiv(d0, $BM), cdiv(d2, $BN)), $THREADS, $BYTES>>>(in0, in1, out0)\n"
ROUNDED_LAUNCH = """
// scratch: s0 f32[d0, d1]
// scratch: s1 f32[d2, d1]
// launch: pack<<<cdiv((d0 + d2) * d1, 1024), 256>>>(in0, in1, s0, s1)
// launch: k<<<dim3(cdiv(d0, $BM), cdiv(d2, $BN)), $THREADS, $BYTES>>>(s0, s1, out0)
__global__ void __launch_bounds__(256) pack(const f32* __restrict__ in0, const f32* __restrict__ in1,
                                            f32* __restrict__ s0, f32* __restrict__ s1 DIMS) {
  const int i = (blockIdx.x * 256 + threadIdx.x) * 4, j = i - d0 * d1;
  if (j >= d2 * d1) return;
  float v[4];
  vload<4>(j < 0 ? in0 + i : in1 + j, v);
  #pragma unroll
  for (int q = 0; q < 4; q++) v[q] = round_to<tf32>(v[q]);
  vstore<4>(j < 0 ? s0 + i : s1 + j, v);
}
"""
SPLIT_LAUNCH = """
// scratch: s0 f32[$PARTS, d2, d0]
// launch: k<<<dim3(cdiv(d0, $BM), cdiv(d2, $BN), $PARTS), $THREADS, $BYTES>>>(in0, in1, s0)
// launch: add_up<<<cdiv(d0 * d2, 256), 256>>>(s0, out0)
__global__ void __launch_bounds__(256) add_up(const f32* __restrict__ s0, $T* __restrict__ out0 DIMS) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= d0 * d2) return;
  float sum = 0.0f;
  #pragma unroll 8
  for (int z = 0; z < $PARTS; z++) sum += ld(s0 + z * (d0 * d2) + i);
  st(out0 + i, sum);
}
"""
MEMORY = {"tf32": "f32", "f32_split": "f32"}  # what lies in memory; else the arithmetic itself
WIDTH = {"f16": "half", "bf16": "half"}  # what tiles are chosen by; else the arithmetic itself
MATRIX_TILES = {
    ("product_tile", "f32"): Tile(128, 128, 16),
    ("product_tile", "f32_split"): Tile(128, 128, 16),
    ("product_tile", "tf32"): Tile(128, 128, 16),
    ("product_tile", "half"): Tile(128, 128, 32),
    ("product_pipe", "f32_split"): Tile(128, 128, 32, (64, 32)),
    ("product_pipe", "tf32"): Tile(128, 128, 32, (64, 64)),
    ("product_pipe", "half"): Tile(256, 128, 64, (64, 64)),
    ("product_wide", "tf32"): Tile(256, 128, 32, stages=4),
    ("product_wide", "half"): Tile(256, 128, 64, stages=4),
}
CONVOLUTION_TILES = {
    ("product_taps", "f32_split"): Tile(128, 128, 16),
    ("product_taps", "tf32"): Tile(128, 128, 16),
    ("product_taps", "half"): Tile(128, 128, 32),
    ("product_pipe", "f32_split"): Tile(128, 128, 32, (64, 32)),
    ("product_pipe", "tf32"): Tile(128, 128, 32, (64, 64)),
    ("product_pipe", "half"): Tile(128, 128, 32, (64, 64)),
    ("product_patch", "f32_split"): Tile(128, 128, 32, (64, 32)),
    ("product_patch", "tf32"): Tile(128, 128, 32, (64, 64)),
    ("product_patch", "half"): Tile(128, 128, 32, (64, 64)),
    ("product_wide", "tf32"): Tile(192, 128, 32, stages=5),
    ("product_wide", "half"): Tile(192, 128, 64, stages=5),
}
TRANSPOSED_TILES = {
    at: tile for at, tile in CONVOLUTION_TILES.items() if at[0] in ("product_taps", "product_pipe")
}
TRANSPOSED_TILES |= {at: tile for at, tile in MATRIX_TILES.items() if at[0] == "product_wide"}


def _threads(name: str, tile: Tile) -> int:
    if name == "product_wide":
        return 2 * tile.m
    return 32 * tile.warps if tile.warp[0] else 256


def _bytes(name: str, tile: Tile, item: int, a_along: bool, places: int = 0) -> int:
    """Dynamic shared memory, as the header's files say; b lies along k."""
    row, b = tile.k * item + 16, tile.n * (tile.k * item + 16)
    if name == "product_wide":
        return 1024 + max(tile.stages * (tile.m + tile.n) * tile.k * item, tile.n * (tile.m + 4) * 4)
    if name == "product_patch":
        return (2 * places + 1) * row + 3 * b
    if name == "product_pipe":
        return tile.stages * ((tile.m * row if a_along else tile.k * (tile.m + 8) * item) + b)
    return 0


def _words(name: str, arithmetic: str, tile: Tile, a_along: bool, places: int = 0) -> dict[str, object]:
    t = MEMORY.get(arithmetic, arithmetic)
    item = ITEM_BYTES[t]
    ready = arithmetic == "tf32" and name in ("product_pipe", "product_patch") and not a_along
    return {
        "A": "tf32_ready" if ready else arithmetic,
        "T": t,
        "BM": tile.m,
        "BN": tile.n,
        "BK": tile.k,
        "WM": tile.warp[0],
        "WN": tile.warp[1],
        "STAGES": tile.stages,
        "VA": 16 // item if a_along else 1,
        "SA": 1 if a_along else "(d2 * d3)",
        "VB": 16 // item,
        "PLACES": places,
        "THREADS": _threads(name, tile),
        "BYTES": _bytes(name, tile, item, a_along, places),
    }


def _matrix_work(arithmetic: str, sizes: Mapping[str, int]) -> Work:
    t, fn = MEMORY.get(arithmetic, arithmetic), "dot_tf32" if arithmetic == "tf32" else "dot"
    made = f"t0 {t}[d0,d2] = {fn}(in0, in1) over d1"
    return _work("matrix product", sizes, f"in0 {t}[d0,d1]", f"in1 {t}[d2,d1]", made, f"out0 {t}[d2,d0] = t0")


def _matrix(name: str, arithmetic: str, work: Work, launch: str, **more: object) -> Block:
    tile = MATRIX_TILES[name, WIDTH.get(arithmetic, arithmetic)]
    words = _words(name, arithmetic, tile, a_along=True) | {"TAPS": 1, "DEPTH": "d1"}
    words |= {"SUM": words["T"]} | more
    code = _fill(launch, **words) + _fill(MATRIX, CALL=_fill(CALLS[name], **words), **words)
    return Block(name, arithmetic, work, code)


def _matrices(small: bool) -> Iterator[Block]:
    for m, k, n in ((136, 72, 24),) if small else ((4096, 4096, 4096), (2048, 1024, 2048)):
        for arithmetic in ("f32", "f32_split", "tf32", "f16", "bf16"):
            work = _matrix_work(arithmetic, {"d0": m, "d1": k, "d2": n})
            for name in _named(MATRIX_TILES, arithmetic):
                packed = (name, arithmetic) == ("product_wide", "tf32")
                yield _matrix(name, arithmetic, work, ROUNDED_LAUNCH if packed else MATRIX_LAUNCH)


def _named(tiles: Mapping[tuple[str, str], Tile], arithmetic: str) -> list[str]:
    return [name for name, width in tiles if width == WIDTH.get(arithmetic, arithmetic)]


def _split_sums(small: bool) -> Iterator[Block]:
    """Long sums of few results: parts of them in blocks of their own, added up from scratch."""
    sizes = {"d0": 72, "d1": 128, "d2": 40} if small else {"d0": 512, "d1": 16384, "d2": 512}
    for name, arithmetic, parts in (("product_pipe", "f32_split", 8), ("product_wide", "bf16", 16)):
        parts = 2 if small else parts
        more = {"PARTS": parts, "DEPTH": sizes["d1"] // parts, "SUM": "f32"}
        block = _matrix(name, arithmetic, _matrix_work(arithmetic, sizes), SPLIT_LAUNCH, **more)
        yield Block(f"split_{name}", arithmetic, block.work, block.code)


IMAGE = """
__global__ void __launch_bounds__($THREADS) k(const $T* __restrict__ image, const $T* __restrict__ weight,
                                              $T* __restrict__ out0 DIMS) {
  $START
  const auto a = [&](int m) {
    $DECODE
    return [=](int tap) {
      const int w = $TAP, i2 = $I2, i3 = $I3;
      const bool inside = i < $ROWS && i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
      return inside ? image + $PLACE : nullptr;
    };
  };
  const auto b = [&](int n) {
    const int j = n0 + n;
    return [=](int tap) { return j < d4 ? weight + (($TAP) * d4 + j) * d1 : nullptr; };
  };
  const auto c = [&](int m) {
    $DECODE
    return [=](int n, float v) {
      const int j = n0 + n;
      if (i < $ROWS && j < d4) st(out0 + ((i0 * d4 + j) * d5 + i5) * d6 + i6, v);
    };
  };
$CALL
}
"""
PACK_WEIGHTS = """
// scratch: s0 $T[k0, k1, d4, d1]
// launch: weights<<<cdiv(d4 * d1, 128), 128>>>(in1, s0)
// launch: k<<<dim3($GRID, cdiv(d4, $BN)), $THREADS, $BYTES>>>(in0, s0, out0)
"""
PACK_BOTH = """
// scratch: s0 $T[k0, k1, d4, d1]
// scratch: s1 $T[d0, d2, d3, d1]
// launch: weights<<<cdiv(d4 * d1, 128), 128>>>(in1, s0)
// launch: channels_last<<<dim3(cdiv(d2 * d3, 64), cdiv(d1, 64), d0), 256>>>(in0, s1)
// launch: k<<<dim3($GRID, cdiv(d4, $BN)), $THREADS, $BYTES>>>(s1, s0, out0)
__global__ void __launch_bounds__(256) channels_last(const $T* __restrict__ in0, $T* __restrict__ s1 DIMS) {
  const int left = blockIdx.x * 64, top = blockIdx.y * 64, g = blockIdx.z;
  turn_tile<64, 64, 256>(
    [&](int row, int column) {
      const int y = top + row, x = left + column;
      return y < d1 && x < d2 * d3 ? $ROUND(ld(in0 + (g * d1 + y) * (d2 * d3) + x)) : 0.0f;
    },
    [&](int row, int column, float v) {
      const int y = top + row, x = left + column;
      if (y < d1 && x < d2 * d3) st(s1 + (g * (d2 * d3) + x) * d1 + y, v);
    });
}
"""
WEIGHTS = """
__global__ void __launch_bounds__(128) weights(const $T* __restrict__ in1, $T* __restrict__ s0 DIMS) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d4 * d1) return;
  const int j = i / d1, k = i % d1;
  #pragma unroll
  for (int tap = 0; tap < k0 * k1; tap++) {
    const float v = ld(in1 + $WEIGHT * (k0 * k1) + tap);
    st(s0 + tap * (d4 * d1) + i, $ROUND(v));
  }
}
"""
CONVOLUTION = {
    "START": "const int m0 = blockIdx.x * $BM, n0 = blockIdx.y * $BN;",
    "DECODE": "const int i = m0 + m, i0 = i / (d5 * d6), i5 = i / d6 % d5, i6 = i % d6;",
    "ROWS": "d0 * d5 * d6",
    "GRID": "cdiv(d0 * d5 * d6, $BM)",
    "TAPS": "k0 * k1",
    "TAP": "tap",
    "I2": "i5 + w / k1 - 1",
    "I3": "i6 + w % k1 - 1",
    "WEIGHT": "(j * d1 + k)",
}
# a window of 4 at stride 2 in four phases: the outputs of one phase meet every other tap
TRANSPOSED = {
    "START": "const int m0 = blockIdx.x / 4 * $BM, n0 = blockIdx.y * $BN, "
    "r5 = blockIdx.x / 2 % 2, r6 = blockIdx.x % 2;",
    "DECODE": "const int i = m0 + m, i0 = i / (d5 * d6 / 4), i5 = i / (d6 / 2) % (d5 / 2) * 2 + r5, "
    "i6 = i % (d6 / 2) * 2 + r6;",
    "ROWS": "d0 * d5 * d6 / 4",
    "GRID": "cdiv(d0 * d5 * d6 / 4, $BM) * 4",
    "TAPS": "k0 * k1 / 4",
    "TAP": "(tap / (k1 / 2) * 2 + 1 - r5) * k1 + tap % (k1 / 2) * 2 + 1 - r6",
    "I2": "(i5 - w / k1 + 1) / 2",
    "I3": "(i6 - w % k1 + 1) / 2",
    "WEIGHT": "(k * d4 + j)",
}


def _image(name: str, arithmetic: str, work: Work, kind: Mapping[str, str], tile: Tile, width: int) -> Block:
    """width: of the image, by which the patch is large enough."""
    wide = name == "product_wide"
    words = _words(name, arithmetic, tile, a_along=wide, places=tile.m + 2 * width + 2)
    words |= {"DEPTH": "d1", "ROUND": "round_to<tf32>" if arithmetic == "tf32" else ""}
    words["PLACE"] = "((i0 * d2 + i2) * d3 + i3) * d1" if wide else "(i0 * d1 * d2 + i2) * d3 + i3"
    words |= {key: _fill(text, **words) for key, text in kind.items()}
    call = _fill(CALLS[name], **words)
    plan = _fill(PACK_BOTH if wide else PACK_WEIGHTS, **words)
    return Block(name, arithmetic, work, plan + _fill(WEIGHTS, **words) + _fill(IMAGE, CALL=call, **words))


def _convolutions(small: bool) -> Iterator[Block]:
    batch, channels, n, outputs = (2, 16, 7, 24) if small else (64, 128, 28, 128)
    sizes = {"d0": batch, "d1": channels, "d2": n, "d3": n, "d4": outputs, "d5": n, "d6": n, "k0": 3, "k1": 3}
    for arithmetic in ("f32_split", "tf32", "f16", "bf16"):
        t, fn = MEMORY.get(arithmetic, arithmetic), "dot_tf32" if arithmetic == "tf32" else "dot"
        work = _work(
            "convolution",
            sizes,
            f"in0 {t}[d0,d1,d2,d3]",
            f"in1 {t}[d4,d1,k0,k1]",
            f"t0 {t}[d0,d4,d5,d6] = {fn}(in0[d2=d5+k0-1, d3=d6+k1-1], in1) over d1,k0,k1",
            f"out0 {t}[d0,d4,d5,d6] = t0",
            size=f"{batch}x{channels}x{n}x{n}, 3x3 to {outputs}",
        )
        for name in _named(CONVOLUTION_TILES, arithmetic):
            tile = CONVOLUTION_TILES[name, WIDTH.get(arithmetic, arithmetic)]
            yield _image(name, arithmetic, work, CONVOLUTION, tile, n)


def _transposed(small: bool) -> Iterator[Block]:
    batch, channels, n, outputs = (2, 16, 5, 24) if small else (64, 256, 16, 128)
    made = 2 * n
    sizes = {"d0": batch, "d1": channels, "d2": n, "d3": n, "d4": outputs, "d5": made, "d6": made}
    for arithmetic in ("f32_split", "tf32", "bf16"):
        t, fn = MEMORY.get(arithmetic, arithmetic), "dot_tf32" if arithmetic == "tf32" else "dot"
        work = _work(
            "transposed convolution",
            sizes | {"k0": 4, "k1": 4},
            f"in0 {t}[d0,d1,d2,d3]",
            f"in1 {t}[d1,d4,k0,k1]",
            f"t0 {t}[d0,d4,d5,d6] = {fn}(in0[d2=(d5-k0+1)/2, d3=(d6-k1+1)/2], in1) over d1,k0,k1",
            f"out0 {t}[d0,d4,d5,d6] = t0",
            size=f"{batch}x{channels}x{n}x{n}, 4x4 at stride 2 to {outputs}",
        )
        for name in _named(TRANSPOSED_TILES, arithmetic):
            tile = TRANSPOSED_TILES[name, WIDTH.get(arithmetic, arithmetic)]
            yield _image(name, arithmetic, work, TRANSPOSED, tile, n)
