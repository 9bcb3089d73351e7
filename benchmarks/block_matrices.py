"""Kernels over matrix products, long sums in parts among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.block import Block, Work, fill, make_work
from benchmarks.block_tiles import CALLS, MATRIX_TILES, MEMORY, WIDTH, named, words_of

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


def _matrix_work(arithmetic: str, sizes: Mapping[str, int]) -> Work:
    t, fn = MEMORY.get(arithmetic, arithmetic), "dot_tf32" if arithmetic == "tf32" else "dot"
    made = f"t0 {t}[d0,d2] = {fn}(in0, in1) over d1"
    return make_work("matrix product", sizes, f"in0 {t}[d0,d1]", f"in1 {t}[d2,d1]", made, f"out0 {t}[d2,d0] = t0")


def _matrix(name: str, arithmetic: str, work: Work, launch: str, **more: object) -> Block:
    tile = MATRIX_TILES[name, WIDTH.get(arithmetic, arithmetic)]
    words = words_of(name, arithmetic, tile, a_along=True) | {"TAPS": 1, "DEPTH": "d1"}
    words |= {"SUM": words["T"]} | more
    code = fill(launch, **words) + fill(MATRIX, CALL=fill(CALLS[name], **words), **words)
    return Block(name, arithmetic, work, code)


def matrices(small: bool) -> Iterator[Block]:
    for m, k, n in ((136, 72, 24),) if small else ((4096, 4096, 4096), (2048, 1024, 2048)):
        for arithmetic in ("f32", "f32_split", "tf32", "f16", "bf16"):
            work = _matrix_work(arithmetic, {"d0": m, "d1": k, "d2": n})
            for name in named(MATRIX_TILES, arithmetic):
                packed = (name, arithmetic) == ("product_wide", "tf32")
                yield _matrix(name, arithmetic, work, ROUNDED_LAUNCH if packed else MATRIX_LAUNCH)


def split_sums(small: bool) -> Iterator[Block]:
    """Long sums of few results: parts of them in blocks of their own, added up from scratch."""
    sizes = {"d0": 72, "d1": 128, "d2": 40} if small else {"d0": 512, "d1": 16384, "d2": 512}
    for name, arithmetic, parts in (("product_pipe", "f32_split", 8), ("product_wide", "bf16", 16)):
        parts = 2 if small else parts
        more = {"PARTS": parts, "DEPTH": sizes["d1"] // parts, "SUM": "f32"}
        block = _matrix(name, arithmetic, _matrix_work(arithmetic, sizes), SPLIT_LAUNCH, **more)
        yield Block(f"split_{name}", arithmetic, block.work, block.code)
