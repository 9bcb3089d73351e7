"""Kernels over product_bulk and product_fill, which product_kernels.py fills in: how patches come to be.

Both multiply planes of 16 bytes a place (FROM_PLANES); the weight's are always packed first (WEIGHT_PLANES).
"""

WEIGHT_PLANES = """__global__ void __launch_bounds__(128) weight(const {dtype}* in1, {dtype}* s1 DIMS) {{
  const int i = blockIdx.x * 128 + threadIdx.x, i6 = i % {columns}, c = i / {columns} * {vector};
  if (c >= {pieces} * {vector}) return;
  for (int tap = 0; tap < k0 * k1; tap++) {{
    float v[{vector}];
    for (int j = 0; j < {vector}; j++)
      v[j] = i6 < d6 && c + j < d1 ? ld(in1 + (i6 * d1 + c + j) * (k0 * k1) + tap) : 0.0f;
    vstore<{vector}>(s1 + (tap * ({pieces} * {columns}) + i) * {vector}, v);
  }}
}}
"""
FROM_PLANES = """    [&](int tap) {{ return {shift}; }},
    [&](int tap) {{
      return [=](int p) {{ return s1 + ((tap * {pieces} + p) * {columns} + n0) * {vector}; }};
    }},
    [&](int m) {{
      const int i = m0 + m, i5 = i % (d3 + {P}), i4 = i / (d3 + {P}) % (d2 + {P});
      const int i0 = i / ((d3 + {P}) * (d2 + {P}));
      return [=](int n, float v) {{
        const int i6 = n0 + n;
        if (i0 < d0 && i4 < d4 && i5 < d5 && i6 < d6) st(out0 + ((i0 * d6 + i6) * d4 + i4) * d5 + i5, v);
      }};
    }});
}}
"""
BULK_CONVOLUTION = (
    """// scratch: s0 {dtype}[{pieces} * {places} * {vector}]
// scratch: s1 {dtype}[k0 * k1 * {pieces} * {columns} * {vector}]
// launch: image<<<cdiv({pieces} * {places}, 128), 128>>>(in0, s0)
// launch: weight<<<cdiv({pieces} * {columns}, 128), 128>>>(in1, s1)
// launch: k<<<dim3(cdiv(d0 * (d2 + {P}) * (d3 + {P}), {BM}), cdiv(d6, {BN})), {threads}, {bytes}>>>(s0, s1, out0)
__global__ void __launch_bounds__(128) image(const {dtype}* in0, {dtype}* s0 DIMS) {{
  const int i = blockIdx.x * 128 + threadIdx.x, c = i / ({places}) * {vector};
  const int at = i % ({places}) - {P} * (d3 + {P} + 1);
  if (c >= {pieces} * {vector}) return;
  const int i3 = at % (d3 + {P}), i2 = at / (d3 + {P}) % (d2 + {P}), i0 = at / ((d3 + {P}) * (d2 + {P}));
  const bool inside = at >= 0 && i0 < d0 && i2 < d2 && i3 < d3;
  float v[{vector}];
  for (int j = 0; j < {vector}; j++)
    v[j] = inside && c + j < d1 ? ld(in0 + ((i0 * d1 + c + j) * d2 + i2) * d3 + i3) : 0.0f;
  vstore<{vector}>(s0 + i * {vector}, v);
}}
"""
    + WEIGHT_PLANES
    + """__global__ void __launch_bounds__({threads})
    k(const {dtype}* s0, const {dtype}* s1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_bulk<{T}, {BM}, {BN}, {BK}, {stages}, {taps}, {span}, {patches}, {along}>({outer}, d1,
    [&](int o) {{
      return [=](int p) {{ return s0 + (p * ({places}) + m0 + {row}) * {vector}; }};
    }},
"""
    + FROM_PLANES
)
# what a patch holds: element by element, or 16 bytes of k at once
ELEMENT = """return [=](int k) {{ return inside ? ld(in0 + ((i0 * d1 + k) * d2 + i2) * d3 + i3) : 0.0f; }};"""
VECTOR = """return [=](int k, float (&v)[{vector}]) {{
          for (int e = 0; e < {vector}; e++)
            if (inside && k + e < d1) v[e] = ld(in0 + ((i0 * d1 + k + e) * d2 + i2) * d3 + i3);
        }};"""
