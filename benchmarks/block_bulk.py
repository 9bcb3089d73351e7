"""Kernels over a convolution whose operands are copied in bulk, or its patches computed (product_bulk, _fill)."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block, fill
from benchmarks.block_convolutions import image_work
from benchmarks.block_tiles import MEMORY
from cudal1_fx_passes.program.ir import ITEM_BYTES

BM, BN, STAGES, PATCHES = 128, 128, 4, 2
WEIGHT = """const int tap = i % (k0 * k1), j = i / (k0 * k1) % $COLUMNS;
    const int p = i / (k0 * k1 * $COLUMNS);
    if (p >= $PLANES) return;
    float v[$VECTOR] = {};
    #pragma unroll
    for (int e = 0; e < $VECTOR; e++) {
      const int c = p * $VECTOR + e;
      if (j < d4 && c < d1) v[e] = $ROUND(ld(in1 + (j * d1 + c) * (k0 * k1) + tap));
    }
    vstore<$VECTOR>(s1 + ((tap * $PLANES + p) * $COLUMNS + j) * $VECTOR, v);
"""
SUMS = """    [&](int tap) { return tap / 3 * (d3 + 1) + tap % 3; },
    [&](int tap) {
      return [=](int p) { return s1 + ((tap * $PLANES + p) * $COLUMNS + n0) * $VECTOR; };
    },
    [&](int m) {
      const int place = m0 + m, i6 = place % (d3 + 1), i5 = place / (d3 + 1) % (d2 + 1);
      const int i0 = place / ((d2 + 1) * (d3 + 1));
      return [=](int n, float v) {
        const int j = n0 + n;
        if (i0 < d0 && i5 < d5 && i6 < d6 && j < d4) st(out0 + ((i0 * d4 + j) * d5 + i5) * d6 + i6, v);
      };
    });
}
"""
BULK = f"""
// scratch: s0 $T[$PLANES * $PLACES, $VECTOR]
// scratch: s1 $T[k0 * k1 * $PLANES * $COLUMNS, $VECTOR]
// launch: planes<<<$WEIGHTS + cdiv($PLANES * $PLACES, 256), 256>>>(in0, in1, s0, s1)
// launch: k<<<dim3(cdiv(d0 * (d2 + 1) * (d3 + 1), $BM), cdiv(d4, $BN)), $THREADS, $BYTES>>>(s0, s1, out0)
__global__ void __launch_bounds__(256) planes(const $T* __restrict__ in0, const $T* __restrict__ in1,
                                              $T* __restrict__ s0, $T* __restrict__ s1 DIMS) {{
  int b = blockIdx.x;
  if (b < $WEIGHTS) {{
    const int i = b * 256 + threadIdx.x;
    {WEIGHT}    return;
  }}
  b -= $WEIGHTS;
  const int i = b * 256 + threadIdx.x, p = i / $PLACES, place = i % $PLACES - (d3 + 2);
  if (p >= $PLANES) return;
  const int i3 = place % (d3 + 1), i2 = place / (d3 + 1) % (d2 + 1), i0 = place / ((d2 + 1) * (d3 + 1));
  float v[$VECTOR] = {{}};
  if (place >= 0 && i0 < d0 && i2 < d2 && i3 < d3) {{
    #pragma unroll
    for (int e = 0; e < $VECTOR; e++) {{
      const int c = p * $VECTOR + e;
      if (c < d1) v[e] = $ROUND(ld(in0 + ((i0 * d1 + c) * d2 + i2) * d3 + i3));
    }}
  }}
  vstore<$VECTOR>(s0 + i * $VECTOR, v);
}}
__global__ void __launch_bounds__($THREADS, 2) k(const $T* __restrict__ s0, const $T* __restrict__ s1,
                                                 $T* __restrict__ out0 DIMS) {{
  const int m0 = blockIdx.x * $BM, n0 = blockIdx.y * $BN;
  product_bulk<$A, $BM, $BN, $BK, $STAGES, 9, 2 * (d3 + 1) + 2, $PATCHES>(1, d1,
    [&](int) {{
      return [=](int p) {{ return s0 + (p * $PLACES + m0) * $VECTOR; }};
    }},
{SUMS}"""
FILL = f"""
// scratch: s1 $T[k0 * k1 * $PLANES * $COLUMNS, $VECTOR]
// launch: planes<<<$WEIGHTS, 256>>>(in1, s1)
// launch: k<<<dim3(cdiv(d0 * (d2 + 1) * (d3 + 1), $BM), cdiv(d4, $BN)), $THREADS, $BYTES>>>(in0, s1, out0)
__global__ void __launch_bounds__(256) planes(const $T* __restrict__ in1, $T* __restrict__ s1 DIMS) {{
    const int i = blockIdx.x * 256 + threadIdx.x;
    {WEIGHT}}}
__global__ void __launch_bounds__($THREADS) k(const $T* __restrict__ in0, const $T* __restrict__ s1,
                                              $T* __restrict__ out0 DIMS) {{
  const int m0 = blockIdx.x * $BM, n0 = blockIdx.y * $BN;
  product_fill<$A, $BM, $BN, $BK, $STAGES, 9, 2 * (d3 + 1) + 2, $PATCHES>(1, d1,
    [&](int) {{
      return [=](int m) {{
        const int place = m0 + m - (d3 + 2);
        const int i3 = place % (d3 + 1), i2 = place / (d3 + 1) % (d2 + 1), i0 = place / ((d2 + 1) * (d3 + 1));
        const bool inside = place >= 0 && i0 < d0 && i2 < d2 && i3 < d3;
        return [=](int k) {{ return inside ? ld(in0 + ((i0 * d1 + k) * d2 + i2) * d3 + i3) : 0.0f; }};
      }};
    }},
{SUMS}"""


def bulks(small: bool) -> Iterator[Block]:
    batch, channels, n, outputs = (2, 24, 7, 24) if small else (64, 128, 28, 128)
    sizes = {"d0": batch, "d1": channels, "d2": n, "d3": n, "d4": outputs, "d5": n, "d6": n, "k0": 3, "k1": 3}
    shown = f"{batch}x{channels}x{n}x{n}, 3x3 to {outputs}"
    for arithmetic in ("tf32", "f16", "bf16"):
        work = image_work("convolution", arithmetic, sizes, "d2=d5+k0-1, d3=d6+k1-1", shown)
        t = MEMORY.get(arithmetic, arithmetic)
        size = ITEM_BYTES[t]
        bk = 128 // size
        rows = f"({STAGES * BN} + {PATCHES} * ({BM} + 2 * (d3 + 1) + 2))"
        planes, columns = f"(cdiv(d1, {bk}) * 8)", f"(cdiv(d4, {BN}) * {BN})"
        words = {
            "A": arithmetic,
            "T": t,
            "ROUND": "round_to<tf32>" if arithmetic == "tf32" else "",
            "VECTOR": 16 // size,
            "BM": BM,
            "BN": BN,
            "BK": bk,
            "STAGES": STAGES,
            "PATCHES": PATCHES,
            "THREADS": 2 * BM + 32,
            "WEIGHTS": f"cdiv(k0 * k1 * {planes} * {columns}, 256)",
            "PLANES": planes,
            "PLACES": f"(cdiv(d0 * (d2 + 1) * (d3 + 1), {BM}) * {BM} + 2 * (d3 + 1) + 2)",
            "COLUMNS": columns,
            "BYTES": f"384 + max({rows} * 128, {BN * (BM + 4) * 4})",
        }
        yield Block("product_bulk", arithmetic, work, fill(BULK, **words))
        words["THREADS"] = 2 * BM + 256
        yield Block("product_fill", arithmetic, work, fill(FILL, **words))
