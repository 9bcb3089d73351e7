"""What kernels over products share: the tile of each block and arithmetic, the call of each block, its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cudal1_fx_passes.program.ir import ITEM_BYTES


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


def words_of(name: str, arithmetic: str, tile: Tile, a_along: bool, places: int = 0) -> dict[str, object]:
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


def named(tiles: Mapping[tuple[str, str], Tile], arithmetic: str) -> list[str]:
    return [name for name, width in tiles if width == WIDTH.get(arithmetic, arithmetic)]