FILL_CONVOLUTION = (
    """// scratch: s1 {dtype}[k0 * k1 * {pieces} * {columns} * {vector}]
// launch: weight<<<cdiv({pieces} * {columns}, 128), 128>>>(in1, s1)
// launch: k<<<dim3(cdiv(d0 * (d2 + {P}) * (d3 + {P}), {BM}), cdiv(d6, {BN})), {threads}, {bytes}>>>(in0, s1, out0)
"""
    + WEIGHT_PLANES
    + """__global__ void __launch_bounds__({threads})
    k(const {dtype}* in0, const {dtype}* s1, {dtype}* out0 DIMS) {{
  const int m0 = blockIdx.x * {BM}, n0 = blockIdx.y * {BN};
  product_fill<{T}, {BM}, {BN}, {BK}, {stages}, {taps}, {span}, {patches}, {along}, 0, {vectors}>({outer}, {depth},
    [&](int o) {{
      return [=](int m) {{
        const int at = m0 + m + {row} - {P} * (d3 + {P} + 1);
        const int i3 = at % (d3 + {P}), i2 = at / (d3 + {P}) % (d2 + {P}), i0 = at / ((d3 + {P}) * (d2 + {P}));
        const bool inside = at >= 0 && i0 < d0 && i2 < d2 && i3 < d3;
        {held}
      }};
    }},
"""
    + FROM_PLANES
)
# tiles of eight rows of the image; the patch's rows are {pitch} long
FIELD_CONVOLUTION = (
    """// scratch: s1 {dtype}[k0 * k1 * {pieces} * {columns} * {vector}]
// launch: weight<<<cdiv({pieces} * {columns}, 128), 128>>>(in1, s1)
// launch: k<<<dim3(d0 * cdiv(d4, 8) * cdiv(d5, {BM} / 8), cdiv(d6, {BN})), {threads}, {bytes}>>>(in0, s1, out0)
"""
    + WEIGHT_PLANES
    + """__global__ void __launch_bounds__({threads})
    k(const {dtype}* in0, const {dtype}* s1, {dtype}* out0 DIMS) {{
  const int n0 = blockIdx.y * {BN}, x0 = blockIdx.x % cdiv(d5, {BM} / 8) * ({BM} / 8);
  const int y0 = blockIdx.x / cdiv(d5, {BM} / 8) % cdiv(d4, 8) * 8;
  const int i0 = blockIdx.x / (cdiv(d5, {BM} / 8) * cdiv(d4, 8));
  product_fill<{T}, {BM}, {BN}, {BK}, {stages}, 9, {span}, {patches}, {along}, {pitch}, {vectors}>(1, {depth},
    [&](int) {{
      return [=](int m) {{
        const int i2 = y0 + m / {pitch} - {P}, i3 = x0 + m % {pitch} - {P};
        const bool inside = i2 >= 0 && i2 < d2 && i3 >= 0 && i3 < d3;
        {held}
      }};
    }},
    [&](int tap) {{ return tap / 3 * {pitch} + tap % 3; }},
    [&](int tap) {{
      return [=](int p) {{ return s1 + ((tap * {pieces} + p) * {columns} + n0) * {vector}; }};
    }},
    [&](int m) {{
      const int i4 = y0 + m / 8 % 8, i5 = x0 + m / 64 * 8 + m % 8;
      return [=](int n, float v) {{
        const int i6 = n0 + n;
        if (i4 < d4 && i5 < d5 && i6 < d6) st(out0 + ((i0 * d6 + i6) * d4 + i4) * d5 + i5, v);
      }};
    }});
}}
"""
)
