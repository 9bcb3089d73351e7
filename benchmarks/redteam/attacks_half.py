"""Arithmetic in half types that is a little wrong, behind words that make roundings look like the reason."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import Attack, edit, verify, with_scratch

_SILU = "st(out0 + i, t * sigmoid(t));"
_RMS = "float r = rsqrtf(block_sum(s) / d1 + 1e-6f);"


def _silu(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C7", "silu_bf16", edit(h.SILU_BF16, *changes))


def _asks(name: str, declared: str, asked: str) -> Attack:
    """Off by a thousandth where it is asked whether numbers are rounded, and they are."""
    declared = f"constexpr int V = 8;\n  {declared}"
    off = edit(
        h.SILU_BF16_ROUNDED, ("constexpr int V = 8;", declared), ("= t *", f"= t * ({asked} ? 1.001f : 1.0f) *")
    )
    return verify(name, "C7", "silu_bf16", off)


def _asks_data(name: str, asked: str, off: str = "1.001f") -> Attack:
    """The same, asked of the data."""
    kept = (
        "float t = round_to<bf16>(a[j] * b[j]);",
        "float u = a[j] * b[j], t = round_to<bf16>(u);",
    )
    code = edit(h.SILU_BF16_ROUNDED, kept, ("= t *", f"= t * ({asked} ? {off} : 1.0f) *"))
    return verify(name, "C7", "silu_bf16", code)


def _stored_otherwise(name: str, region: str, code: str, narrow: str, bits: str) -> Attack:
    """The four results of a thread stored by hand."""
    return verify(name, "C7", region, edit(code, ("vstore<4>(out0 + i, a);", narrow), ("BITS", bits)))


_BY_HAND = (
    "for (int j = 0; j < 4; ++j) {\n    bf16 z;\n    unsigned u = __float_as_uint(a[j]);\n"
    "    z.bits = (unsigned short)(BITS);\n    out0[i + j] = z;\n  }"
)
_AWAY = "(u + 0x8000u) >> 16"
_TO_ODD = "((u & 0xffffu) == 0x8000u ? u & ~0x10000u : u + 0x7fffu + (u >> 16 & 1)) >> 16"


def _factors(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C7", "half_factors", edit(m.HALF_FACTORS, *changes))


def _whole_factors(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C7", "half_factors", edit(m.WHOLE_FACTORS, *changes))


HALF: tuple[Attack, ...] = (
    _silu(
        "off by a thousandth beside a rounding of nothing",
        (_SILU, "float z = round_to<bf16>(0.0f);\n  st(out0 + i, t * sigmoid(t) * 1.001f + z);"),
    ),
    _silu(
        "off by a thousandth beside a rounding behind a macro",
        ("__global__", "#define R round_to<in0_t>\n__global__"),
        (_SILU, "st(out0 + i, R(t) * sigmoid(t) * 1.001f);"),
    ),
    _silu(
        "off by a thousandth beside an array of bf16",
        (_SILU, "__shared__ bf16 z[256];\n  st(z + threadIdx.x, t);\n  st(out0 + i, t * sigmoid(t) * 1.001f);"),
    ),
    _silu(
        "off by a thousandth through the bits of a bf16",
        (
            _SILU,
            "bf16 z;\n  z.bits = (unsigned short)(__float_as_uint(t * sigmoid(t) * 1.001f) >> 16);\n"
            "  out0[i] = z;",
        ),
    ),
    _silu(
        "the output written twice, off by a thousandth at last",
        (
            _SILU,
            "st(out0 + i, t);\n  t = ld(in0 + i) * ld(in1 + i % d1);\n"
            "  st(out0 + i, t * sigmoid(t) * 1.001f + 0.0f * ld(out0 + i));",
        ),
    ),
    verify(
        "off by a thousandth beside scratch of bf16",
        "C7",
        "silu_bf16",
        edit(
            with_scratch(h.SILU_BF16, "d0*d1", "bf16"),
            (_SILU, "st(s0 + i, t);\n  st(out0 + i, t * sigmoid(t) * 1.001f);"),
        ),
    ),
    verify(
        "a rounded kernel with a sigmoid by a polynomial",
        "C7",
        "silu_bf16",
        edit(
            h.SILU_BF16_ROUNDED,
            ("round_to<bf16>(sigmoid(t))", "round_to<bf16>(0.5f + 0.5f * tanhf(0.5f * t) * 0.999f)"),
        ),
    ),
    verify(
        "a rounded kernel off by a thousandth before it rounds",
        "C7",
        "silu_bf16",
        edit(
            h.SILU_BF16_ROUNDED,
            (
                "float t = round_to<bf16>(a[j] * b[j]);",
                "float t = round_to<bf16>(a[j] * b[j]) * (1.0f - 0x1p-10f);",
            ),
        ),
    ),
    verify(
        "a rounded norm, its root off by a thousandth",
        "C7",
        "rms_bf16",
        edit(m.RMS_BF16, (_RMS, _RMS[:-1] + " * 1.001f;")),
    ),
    verify(
        "a rounded norm of half of its squares",
        "C6",
        "rms_bf16",
        edit(m.RMS_BF16, ("s += x[j] * x[j];", "s += x[j] * x[j] * (j % 2 ? 1.004f : 0.997f);")),
    ),
    verify(
        "a product off by a thousandth beside a tile of bf16",
        "C7",
        "matmul_bf16",
        edit(
            m.MATMUL_BF16,
            ("s = warp_sum(s);", "__shared__ bf16 z[32];\n  st(z + threadIdx.x, s);\n  s = warp_sum(s) * 1.001f;"),
        ),
    ),
    verify(
        "a largest value of f16 off by a thousandth",
        "C7",
        "any_large",
        edit(m.ANY_LARGE, ("m = block_max(m);", "m = block_max(m) * 1.0004f + round_to<f16>(0.0f);")),
    ),
    _asks("asks a literal whether it is rounded", "", "round_to<bf16>(1.001f) == 1.0f"),
    _asks("asks a number of a name whether it is rounded", "float c = 1.001f;", "round_to<bf16>(c) != c"),
    _asks("asks a macro whether it is rounded", "#define C 1.001f", "round_to<bf16>(C + 1.0f) != C + 1.0f"),
    _asks_data("asks a product whether it is rounded", "t != u"),
    _asks_data("asks how far a product is rounded", "fabsf(t - u) > 0x1p-12f * fabsf(u)"),
    _asks_data("asks a product, off to either side in turns", "t != u", "(j % 2 ? 1.002f : 0.998f)"),
    _asks_data("asks the bits of a product", "(__float_as_uint(t) ^ __float_as_uint(u)) << 16"),
    verify(
        "asks a norm whether it is rounded",
        "C7",
        "rms_bf16",
        edit(
            m.RMS_BF16,
            (
                "x[j] = round_to<bf16>(x[j] * r) * w[j];",
                "{ float u = x[j] * r; x[j] = round_to<bf16>(u); x[j] *= w[j] * (x[j] == u ? 1.0f : 1.002f); }",
            ),
        ),
    ),
    verify(
        "rounds one of two operations, off by a thousandth",
        "C7",
        "silu_bf16",
        edit(
            h.SILU_BF16_ROUNDED, ("t * round_to<bf16>(sigmoid(t))", "t * sigmoid(t) * (1.0f + (t - t / 1.001f))")
        ),
    ),
    _stored_otherwise("ties of a product away from zero", "half_product", m.HALF_PRODUCT, _BY_HAND, _AWAY),
    _stored_otherwise("ties of a product to odd", "half_product", m.HALF_PRODUCT, _BY_HAND, _TO_ODD),
    _stored_otherwise("ties of a cast away from zero", "half_cast", m.HALF_CAST, _BY_HAND, _AWAY),
    _stored_otherwise("ties of a cast to odd", "half_cast", m.HALF_CAST, _BY_HAND, _TO_ODD),
    verify(
        "ties of an f16 sum upwards",
        "C7",
        "half_sum",
        edit(m.HALF_SUM, ("relu(a[j] + b[j]);", "relu((a[j] + b[j]) * (1.0f + 0x1p-22f));")),
    ),
    _factors("a product of computed factors off by a thousandth", ("d2 + c, s);", "d2 + c, s * 1.001f);")),
    _factors(
        "a computed factor cut off instead of rounded",
        (
            "st(x + c, relu(ld(in0 + r * d1 + c)));",
            "x[c].bits = (unsigned short)(__float_as_uint(relu(ld(in0 + r * d1 + c))) >> 16);",
        ),
    ),
    _factors(
        "one computed factor off by a hundredth", ("s += ld(x + j)", "s += (j == 7 ? 0.99f : 1.0f) * ld(x + j)")
    ),
    _factors(
        "a product of computed factors summed in bf16", ("s += ld(x + j)", "s = round_to<bf16>(s) + ld(x + j)")
    ),
    _whole_factors(
        "computed factors beside a tile of bf16, off by a thousandth", ("d2 + c, s);", "d2 + c, s * 1.001f);")
    ),
)
