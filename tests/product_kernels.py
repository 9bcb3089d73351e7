"""Kernels over product_tile: convolutions, transposed ones and matrix products, with what torch says they give.

tests/host runs them on the host target and builds them for five GPUs; tests/gpu runs them on the device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from product_patches import BULK_CONVOLUTION, ELEMENT, FIELD_CONVOLUTION, FILL_CONVOLUTION, VECTOR
from torch import Tensor

from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_fx_passes.program.evaluate import TORCH_DTYPE
from cudal1_fx_passes.program.ir import ITEM_BYTES, Program
from cudal1_fx_passes.program.text import parse_program

CONVOLUTION = """// launch: k<<<dim3(cdiv(d0*d4*d5, {BM}), cdiv(d6, {BN})), 256>>>(in0, in1, out0)
__global__ void __launch_bounds__(256) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_tile<{T}, {BM}, {BN}, {BK}, 1, 8>(d1 * k0 * k1,
    [&](int m) {{
      const int i = m0 + m, i5 = i % d5, i4 = i / d5 % d4, i0 = i / (d5 * d4);
      return [=](int k) {{
        const int i1 = k / (k0 * k1), i2 = {S} * i4 + k / k1 % k0 - {P}, i3 = {S} * i5 + k % k1 - {P};
        const bool inside = i0 < d0 && i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
        return inside ? ld(in0 + ((i0 * d1 + i1) * d2 + i2) * d3 + i3) : 0.0f;
      }};
    }},
    [&](int n) {{
      const int i6 = n0 + n;
      return [=](int k) {{ return i6 < d6 ? ld(in1 + i6 * (d1 * k0 * k1) + k) : 0.0f; }};
    }},
    [&](int m, int n, float v) {{
      const int i = m0 + m, i5 = i % d5, i4 = i / d5 % d4, i0 = i / (d5 * d4), i6 = n0 + n;
      if (i0 < d0 && i6 < d6) st(out0 + ((i0 * d6 + i6) * d4 + i4) * d5 + i5, v);
    }});
}}
"""
MATRIX = """// launch: k<<<dim3(cdiv(d0, {BM}), cdiv(d6, {BN})), 256>>>(in0, in1, out0)
__global__ void __launch_bounds__(256) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_tile<{T}, {BM}, {BN}, {BK}, 8, 1>(d1,
    [&](int m) {{
      const int i0 = m0 + m;
      return [=](int k) {{ return i0 < d0 ? ld(in0 + i0 * d1 + k) : 0.0f; }};
    }},
    [&](int n) {{
      const int i6 = n0 + n;
      return [=](int k) {{ return i6 < d6 ? ld(in1 + k * d6 + i6) : 0.0f; }};
    }},
    [&](int m, int n, float v) {{
      if (m0 + m < d0 && n0 + n < d6) st(out0 + (m0 + m) * d6 + n0 + n, v);
    }});
}}
"""
WEIGHTS_AND_STORES = """    [&](int n) {{
      const int i6 = n0 + n;
      return [=](int tap) {{ return i6 < d6 ? in1 + i6 * (d1 * k0 * k1) + tap : nullptr; }};
    }},
    [&](int m) {{
      const int i = m0 + m, i5 = i % d5, i4 = i / d5 % d4, i0 = i / (d5 * d4);
      return [=](int n, float v) {{
        const int i6 = n0 + n;
        if (i0 < d0 && i6 < d6) st(out0 + ((i0 * d6 + i6) * d4 + i4) * d5 + i5, v);
      }};
    }});
}}
"""
PIPE_CONVOLUTION = (
    """// launch: k<<<dim3(cdiv(d0*d4*d5,{BM}), cdiv(d6,{BN})),{threads},{bytes}>>>(in0, in1, out0)
