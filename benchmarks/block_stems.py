"""Kernels over a network's first convolution, of few channels (product_stem), with the packing of its weight."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.block import Block, fill
from benchmarks.block_convolutions import image_work
from benchmarks.block_tiles import MEMORY
from cudal1_fx_passes.program.ir import ITEM_BYTES

STEM = """
// scratch: s0 $T[d4 * $RUN]
// launch: weights<<<cdiv(d4 * $RUN, 128), 128>>>(in1, s0)
// launch: k<<<dim3(d0 * cdiv(d5, 8) * cdiv(d6, 16), cdiv(d4, 64)), 128, $BYTES>>>(in0, s0, out0)
__global__ void __launch_bounds__(128) weights(const $T* __restrict__ in1, $T* __restrict__ s0 DIMS) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= d4 * $RUN) return;
  const int j = i / $RUN, k = i % $RUN;
  const float v = k < d1 * k0 * k1 ? ld(in1 + j * (d1 * k0 * k1) + k) : 0.0f;
  st(s0 + i, $ROUND(v));
}
__global__ void __launch_bounds__(128) k(const $T* __restrict__ in0, const $T* __restrict__ s0,
                                         $T* __restrict__ out0 DIMS) {
  const int x0 = blockIdx.x % cdiv(d6, 16) * 16, y0 = blockIdx.x / cdiv(d6, 16) % cdiv(d5, 8) * 8;
  const int i0 = blockIdx.x / (cdiv(d6, 16) * cdiv(d5, 8)), n0 = blockIdx.y * 64;
  constexpr int high = 14 + k0, wide = 32 + k1;
  product_stem<$A, 128, 64, 32, 32, 64, d1, high, wide, $VECTOR, 1>(d1 * k0 * k1,
    [&](int i1) {
      return [=](int y) {
        const int i2 = 2 * y0 + y - 3;
        return [=](int x) {
          const int i3 = 2 * x0 + x - 3;
          const bool inside = i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
          return inside ? ld(in0 + ((i0 * d1 + i1) * d2 + i2) * d3 + i3) : 0.0f;
        };
      };
    },
    [&](int m) { return m / 16 * (2 * wide) + m % 16 * 2; },
    [&](int k) { return (k / (k0 * k1) * high + k / k1 % k0) * wide + k % k1; },
    [&](int n) {
      const int j = n0 + n;
      return [=](int) { return j < d4 ? s0 + j * $RUN : nullptr; };
    },
    [&](int m) {
      const int i5 = y0 + m / 16, i6 = x0 + m % 16;
      return [=](int n, float v) {
        const int j = n0 + n;
        if (i5 < d5 && i6 < d6 && j < d4) st(out0 + ((i0 * d4 + j) * d5 + i5) * d6 + i6, v);
      };
    });
}
"""


def stems(small: bool) -> Iterator[Block]:
    batch, n, outputs = (2, 20, 24) if small else (64, 224, 64)
    sizes = {"d0": batch, "d1": 3, "d2": n, "d3": n, "d4": outputs, "d5": n // 2, "d6": n // 2, "k0": 7, "k1": 7}
    shown = f"{batch}x3x{n}x{n}, 7x7 at stride 2 to {outputs}"
    for arithmetic in ("tf32", "f16", "bf16"):
        work = image_work("first convolution", arithmetic, sizes, "d2=2*d5+k0-3, d3=2*d6+k1-3", shown)
        t = MEMORY.get(arithmetic, arithmetic)
        size = ITEM_BYTES[t]
        patch = f"cdiv(d1 * (14 + k0) * (32 + k1), 8) * {8 * size}"
        words = {
            "A": "tf32_ready" if arithmetic == "tf32" else arithmetic,
            "T": t,
            "ROUND": "round_to<tf32>" if arithmetic == "tf32" else "",
            "VECTOR": 16 // size,
            "RUN": f"(cdiv(d1 * k0 * k1, {16 // size}) * {16 // size})",
            "BYTES": f"{patch} + cdiv(d1 * k0 * k1, 32) * 128 + {3 * 64 * (32 * size + 16)}",
        }
        yield Block("product_stem", arithmetic, work, fill(STEM, **words))
