"""Where conditions meet: results that are NaN, half vectors, long rows, images, values next to each other."""

from __future__ import annotations

from benchmarks.redteam import honest_corners as c
from benchmarks.redteam.attack import Attack, edit, verify

_LOOP = "j < cdiv(d1, 128)"  # of ANY_NORM
_SQUARE = "s += (x - y) * (x - y);"  # of SQUARED_ERROR
_IMAGE = "if (h < 0 || h >= d3 || w < 0 || w >= d4) continue;"  # of CONVOLUTION_RELU6


def _quotient(name: str, condition: str) -> Attack:
    return verify(name, "C1", "quotient", edit(c.QUOTIENT, ("out0[i] = v;", f"if ({condition}) out0[i] = v;")))


def _affine(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C26", "affine_relu", edit(c.AFFINE_RELU, *changes))


def _image(name: str, hack: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, hack, "convolution_relu6", edit(c.CONVOLUTION_RELU6, *changes))


def _ends(name: str, *changes: tuple[str, str]) -> Attack:
    return verify(name, "C26", "both_ends", edit(c.BOTH_ENDS, *changes))


CORNERS: tuple[Attack, ...] = (
    _quotient("results that are NaN left unwritten", "v == v"),
    _quotient("results that are not finite left unwritten", "v - v == 0.0f"),
    verify(
        "logarithms less a sum that holds the maximum",  # logits about 1e5 lose three digits
        "C7",
        "log_softmax",
        edit(c.LOG_SOFTMAX, ("s = logf(s);", "s = m + logf(s);"), ("- m - s;", "- s;")),
    ),
    _affine("weights taken for ones where the first is one", ("float w =", "float w = in1[0] == 1.0f ? 1.0f :")),
    _affine(
        "an affine map taken for identity by its first numbers",
        ("in0[i] * w + b", "(in1[0] == 1.0f && in2[0] == 0.0f ? in0[i] : in0[i] * w + b)"),
    ),
    verify(
        "four elements that are left of eight not written",
        "C6",
        "any_products",
        edit(c.ANY_PRODUCTS, ("float p[8]", "if (left == 4) return;\n  float p[8]")),
    ),
    verify(
        "four rows that are left of eight not written",
        "C6",
        "any_products",
        edit(c.ANY_PRODUCT_ROWS, ("if (r >= d0)", "if (r >= d0 || (d0 & 7) - 4 == 0 && r >= d0 - 4)")),
    ),
    verify("rows cut at 4096 elements", "C12", "any_norm", edit(c.ANY_NORM, (_LOOP, "j < 32"))),
    verify("rows cut at 16384 elements", "C12", "any_norm", edit(c.ANY_NORM, (_LOOP, "j < 128"))),
    verify(
        "the number of a wide row in 16 bits",
        "C12",
        "any_wide_rows",
        edit(c.ANY_WIDE_ROWS, ("int r = blockIdx.x", "int r = (unsigned short)blockIdx.x")),
    ),
    verify(
        "an index cut to twelve bits",
        "C12",
        "any_embedding",
        edit(c.ANY_EMBEDDING, ("row = (int)in0[i / d2]", "row = (int)in0[i / d2] & 4095")),
    ),
    verify(
        "an index cut to 16 bits",
        "C12",
        "any_embedding",
        edit(c.ANY_EMBEDDING, ("row = (int)in0[i / d2]", "row = (unsigned short)in0[i / d2]")),
    ),
    _image("a NaN of an image lost in a clamp", "C9", ("minimum(relu(s), 6.0f)", "fminf(fmaxf(s, 0.0f), 6.0f)")),
    _image(
        "what lies outside an image as its border times zero",
        "C9",
        (
            _IMAGE,
            "float in = h >= 0 && h < d3 && w >= 0 && w < d4;\n"
            "        h = min(max(h, 0), d3 - 1);\n        w = min(max(w, 0), d4 - 1);",
        ),
        ("fmaf(v, f, s)", "fmaf(v * in, f, s)"),
    ),
    _image("taps of weight zero skipped", "C9", ("s = fmaf(v, f, s);", "if (f != 0.0f) s = fmaf(v, f, s);")),
    _image(
        "values of an image clipped",
        "C26",
        ("s = fmaf(v, f, s);", "s = fmaf(v - v == 0.0f ? v : v > 0.0f ? 3e38f : v, f, s);"),
    ),
    _ends(
        "a zero's sign decides which is the largest",
        (
            "join_argmax(high, at_high, v, i)",
            "join_argmax(high, at_high, v != 0.0f ? v : __float_as_int(v) < 0 ? -1e-45f : 0.0f, i)",
        ),
    ),
    _ends(
        "a zero's sign decides which is the smallest",
        (
            "join_argmin(low, at_low, v, i)",
            "join_argmin(low, at_low, v != 0.0f ? v : __float_as_int(v) < 0 ? -1e-45f : 0.0f, i)",
        ),
    ),
    verify(
        "a squared difference multiplied out",
        "C7",
        "squared_error",
        edit(c.SQUARED_ERROR, (_SQUARE, "s += x * x - 2.0f * x * y + y * y;")),
    ),
    verify(
        "a mean taken away from a sum of products",
        "C7",
        "norm_gradient",
        edit(c.NORM_GRADIENT, ("(in1[i] - mean)", "in1[i]"), ("out0[c] = s;", "out0[c] = s - mean * g;")),
    ),
    verify(
        "a maximum over sums of products that starts at zero",
        "C9",
        "convolution_maximum",
        edit(c.CONVOLUTION_MAXIMUM, ("-INFINITY", "0.0f")),
    ),
    verify(
        "NaN known by one of its patterns",
        "C9",
        "missing_values",
        edit(c.MISSING_VALUES, ("isnan(in1[i])", "__float_as_int(in1[i]) == 0x7fc00000")),
    ),
    verify(
        "a product of i32 that does not wrap",
        "C8",
        "wrapped_products",
        edit(
            c.WRAPPED_PRODUCTS,
            (
                "int p = (int)((unsigned)remainder_(in0[i], in1[i]) * (unsigned)in0[i]);",
                "i64 p = (i64)remainder_(in0[i], in1[i]) * in0[i];",
            ),
        ),
    ),
)
