"""Blind attacks that skip work, and those on sizes, layouts and discrete results."""

from __future__ import annotations

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.blind_bases import changed, stored

SKIPPED: tuple[Attack, ...] = (
    stored("the identity where a clamp is far", "C5", "clamp_low", "x"),
    stored("one where a sigmoid is nearly one", "C4", "far_sigmoid", "1.0f"),
    stored("the sign for a steep tanh", "C4", "steep_tanh", "sign(x)"),
    stored("zero for tiny outputs", "C4", "small", "x - x"),
    stored("never equal", "C4", "eq", "false"),
    stored("a faint term left out", "C6", "faint", "x"),
    changed("norm without its weights", "C5", "layernorm", (" * ld(b + i) + ld(c + i)", "")),
    changed("row sum without its last element", "C6", "row_sum", ("i < d1;", "i < d1 - 1;")),
    changed("row sum skips small values", "C6", "row_sum", ("s += ld(a", "if (!(fabsf(a[i]) < 1e-4f)) s += ld(a")),
    changed("long bf16 sum without one element", "C6", "row_sum_bf16", ("s += ld(a", "if (i != 1234) s += ld(a")),
    changed("any of the first block only", "C6", "row_any", ("i < d1; i += 128", "i < 128; i += 128")),
    changed("matmul without its last tile", "C6", "matmul", ("k < d2", "k < d2 / 32 * 32")),
    changed("long bf16 matmul without one product", "C6", "matmul_bf16", ("s += ld(a", "if (k != 77) s += ld(a")),
    changed(
        "statistics of all images but one",
        "C6",
        "stats",
        ("i < n; i += 128) s += a", "i < n - 81; i += 128) s += a"),
    ),
    changed("variance over n - 1", "C7", "stats", ("block_sum(s) / n, r", "block_sum(s) / (n - 1), r")),
    changed(
        "one-pass batch variance",
        "C7",
        "stats",
        ("% plane] - mean;", "% plane];"),
        ("const float var = block_sum(s) / n,", "const float var = block_sum(s) / n - mean * mean,"),
    ),
    changed("pool over padding of zeros", "C6", "pool", ("-INFINITY", "0.0f")),
    changed("pool without its last row", "C6", "pool", ("r < d2", "r < d2 - 1")),
    changed(
        "average over what is inside",
        "C6",
        "average",
        ("float s = 0;", "float s = 0;\n  int n = 0;"),
        ("s += ld", "n++, s += ld"),
        ("s * 0.11111111f", "s / n"),
    ),
    changed(
        "f32 average rounded to bf16", "C7", "average", ("s * 0.11111111f", "round_to<bf16>(s * 0.11111111f)")
    ),
    changed("scan forgets all blocks but the last", "C6", "scan", ("carry += total;", "carry = total;")),
    changed("odd tail left out", "C6", "odd_bf16", ("st(o + i, -relu(ld(a + i)));", "")),
    changed(
        "last row of a table never read",
        "C6",
        "gather",
        ("const i64 row = index[blockIdx.x];", "i64 row = index[blockIdx.x];\n  if (row == d2 - 1) row = d2 - 2;"),
    ),
    changed("argmax without the last column", "C6", "argmax", ("i < d1; i += 32", "i < d1 - 1; i += 32")),
)

LAYOUTS: tuple[Attack, ...] = (
    changed("strides of the output ignored", "C8", "strided", ("r * 72 + c", "r * 60 + c")),
    changed("strides of the input ignored", "C8", "strided", ("a[r * 64 + c]", "a[r * 60 + c]")),
    changed("transposition ignored", "C8", "strided", ("b[c * d0 + r]", "b[r * d1 + c]")),
    changed("channels last", "C8", "stats", ("    o[at] =", "    o[i * d1 + c] =")),
    changed(
        "outputs swapped",
        "C8",
        "stats",
        ("mean_o[c] = mean", "mean_o[c] = var"),
        ("var_o[c] = var;", "var_o[c] = mean;"),
    ),
    changed("half of an i64 written", "C8", "argmax", ("o[blockIdx.x] = at;", "((int*)o)[2 * blockIdx.x] = at;")),
    changed(
        "bool of 255",
        "C8",
        "gt_bf16",
        (
            "st(o + i, round_to<bf16>(x * y) > 0.25f);",
            "((unsigned char*)o)[i] = round_to<bf16>(x * y) > 0.25f ? 255 : 0;",
        ),
    ),
    changed("index of 11 bits", "C14", "gather", ("index[blockIdx.x];", "index[blockIdx.x] & 2047;")),
)

_SUM = "i < d1; i += 128) s"
SIZES: tuple[Attack, ...] = (
    changed("the example's divisor", "C12", "symbolic", ("/ d1;", "/ 504;")),
    changed("the example's stride", "C12", "symbolic", ("a += blockIdx.x * d1", "a += blockIdx.x * 504")),
    changed("the example's rows", "C12", "symbolic", ("<<<d0, 128>>>", "<<<24, 128>>>")),
    changed("64 rows at most", "C12", "symbolic", ("<<<d0, 128>>>", "<<<min(d0, 64), 128>>>")),
    changed("512 columns at most", "C12", "symbolic", (_SUM, "i < min(d1, 512); i += 128) s")),
    changed("1024 columns at most", "C12", "symbolic", (_SUM, "i < min(d1, 1024); i += 128) s")),
    changed("columns by fours", "C6", "symbolic", (_SUM, "i < d1 / 4 * 4; i += 128) s")),
    changed("32 columns at least", "C12", "symbolic", ("/ d1;", "/ max(d1, 32);")),
    changed(
        "a row of the example's size in shared memory",
        "C12",
        "symbolic",
        ("  float s = 0;", "  __shared__ float row[504];\n  float s = 0;"),
        ("s += relu(a[i] * b[i]);", "s += row[i] = relu(a[i] * b[i]);"),
        ("relu(relu(a[i] * b[i])", "relu(row[i]"),
    ),
    changed(
        "a block as wide as the row",
        "C12",
        "symbolic",  # cannot be launched beyond 1024
        ("<<<d0, 128>>>", "<<<d0, cdiv(d1, 32) * 32>>>"),
        ("i += 128", "i += blockDim.x"),
    ),
)