__global__ void __launch_bounds__({threads}) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_pipe<{T}, {BM}, {BN}, {BK}, {WM}, {WN}, {stages}, 1, d2 * d3, 1, k0 * k1>(k0 * k1, d1,
    [&](int m) {{
      const int i = m0 + m, i5 = i % d5, i4 = i / d5 % d4, i0 = i / (d5 * d4);
      return [=](int tap) {{
        const int i2 = {S} * i4 + tap / k1 - {P}, i3 = {S} * i5 + tap % k1 - {P};
        const bool inside = i0 < d0 && i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
        return inside ? in0 + (i0 * d1 * d2 + i2) * d3 + i3 : nullptr;
      }};
    }},
"""
    + WEIGHTS_AND_STORES
)
PATCH_CONVOLUTION = (
    """// launch: k<<<dim3(cdiv(d0*d4*d5,{BM}), cdiv(d6,{BN})),{threads},{bytes}>>>(in0, in1, out0)
__global__ void __launch_bounds__({threads}) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  const int first = m0 / (d4 * d5) * (d2 * d3) + ({S} * (m0 / d5 % d4) - {P}) * d3 + {S} * (m0 % d5) - {P};
  product_patch<{T}, {BM}, {BN}, {BK}, {WM}, {WN}, k0 * k1, {G}, {L}, 1, k0 * k1>(1, d1,
    [&](int p) {{
      const int q = first + p, i0 = q / (d2 * d3), r = q % (d2 * d3);
      return [=](int) {{
        const bool inside = q >= 0 && q < d0 * d2 * d3;
        return [=](int k) {{ return inside ? ld(in0 + (i0 * d1 + k) * (d2 * d3) + r) : 0.0f; }};
      }};
    }},
    [&](int m) {{
      const int i = m0 + m, i5 = i % d5, i4 = i / d5 % d4, i0 = i / (d5 * d4);
      return [=](int, int tap) {{
        const int i2 = {S} * i4 + tap / k1 - {P}, i3 = {S} * i5 + tap % k1 - {P};
        const bool inside = i0 < d0 && i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
        return inside ? (i0 * d2 + i2) * d3 + i3 - first : -1;
      }};
    }},
"""
    + WEIGHTS_AND_STORES
)
STEM_CONVOLUTION = """// launch: k<<<dim3(d0*{tall}*cdiv(d5,8),cdiv(d6,{BN})),{threads},{bytes}>>>(in0, in1, out0)
__global__ void __launch_bounds__({threads}) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int x0 = blockIdx.x % cdiv(d5, 8) * 8, y0 = blockIdx.x / cdiv(d5, 8) % cdiv(d4, {BM} / 8) * ({BM} / 8);
  const int i0 = blockIdx.x / (cdiv(d4, {BM} / 8) * cdiv(d5, 8)), n0 = blockIdx.y * {BN};
  constexpr int high = ({BM} / 8 - 1) * {S} + k0, wide = 7 * {S} + k1;
  product_stem<{T}, {BM}, {BN}, {BK}, {WM}, {WN}, d1, high, wide, {VB}, 1>(d1 * k0 * k1,
    [&](int i1) {{
      return [=](int y) {{
        const int i2 = {S} * y0 + y - {P};
        return [=](int x) {{
          const int i3 = {S} * x0 + x - {P};
          const bool inside = i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
          return inside ? ld(in0 + ((i0 * d1 + i1) * d2 + i2) * d3 + i3) : 0.0f;
        }};
      }};
    }},
    [&](int m) {{ return m / 8 * ({S} * wide) + m % 8 * {S}; }},
    [&](int k) {{ return (k / (k0 * k1) * high + k / k1 % k0) * wide + k % k1; }},
    [&](int n) {{
      const int i6 = n0 + n;
      return [=](int) {{ return i6 < d6 ? in1 + i6 * (d1 * k0 * k1) : nullptr; }};
    }},
    [&](int m) {{
      const int i4 = y0 + m / 8, i5 = x0 + m % 8;
      return [=](int n, float v) {{
        const int i6 = n0 + n;
        if (i4 < d4 && i5 < d5 && i6 < d6) st(out0 + ((i0 * d6 + i6) * d4 + i4) * d5 + i5, v);
      }};
    }});
}}
"""
PIPE_MATRIX = """// launch: k<<<dim3(cdiv(d0, {BM}), cdiv(d6, {BN})), {threads}, {bytes}>>>(in0, in1, out0)
__global__ void __launch_bounds__({threads}) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_pipe<{T}, {BM}, {BN}, {BK}, {WM}, {WN}, {stages}, {V}, 1, {V}, d6>(1, d1,
    [&](int m) {{
      const int i0 = m0 + m;
      return [=](int) {{ return i0 < d0 ? in0 + i0 * d1 : nullptr; }};
    }},
    [&](int n) {{
      const int i6 = n0 + n;
      return [=](int) {{ return i6 < d6 ? in1 + i6 : nullptr; }};
    }},
    [&](int m) {{
      const int i0 = m0 + m;
      return [=](int n, float v) {{
        if (i0 < d0 && n0 + n < d6) st(out0 + i0 * d6 + n0 + n, v);
      }};
    }});
}}
"""
WIDE_MATRIX = """// launch: k<<<dim3(cdiv(d0, {BM}), cdiv(d6, {BN})), {threads}, {bytes}>>>(in0, in1, out0)
__global__ void __launch_bounds__({threads}) k(const {dtype}* in0, const {dtype}* in1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_wide<{T}, {BM}, {BN}, {BK}, {stages}, {near}, {at_once}, {rounds}, {along}>({taps}, d1 / {taps},
    [&](int m) {{
      const int i0 = m0 + m;
      return [=](int tap) {{ return i0 < d0 ? in0 + i0 * d1 + tap * (d1 / {taps}) : nullptr; }};
    }},
    [&](int n) {{
      const int i6 = n0 + n;
      return [=](int tap) {{ return i6 < d6 ? in1 + i6 * d1 + tap * (d1 / {taps}) : nullptr; }};
    }},
    [&](int m) {{
      const int i0 = m0 + m;
      return [=](int n, float v) {{
        if (i0 < d0 && n0 + n < d6) st(out0 + i0 * d6 + n0 + n, v);
      }};
    }});
}}
"""
ONE_COLUMN = re.compile(r"\(int n, float v\) \{\n(.*?)\n      \};", flags=re.S)
FOUR_COLUMNS = r"""(int n, float (&sums)[4]) {
        for (int e = 0; e < 4; e++, n++) {
          const float v = sums[e];
\1
        }
      };"""

# the weight gradient of a strided convolution along rows: rows of its second operand that are not there have a
# null pointer, and ptxas 13.0 looks a cycle too early whether they have (runtime/sass.py)
NULL_ROWS_REGION = """region v1
dims d0=8 d1=80 d2=160 d3=100 d6=100 k1=2
in0 f32[d0,d1,d2,d3]
in1 f32[d0,d1,d6]
t0 f32[d1,d2,k1] = dot_tf32(in0, in1[d6=d3+2*k1-1]) over d0,d3
out0 f32[d1,d2,k1] = t0
"""
NULL_ROWS = """// launch: f<<<dim3(1, 3, d1), 128, 3 * (64 * (32 * 4 + 16) + 64 * (32 * 4 + 16))>>>(in0, in1, out0)
__global__ void __launch_bounds__(128)
f(const f32* __restrict__ in0, const f32* __restrict__ in1, f32* __restrict__ out0 DIMS) {
  const int m0 = blockIdx.x * 64, n0 = blockIdx.y * 64, g = blockIdx.z;
  product_pipe<tf32, 64, 64, 32, 32, 32, 3, 1, 0, 4, 1>(d0, d3,
    [&](int m) {
      const int i = m0 + m;
      return [=](int tap) {
        return [=](int k) {
          const int i6 = k + 2 * i - 1;
          return i >= 2 || i6 < 0 || i6 >= 100 ? nullptr : in1 + (tap * 80 + g) * 100 + i6;
        };
      };
    },
    [&](int n) {
      const int j = n0 + n;
      return [=](int tap) {
        return j >= 160 ? nullptr : in0 + ((tap * 80 + g) * 160 + j) * 100;
      };
    },
    [&](int m) {
      const int i = m0 + m;
      return [=](int n, float t1) {
        const int j = n0 + n;
        if (i >= 2 || j >= 160) return;
        st(out0 + (g * 160 + j) * 2 + i, t1);
      };
    });
}
"""


@dataclass(frozen=True)
class Product:
    """One kernel at one size. rtol: of the largest result."""

    arithmetic: str
    tile: tuple[int, int, int]
    dtype: str = "f32"
    stride: int = 1
    padding: int = 1
    matrix: bool = False
    rtol: float = 1e-6
    warp: tuple[int, int] = (0, 0)  # of product_pipe
    vector: int = 4  # of its matrices
    patch: int = 0  # places of product_patch
    stem: bool = False  # product_stem
    wide: int = 0  # stages of product_wide
    at_once: int = 1  # of its taps; from 2 on there are two of them, and rows go through the nearest cache
    rounds: bool = False  # its first operand on the way
    along: bool = False  # neighbouring threads have neighbouring columns
    four: bool = False  # of these at once
    bulk: int = 0  # patches of product_bulk; from 3 on, each row of the window reads one of its own
    fill: bool = False  # by product_fill
    field: bool = False  # in tiles of eight rows
    vectors: bool = False  # 16 bytes of a place at once

    @property
    def name(self) -> str:
        kind = "matrix" if self.matrix else f"convolution-{self.stride}"
        kind += f"-patch-{self.patch}" if self.patch else f"-pipe-{self.vector}" if self.warp[0] else ""
        kind += f"-wide-{self.wide}-{self.at_once}" if self.wide else "-stem" * self.stem
        kind += f"-{'fill' if self.fill else 'bulk'}-{self.bulk}" if self.bulk else ""
        kind += "-field" * self.field + "-vectors" * self.vectors + "-rounds" * self.rounds + "-along" * self.along
        kind += "-four" * self.four
        return f"{kind}-{self.arithmetic}-{'x'.join(map(str, self.tile))}"

    def inputs(self, device: str = "cpu") -> list[Tensor]:
        g = torch.Generator().manual_seed(5)
        shapes = [(70, 48), (48, 40)] if self.matrix else [(2, 5, 11, 9), (19, 5, 3, 3)]
        if self.wide:
            shapes = [(70, 328), (328, 72)]  # more steps than stages
        made = [torch.randn(s, generator=g).to(TORCH_DTYPE[self.dtype]) for s in shapes]
        if self.wide:  # the second in columns; what tf32 holds, as the header asks
            held = [x.bfloat16().to(x.dtype) for x in (made[0], made[1].T.contiguous().T)]
            made = [made[0] if self.rounds else held[0], held[1]]
        return [x.to(device) for x in made]

    def want(self, inputs: list[Tensor]) -> Tensor:
        """In float64."""
        first = (inputs[0].view(torch.int32) + 0x1000 & -0x2000).view(torch.float32) if self.rounds else inputs[0]
        a, b = first.double(), inputs[1].double()
        return a @ b if self.matrix else torch.nn.functional.conv2d(a, b, None, self.stride, self.padding)

    def program(self) -> Program:
        t = self.dtype
        if self.wide:
            body = f"in0 {t}[d0,d1]\nin1 {t}[d6,d1]\nt0 {t}[d0,d6] = dot(in0, in1) over d1\nout0 {t}[d0,d6] = t0\n"
            return parse_program(f"region v1\ndims d0=70 d1=328 d6=72\n{body}")
        if self.matrix:
            body = (
                f"dims d0=70 d1=48 d6=40\nin0 {t}[d0,d1]\nin1 {t}[d1,d6]\nt0 {t}[d0,d6] = dot(in0, in1) over d1\n"
            )
            return parse_program(f"region v1\n{body}out0 {t}[d0,d6] = t0\n")
        d4, d5 = ((n + 2 * self.padding - 3) // self.stride + 1 for n in (11, 9))
        s = "" if self.stride == 1 else f"{self.stride}*"
        dims = f"dims d0=2 d1=5 d2=11 d3=9 d4={d4} d5={d5} d6=19 k0=3 k1=3"
        read = f"in0[d2={s}d4+k0-{self.padding},d3={s}d5+k1-{self.padding}]"
        body = (
            f"in0 {t}[d0,d1,d2,d3]\nin1 {t}[d6,d1,k0,k1]\nt0 {t}[d0,d4,d5,d6] = dot({read}, in1) over d1,k0,k1\n"
        )
        return parse_program(f"region v1\n{dims}\n{body}out0 {t}[d0,d6,d4,d5] = t0\n")

    def _stored(self, text: str) -> str:
        """With columns that are stored as they are handed out."""
        return ONE_COLUMN.sub(FOUR_COLUMNS, text) if self.four else text

    def candidate(self, program: Program) -> Candidate:
        bm, bn, bk = self.tile
        plain, pipe = (MATRIX, PIPE_MATRIX) if self.matrix else (CONVOLUTION, PIPE_CONVOLUTION)
        words: dict[str, object] = {"T": self.arithmetic, "BM": bm, "BN": bn, "BK": bk, "dtype": self.dtype}
        words |= {"S": self.stride, "P": self.padding}
        if self.wide:
            near = int(self.at_once > 1)
            words |= {
                "stages": self.wide,
                "threads": 2 * bm,
                "near": near,
                "at_once": self.at_once,
                "rounds": int(self.rounds),
                "along": int(self.along),
                "taps": 1 + near,
            }
            words["bytes"] = 1024 + max(
                self.wide * (bm + bn) * bk * ITEM_BYTES[self.dtype], (bn + 8) * (bm + 4) * 4
            )
            return parse_candidate(self._stored(WIDE_MATRIX.format_map(words)), program)
        if self.bulk:
            size, rows = ITEM_BYTES[self.dtype], self.bulk > 2
            pitch, columns = 9 + self.padding, -(-19 // bn) * bn
            span, stages = 2 if rows else 2 * pitch + 2, 3
            if self.field:
                span = 10 * (bm // 8 + 2) - bm
            between = 2 * max(128 // (bk * size), 1) - 1 if self.vectors else 0
            tiles = (stages * bn + self.bulk * (bm + span + between)) * bk * size
            words |= {"vector": 16 // size, "pieces": bk * size // 16, "columns": columns}
            words |= {"threads": 2 * bm + (256 if self.fill else 32)}
            words |= {"places": f"(cdiv(d0 * (d2 + {self.padding}) * {pitch}, {bm}) * {bm} + {2 * pitch + 2})"}
            words |= {"stages": stages, "taps": 3 if rows else 9, "span": span, "patches": self.bulk}
            words |= {"outer": 3 if rows else 1, "row": f"o * {pitch}" if rows else "o", "along": int(self.along)}
            words |= {"shift": "tap" if rows else f"tap / 3 * {pitch} + tap % 3"}
            words["bytes"] = 384 + max(tiles, (bn + 8) * (bm + 4) * 4)
            words |= {"pitch": bm // 8 + 2, "vectors": int(self.vectors)}
            words["depth"] = f"cdiv(d1, {16 // size}) * {16 // size}" if self.vectors else "d1"
            words["held"] = (VECTOR if self.vectors else ELEMENT).format_map(words)
            text = FIELD_CONVOLUTION if self.field else FILL_CONVOLUTION if self.fill else BULK_CONVOLUTION
            return parse_candidate(self._stored(text.format_map(words)), program)
        if not self.warp[0]:
            return parse_candidate(plain.format_map(words), program)
        (wm, wn), size, stages = self.warp, ITEM_BYTES[self.dtype], 3
        along = bm * (bk * size + 16) if self.matrix else bk * (bm + 8) * size
        words |= {"WM": wm, "WN": wn, "V": self.vector, "stages": stages, "threads": 32 * (bm // wm) * (bn // wn)}
        if self.stem:
            rows, wide = 5 * ((bm // 8 - 1) * self.stride + 3), 7 * self.stride + 3
            tables = -(-rows * wide // 8) * 8 * size + -(-45 // bk) * bk * 4
            words |= {"tall": f"cdiv(d4,{bm // 8})", "VB": 1, "bytes": tables + 3 * bn * (bk * size + 16)}
            return parse_candidate(STEM_CONVOLUTION.format_map(words), program)
        if self.patch:
            pipe, words["L"] = PATCH_CONVOLUTION, self.patch
            patch = (2 * self.patch + 1) * (bk * size + 16)
            words["G"] = group = 32 // bk
            words["bytes"] = patch + 3 * group * bk * (bn + 8) * size
            return parse_candidate(pipe.format_map(words), program)
        words["bytes"] = stages * (along + bk * (bn + 8) * size)
        return parse_candidate(pipe.format_map(words), program)


CASES = [
    Product("f32", (128, 64, 16)),
    Product("f32", (64, 32, 16), stride=2, padding=0),
    Product("tf32", (128, 8, 16), stride=2, rtol=1e-3),
    Product("tf32", (64, 64, 16), rtol=1e-3),
    Product("tf32", (32, 128, 8), matrix=True, rtol=1e-3),
    Product("f32_split", (128, 32, 16), rtol=2e-6),
    Product("f32_split", (64, 64, 32), matrix=True, rtol=2e-6),
    Product("f32", (32, 128, 16), matrix=True),
    Product("bf16", (128, 16, 32), dtype="bf16", rtol=8e-3),
    Product("f16", (64, 64, 16), dtype="f16", stride=2, rtol=1e-3),
    Product("f16", (64, 32, 32), dtype="f16", matrix=True, rtol=1e-3),
    Product("tf32_long", (64, 64, 16), rtol=1e-3),
    Product("tf32", (128, 64, 32), warp=(64, 32), rtol=1e-3),
    Product("tf32", (64, 128, 16), matrix=True, warp=(32, 64), rtol=1e-3),
    Product("f32_split", (64, 64, 16), stride=2, warp=(32, 32), rtol=2e-6),
    Product("f32_split", (64, 32, 32), matrix=True, warp=(32, 16), vector=2, rtol=2e-6),
    Product("f32_split", (128, 64, 32), warp=(32, 32), rtol=2e-6),  # by warp groups on Hopper, as the next
    Product("f32_split", (128, 128, 32), matrix=True, warp=(64, 32), vector=4, rtol=2e-6),
    Product("bf16", (64, 32, 32), dtype="bf16", warp=(16, 32), rtol=8e-3),
    Product("f16", (64, 64, 32), dtype="f16", matrix=True, warp=(32, 32), vector=8, rtol=1e-3),
    Product("bf16", (32, 32, 16), dtype="bf16", matrix=True, warp=(16, 16), vector=1, rtol=8e-3),
    Product("tf32", (64, 32, 8), warp=(32, 32), patch=88, rtol=1e-3),
    Product("tf32", (32, 32, 8), stride=2, warp=(16, 16), patch=152, rtol=1e-3),
    Product("f16", (64, 64, 16), dtype="f16", padding=0, warp=(32, 32), patch=120, rtol=1e-3),
    Product("tf32", (64, 32, 16), warp=(32, 16), stem=True, rtol=1e-3),
    Product("tf32", (128, 16, 8), stride=2, warp=(32, 16), stem=True, rtol=1e-3),
    Product("f16", (64, 64, 32), dtype="f16", padding=0, warp=(64, 32), stem=True, rtol=1e-3),
    Product("bf16", (128, 32, 16), dtype="bf16", stride=2, warp=(64, 32), stem=True, rtol=8e-3),
    Product("bf16", (64, 256, 64), dtype="bf16", matrix=True, wide=4, rtol=8e-3),
    Product("f16", (128, 128, 32), dtype="f16", matrix=True, wide=3, rtol=1e-3),
    Product("tf32", (64, 64, 32), matrix=True, wide=5, rtol=1e-5),
    Product("tf32_long", (128, 32, 8), matrix=True, wide=3, rtol=1e-6),
    Product("bf16", (256, 64, 16), dtype="bf16", matrix=True, wide=4, rtol=8e-3),
    Product("tf32", (64, 192, 16), matrix=True, wide=3, rtol=1e-5),
    Product("tf32", (192, 16, 32), matrix=True, wide=6, at_once=2, rtol=1e-5),
    Product("tf32_long", (64, 16, 32), matrix=True, wide=4, at_once=4, rtol=1e-6),
    Product("tf32", (128, 64, 32), matrix=True, wide=4, rounds=True, rtol=1e-5),
    Product("tf32_long", (64, 128, 16), matrix=True, wide=3, rounds=True, along=True, rtol=1e-6),
    Product("tf32", (64, 16, 32), matrix=True, wide=5, at_once=2, rounds=True, along=True, rtol=1e-5),
    Product("f16", (128, 192, 32), dtype="f16", matrix=True, wide=3, along=True, rtol=1e-3),
    Product("tf32", (64, 32, 32), bulk=2, rtol=1e-3),
    Product("tf32_long", (128, 64, 16), padding=0, bulk=2, along=True, rtol=1e-3),
    Product("tf32", (192, 128, 8), bulk=4, rtol=1e-3),
    Product("bf16", (64, 256, 64), dtype="bf16", bulk=3, along=True, rtol=8e-3),
    Product("f16", (256, 16, 16), dtype="f16", padding=0, bulk=2, rtol=1e-3),
    Product("tf32", (64, 32, 32), bulk=2, fill=True, rtol=1e-3),
    Product("tf32_long", (128, 64, 16), padding=0, bulk=3, fill=True, along=True, rtol=1e-3),
    Product("bf16", (192, 64, 64), dtype="bf16", bulk=2, fill=True, rtol=8e-3),
    Product("tf32", (128, 32, 16), bulk=2, fill=True, field=True, rtol=1e-3),
    Product("f16", (64, 64, 32), dtype="f16", padding=0, bulk=2, fill=True, field=True, along=True, rtol=1e-3),
    Product("tf32", (128, 64, 32), bulk=2, fill=True, vectors=True, along=True, rtol=1e-3),
    Product("bf16", (64, 32, 32), dtype="bf16", padding=0, bulk=3, fill=True, vectors=True, rtol=8e-3),
    Product("tf32_long", (64, 64, 64), bulk=2, fill=True, field=True, vectors=True, rtol=1e-3),
    Product("f16", (64, 32, 256), dtype="f16", bulk=2, fill=True, field=True, vectors=True, along=True, rtol=1e-3),
    Product("tf32", (64, 64, 16), padding=0, bulk=3, fill=True, vectors=True, rtol=1e-3),
    Product("tf32", (64, 16, 32), matrix=True, wide=5, at_once=2, rounds=True, along=True, four=True, rtol=1e-5),
    Product("tf32_long", (192, 32, 16), matrix=True, wide=3, rounds=True, along=True, four=True, rtol=1e-6),
    Product("f16", (128, 192, 32), dtype="f16", matrix=True, wide=3, along=True, four=True, rtol=1e-3),
    Product("tf32_long", (128, 64, 16), padding=0, bulk=2, along=True, four=True, rtol=1e-3),
    Product("bf16", (64, 256, 64), dtype="bf16", bulk=3, along=True, four=True, rtol=8e-3),
    Product("tf32", (64, 128, 32), bulk=2, fill=True, vectors=True, along=True, four=True, rtol=1e-3),
    Product("f16", (64, 32, 64), dtype="f16", bulk=2, fill=True, field=True, along=True, four=True, rtol=1e-3),
]
