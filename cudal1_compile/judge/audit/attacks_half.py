"""Arithmetic in half types that is a little wrong, behind words that make roundings look like the reason."""

from __future__ import annotations

from cudal1_compile.judge.audit import honest as h
from cudal1_compile.judge.audit import honest_more as m
from cudal1_compile.judge.audit.attack import Attack, edit, verify, with_scratch

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
)
