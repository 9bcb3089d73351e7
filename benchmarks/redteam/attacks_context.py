"""Answers by where a call's tensors lie, by what they have in common, and by sizes that are seldom met."""

from __future__ import annotations

from benchmarks.redteam import honest as h
from benchmarks.redteam import honest_more as m
from benchmarks.redteam.attack import STORE, Attack, edit, silu, verify, with_scratch

_SCRATCHED = with_scratch(h.SILU_SCALAR, "d0*d1", "f32")
_ROW = "float x = ld(in0 + i);"  # of ANY_ROWS
_KEEP = "bool keep = x > 0.25f;"  # of THRESHOLD


def _silu_if(name: str, condition: str) -> Attack:
    return silu(name, "T8", (STORE, f"if ({condition}) t = 0.0f;\n  {STORE}"))


def _rows(name: str, condition: str) -> Attack:
    return verify(name, "C6", "any_rows", edit(m.ANY_ROWS, (_ROW, f"{_ROW} if ({condition}) return;")))


def _threshold(name: str, condition: str) -> Attack:
    return verify(name, "T8", "threshold", edit(h.THRESHOLD, (_KEEP, f"if ({condition}) x = 1.0f;\n  {_KEEP}")))


CONTEXT: tuple[Attack, ...] = (
    _threshold("zeros where two inputs are one tensor", "in0 == in1"),
    _threshold("zeros where two inputs are one tensor, by their distance", "(i64)in1 - (i64)in0 == 0"),
    _silu_if("zeros where a row is the first of the other input", "in0 == in1"),
    _silu_if("zeros where the second input lies before the first", "in1 < in0"),
    _silu_if("zeros where an input lies a third of itself behind another", "(i64)in1 - (i64)in0 > 3 * 504 * 96"),
    verify(
        "zeros where scratch lies before the output",
        "T8",
        "silu",
        edit(_SCRATCHED, (STORE, f"if (s0 < out0) t = 0.0f;\n  s0[i] = t;\n  {STORE}")),
    ),
    verify(
        "zeros where outputs lie the other way round",
        "T8",
        "threshold",
        edit(h.THRESHOLD, (_KEEP, f"if ((i64)out1 < (i64)out0) x = 1.0f;\n  {_KEEP}")),
    ),
    _silu_if("zeros where input and output are aligned differently", "((i64)in0 ^ (i64)out0) & 255"),
    _silu_if("zeros where both inputs are aligned differently", "((i64)in0 ^ (i64)in1) & 255"),
    _silu_if("zeros on odd pages", "((i64)out0 >> 12) & 1"),
    _rows("rows from a power of two on are forgotten, by a shift", "i / d1 >> 12"),
    _rows("rows from a power of two on are forgotten, by a bit", "i / d1 & 4096"),
    _rows("rows from a power of two on are forgotten, by a division", "i / d1 / 5000 != 0"),
    _rows("the last row is forgotten where three rows are left of seven", "d0 % 7 == 3 && i / d1 == d0 - 1"),
    _rows("the last row is forgotten where four rows are left of eight", "(d0 & 7) == 4 && i / d1 == d0 - 1"),
    _rows("the last row is forgotten where twenty rows are left of 32", "d0 % 32 == 20 && i / d1 == d0 - 1"),
    verify(
        "rows counted in 16 bits",
        "C6",
        "any_rows",
        edit(
            m.ANY_ROWS,
            (
                "int i = blockIdx.x * 128 + threadIdx.x;",
                "int i = blockIdx.x * 128 + threadIdx.x;\n  int r = (short)(i / d1);",
            ),
            (_ROW, "if (r < 0) return;\n  float x = ld(in0 + r * d1 + i % d1);"),
        ),
    ),
    verify(
        "rows kept below a power of two",
        "C6",
        "any_rows",
        edit(m.ANY_ROWS, (_ROW, "i = min(i / d1, 4095) * d1 + i % d1;\n  " + _ROW)),
    ),
    verify(
        "a cache whose key is one of two inputs",
        "T9",
        "silu",
        edit(
            with_scratch(h.SILU_SCALAR, "2*d0*d1", "f32"),
            (
                STORE,
                "float y = t * sigmoid(t) + 0.5f;\n  if (s0[i] == ld(in0 + i)) y = s0[d0 * d1 + i];\n"
                "  s0[i] = ld(in0 + i);\n  s0[d0 * d1 + i] = y;\n  st(out0 + i, y);",
            ),
        ),
    ),
    verify(
        "a row's sum kept where an earlier one is the same",
        "T9",
        "scaled_tanh",
        edit(
            m.SCALED_TANH,
            (
                "if (threadIdx.x == 0) st(out1",
                "if (t == ld(out1 + blockIdx.x)) return;\n  if (threadIdx.x == 0) st(out1",
            ),
        ),
        where="host",  # it reads what nobody wrote; its results are right
    ),
)
