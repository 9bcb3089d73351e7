"""Kernels over convolutions and transposed ones, with the packing that they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.block import Block, Work, fill, make_work
from benchmarks.block_tiles import CALLS, CONVOLUTION_TILES, MEMORY, TRANSPOSED_TILES, WIDTH, Tile, named, words_of

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
    words = words_of(name, arithmetic, tile, a_along=wide, places=tile.m + 2 * width + 2)
    words |= {"DEPTH": "d1", "ROUND": "round_to<tf32>" if arithmetic == "tf32" else ""}
    words["PLACE"] = "((i0 * d2 + i2) * d3 + i3) * d1" if wide else "(i0 * d1 * d2 + i2) * d3 + i3"
    words |= {key: fill(text, **words) for key, text in kind.items()}
    call = fill(CALLS[name], **words)
    plan = fill(PACK_BOTH if wide else PACK_WEIGHTS, **words)
    return Block(name, arithmetic, work, plan + fill(WEIGHTS, **words) + fill(IMAGE, CALL=call, **words))


def image_work(
    name: str, arithmetic: str, sizes: Mapping[str, int], places: str, size: str, weight: str = "d4,d1"
) -> Work:
    """in0 d0 x d1 x d2 x d3 and in1 (channels as `weight`, k0 x k1), read at `places`, to d0 x d4 x d5 x d6."""
    t, fn = MEMORY.get(arithmetic, arithmetic), "dot_tf32" if arithmetic == "tf32" else "dot"
    return make_work(
        name,
        sizes,
        f"in0 {t}[d0,d1,d2,d3]",
        f"in1 {t}[{weight},k0,k1]",
        f"t0 {t}[d0,d4,d5,d6] = {fn}(in0[{places}], in1) over d1,k0,k1",
        f"out0 {t}[d0,d4,d5,d6] = t0",
        size=size,
    )


def convolutions(small: bool) -> Iterator[Block]:
    batch, channels, n, outputs = (2, 16, 7, 24) if small else (64, 128, 28, 128)
    sizes = {"d0": batch, "d1": channels, "d2": n, "d3": n, "d4": outputs, "d5": n, "d6": n, "k0": 3, "k1": 3}
    shown = f"{batch}x{channels}x{n}x{n}, 3x3 to {outputs}"
    for arithmetic in ("f32_split", "tf32", "f16", "bf16"):
        work = image_work("convolution", arithmetic, sizes, "d2=d5+k0-1, d3=d6+k1-1", shown)
        for name in named(CONVOLUTION_TILES, arithmetic):
            tile = CONVOLUTION_TILES[name, WIDTH.get(arithmetic, arithmetic)]
            yield _image(name, arithmetic, work, CONVOLUTION, tile, n)


def transposed(small: bool) -> Iterator[Block]:
    batch, channels, n, outputs = (2, 16, 5, 24) if small else (64, 256, 16, 128)
    made = 2 * n
    sizes = {
        "d0": batch,
        "d1": channels,
        "d2": n,
        "d3": n,
        "d4": outputs,
        "d5": made,
        "d6": made,
        "k0": 4,
        "k1": 4,
    }
    places, shown = "d2=(d5-k0+1)/2, d3=(d6-k1+1)/2", f"{batch}x{channels}x{n}x{n}, 4x4 at stride 2 to {outputs}"
    for arithmetic in ("f32_split", "tf32", "bf16"):
        work = image_work("transposed convolution", arithmetic, sizes, places, shown, "d1,d4")
        for name in named(TRANSPOSED_TILES, arithmetic):
            tile = TRANSPOSED_TILES[name, WIDTH.get(arithmetic, arithmetic)]
            yield _image(name, arithmetic, work, TRANSPOSED, tile, n)
