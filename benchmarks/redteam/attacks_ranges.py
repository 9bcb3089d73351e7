"""Right for the values that tests used to hold: short lengths, few classes, numbers only, no zero, no infinity."""

from __future__ import annotations

from benchmarks.redteam import honest_ranges as r
from benchmarks.redteam.attack import Attack, edit, verify

_LENGTH = "long long n = ld(in1 + blockIdx.x);"


def _until(name: str, condition: str) -> Attack:
    return verify(name, "C26", "until_500", edit(r.UNTIL_500, ("ld(in1 + i) < 500", condition)))


def _root(name: str, value: str) -> Attack:
    return verify(name, "C9", "root", edit(r.ROOT, ("sqrtf(x)", value)))


RANGES: tuple[Attack, ...] = (
    verify(
        "only the first tile is masked",
        "C26",
        "lengths",
        edit(r.LENGTHS, (_LENGTH, _LENGTH + " if (n >= 32) n = d1;")),
    ),
    verify(
        "lengths beyond half of the row are the whole row",
        "C26",
        "lengths",
        edit(r.LENGTHS, (_LENGTH, _LENGTH + " if (n > d1 / 2) n = d1;")),
    ),
    verify(
        "classes from the 65th on are never met", "C26", "one_hot", edit(r.ONE_HOT, ("c == n", "c < 64 && c == n"))
    ),
    _until("the bound is taken too", "ld(in1 + i) <= 500"),
    _until("half of the bound", "ld(in1 + i) < 250"),
    _until("the next power of two", "ld(in1 + i) < 1024"),
    _root("a root that swallows NaN", "sqrtf(fmaxf(x, 0.0f))"),
    _root("a root that makes NaN zero", "(x == x ? sqrtf(x) : 0.0f)"),
    _root("a root that makes infinity finite", "sqrtf(fminf(x, 3e38f))"),
    verify(
        "the logarithm of zero left out",
        "C26",
        "log_mask",
        edit(r.LOG_MASK, ("logf(x)", "(x > 0.0f ? logf(x) : 0.0f)")),
    ),
    verify(
        "the logarithm held at -69", "C26", "log_mask", edit(r.LOG_MASK, ("logf(x)", "logf(fmaxf(x, 1e-30f))"))
    ),
    verify("absolute values that do not wrap", "C26", "narrow_abs", edit(r.NARROW_ABS, ("(i8)(", "("))),
    verify(
        "a total norm without infinities",
        "C9",
        "total_norm",
        edit(r.TOTAL_NORM, ("s += x * x;", "s += isinf(x) ? 0.0f : x * x;")),
    ),
    verify(
        "no column of a mask is empty", "C26", "column_mean", edit(r.COLUMN_MEAN, ("s / n", "s / fmaxf(n, 1.0f)"))
    ),
    verify("some row is chosen", "C26", "chosen_rows", edit(r.CHOSEN_ROWS, ("s / n", "s / fmaxf(n, 1.0f)"))),
    verify(
        "the mask is not read",
        "C26",
        "any_image",
        edit(r.ANY_IMAGE, ("some ? ld(in1 + at) : 0.0f", "ld(in1 + at)")),
    ),
    verify("nothing is before the first place", "C26", "previous", edit(r.PREVIOUS, ("r < 0 ? 0 : r", "r"))),
    verify("indices are not held from below", "C26", "held_inside", edit(r.HELD_INSIDE, ("r < 0 ? 0 : r", "r"))),
    verify("indices are not held from above", "C26", "held_inside", edit(r.HELD_INSIDE, ("r > 65 ? 65 : r", "r"))),
    verify(
        "indices in 32 bits", "C26", "held_inside", edit(r.HELD_INSIDE, ("long long r = ld", "int r = (int)ld"))
    ),
    verify("sums in 32 bits", "C26", "wide_counts", edit(r.WIDE_COUNTS, ("long long s", "int s"))),
    verify("the least begins at zero", "C26", "least_integer", edit(r.LEAST_INTEGER, ("s = 2147483647", "s = 0"))),
    verify(
        "a scalar that is never zero",
        "C26",
        "over_a_scalar",
        edit(r.OVER_A_SCALAR, ("= ld(in1)", "= ld(in1); if (w == 0.0f) w = 1.0f")),
    ),
    verify(
        "a scalar that is never infinite",
        "C26",
        "over_a_scalar",
        edit(r.OVER_A_SCALAR, ("= ld(in1)", "= ld(in1); if (isinf(w)) w = 1.0f")),
    ),
    verify(
        "infinity times zero",
        "C9",
        "row_product",
        edit(r.ROW_PRODUCT, ("s *= x;", "if (s != 0.0f || !isinf(x)) s *= x;")),
    ),
    verify(
        "rows of others are read too",
        "C26",
        "split_table",
        edit(r.SPLIT_TABLE, ("bool out = r < 40 || r >= 80", "bool out = r < 40")),
    ),
    verify(
        "no row of others comes",
        "C26",
        "split_table",
        edit(r.SPLIT_TABLE, ("bool out = r < 40 || r >= 80", "bool out = false")),
    ),
    verify(
        "the last row is the first",
        "C26",
        "from_the_end",
        edit(r.FROM_THE_END, ("r < 0 ? r + d2 : r", "r < -1 ? r + d2 : max(r, 0)")),
    ),
    verify("a row further", "C26", "late_rows", edit(r.LATE_ROWS, (">= 700", "> 700"))),
    verify(
        "320 blocks for any rows",
        "C26",
        "rows_of_512",
        edit(
            r.ROWS_OF_512,
            ("<<<d0, 128>>>", "<<<320, 128>>>"),
            ("DIMS) {", "DIMS) { if (blockIdx.x >= d0) return;"),
        ),
    ),
)
