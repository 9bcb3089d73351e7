"""Plans of replies that do not hold, and what they are repaired to."""

from __future__ import annotations

import re

import pytest

from cudal1_compile.codegen.repair.code import (
    fit_copies,
    fit_loads,
    fit_means,
    fit_online,
    fit_spans,
    fit_stages,
    fit_turns,
    other_tiles,
)
from cudal1_compile.codegen.repair.plan import fit_sides, fit_vectors, other_stage, repair_order, repair_plan


@pytest.mark.parametrize(
    ("outline", "order", "repaired"),
    [
        ("out0=t1 t1=a1 t0=a0", "a0 t0 { a1 t1 out0 }", "a0 t0 { a1 t1 out0 }"),
        # before the loop, as the value that needs it
        ("out0=t1 t1=a1 t0=a0_1", "i3 t0 { a0_1 a1 t1 out0 }", "i3 a0_1 t0 { a1 t1 out0 }"),
        ("out0=t1 t1=a1 t0=a0_1", "i3 t0 { a0_1 } { a1 t1 out0 }", "i3 a0_1 t0 { a1 t1 out0 }"),
        # with what it needs itself, and where the order lacks it
        ("out0=t2 t2=a0_1,t1 t1=*a1", "{ t2 out0 }", "{ a0_1 a1 t1 t2 out0 }"),
        # a value is made again in a second loop
        ("out0=t4 t3=t2 t2=*a0", "{ a0 t2 p3 } t3 { t2 t4 out0 }", "{ a0 t2 p3 } t3 { t2 t4 out0 }"),
        # t3 stands behind t2; a store beside those of its loop
        ("out0=t4 t4=a1 t3 t2=a0", "a0 t2 { a1 t4 out0 }", "a0 t2 t3 { a1 t4 out0 }"),
        ("out1=t4 out0=t3 t4=t3 t3=a0", "a0 t3 t4 { out0 }", "a0 t3 t4 { out0 out1 }"),
        ("out0=t3 t3=a0", "{ a0 t3 } s0", "{ a0 t3 out0 } s0"),
        # scratch may come before the word of its value
        ("s0=t3 t3=a0", "{ a0 p3 } v3 s0", "{ a0 t3 p3 } v3 s0"),
        # set twice in one block, but not where an inner one makes it again
        ("out0=t1 t1=a1 t0=a0", "a0 t0 a0 t0 { a0 t0 a1 t1 a1 out0 }", "a0 t0 { a0 t0 a1 t1 out0 }"),
        ("out0=t1 t1=s0", "t1 t1 out0", "t1 t1 out0"),  # a sum in one line
        # what an earlier kernel stored: in a vector before the loop over its elements, else where it is needed
        ("out0=t2 t2 t1=*a0 *t0=out7", "a0 { t1 t2 r0 } out0", "a0 t0 { t1 t2 r0 } out0"),
        ("out0=t9 t9=t1 *t8=out8 t1=*a0 *t0=out7", "a0 t8 { t1 t9 } out0", "a0 t0 t8 { t1 t9 } out0"),
        ("out0=t2 t2 t1=a0 t0=s1", "{ a0 t1 t2 out0 }", "{ a0 t0 t1 t2 out0 }"),
        # nobody says where
        ("out0=t1 t1=a1 t0", "{ a1 t1 out0 }", "{ a1 t1 out0 }"),
    ],
)
def test_values_stand_behind_what_they_need(outline: str, order: str, repaired: str) -> None:
    assert repair_order(outline, order) == repaired
    assert repair_order(outline, repaired) == repaired


@pytest.mark.parametrize(
    ("line", "repaired"),
    [
        ("stage 0 over d1=252 along d1: warp, vector 8, block 128, registers", 4),
        ("stage 1 over d2=15,d3=676 along d3: block, vector 8, block 1024", 4),
        ("stage 1 over d0=6272 along d1=252: split_tile, vector 2, block 512, splits 64", 2),
        ("stage 0 along d2=26: exact, vector 4, block 256", 2),
        ("stage 0 along d2=26: exact, vector 2, block 256", 2),
        ("stage 0 along d2=24 rows 20,44: exact, vector 8, block 256", 4),
        ("stage 0 over d1=4087 along d1: ragged, vector 4, block 256, registers", 4),
        ("stage 0 over d1=4087 along d1: split_ragged, vector 4, block 256", 4),
        ("stage 0 over d1=4087 along d1: block, vector 4, block 256", 4),  # nothing fits
        ("stage 0 over d1=8,k0=3,k1=3 along d4=4: strip_all, vector 8, block 256", 8),  # places, not channels
        ("stage 0 over d1 along d1: block, vector 4, block 256", 4),  # of a symbolic size
    ],
)
def test_a_row_is_a_multiple_of_its_vectors(line: str, repaired: int) -> None:
    assert (
        repair_plan(f"grouped.\n{line}\n") == f"grouped.\n{re.sub('vector [0-9]+', f'vector {repaired}', line)}\n"
    )


PRODUCT = """stage 0 over d4=24 along d2=144: tf32_raw_wide, vector 1, block 512, tile 256x128x16
f0: s0=a6
f0> { a6 r6 } { s0 }
f1: *out0=t7 t12=%s t10 t8=in5,s0 t7=%s t1=*a2 t0=*a0,*a1
f1> m0 { { in5 } } { { s0 } } { i0 t8 { a0 a1 a2 a7 { t0 t1 t7 t10 t12 r0 } out0 } }
"""
OF_PRODUCT = """target ..
region v1
dims d0=32 d1=3136 d2=144 d4=24
in0 f32[d0,d1,d2]
in1 f32[d2]
in6 f32[d4,d2]
in7 f32[d0,d2]
in8 f32[d2,d0]
"""


@pytest.mark.parametrize(
    ("load", "repaired"),
    [
        ("a7,i0", "*a7,i0"),
        ("t3,a7,i0", "t3,*a7,i0"),
        ("a8,i0", "a8,i0"),
        ("a1,i0", "a1,i0"),
        ("a7", "a7"),
        ("*a7,i0", "*a7,i0"),
    ],
)
def test_what_is_loaded_along_columns_beside_vectors_is_a_vector(load: str, repaired: str) -> None:
    """A gate of an image's channels: its code had a column by a name that nothing declares, 3 of 3 regions."""
    assert fit_vectors(PRODUCT % (load, "t6"), OF_PRODUCT) == PRODUCT % (repaired, "t6")


SIDES = """split flat.
stage 0 over d2=16 along d1=96: tf32_raw_wide, vector 1, block 512, tile 256x128x16
f0: s0=a%(packed)d
f0> a%(packed)d r%(packed)d s0
f1: *out1=t1 t1=in%(raw)d,s0
f1> m0 { { in%(raw)d } } { { s0 } } { t1 { out1 } }
stage 1 along d1=96: exact, vector 4, block 256
f2: *out0=t2 t2=*t1,*a1,*a2 *t1=out1
f2> i1 a1 a2 t1 { t2 r0 } out0
"""
OF_SIDES = """region v1
dims d0=401408 d1=96 d2=16
in1 f32[d1,d2]
in2 f32[d0,d2]
t1 f32[d0,d1] = dot_tf32(in1, in2) over d2
out0 f32[d0,d1] = t2
out1 f32[{}] = t1
"""


def test_the_operand_along_whose_rows_results_lie_is_packed() -> None:
    """Of 192 plans that packed the larger one 160 did not build, and none that this changes was right."""
    taught, other = SIDES % {"packed": 1, "raw": 2}, SIDES % {"packed": 2, "raw": 1}
    rows, columns = OF_SIDES.format("d0,d1"), OF_SIDES.format("d1,d0")
    assert fit_sides(other, rows) == taught
    assert fit_sides(taught, rows) == taught
    assert fit_sides(other, columns) == other
    for stored in ("s1", "out29"):
        elsewhere = other.replace("out1=t1 t1", f"{stored}=t1 t1")
        assert fit_sides(elsewhere, rows) == elsewhere


def test_loads_one_by_one_are_left_so() -> None:
    alone = (PRODUCT % ("a7,i0", "t6")).replace("*", "")
    assert fit_vectors(alone, OF_PRODUCT) == alone


def test_needs_that_run_in_a_circle_end() -> None:
    assert set(repair_order("out0=t1 t1=t2 t2=t1", "t1 out0").split()) == {"t1", "t2", "out0"}


def test_only_orders_of_kernels_with_an_outline_are_touched() -> None:
    design = "rows.\nstage 0: block\nf0: out0=t0 t0=a0\nf0> t0 a0 out0\nf1> t1 a1\nf2: s0=t2 t2=a2\n"
    assert repair_plan(design) == design.replace("t0 a0 out0", "a0 t0 out0")
    assert repair_plan("words without a plan: f0 > f1") == "words without a plan: f0 > f1"


STAGE = "stage 0 over d1={depth},k0=3,k1=3 along d4=14: {kind}, vector 1, block 128, tile 64x32x32, near\n"


@pytest.mark.parametrize(
    ("kind", "depth", "other"),
    [
        ("tf32_wide", 6, "tf32"),
        ("tf32_raw_wide", 6, "tf32"),
        ("tf32_phased_wide", 6, "tf32_phased"),
        ("f32_split_wide", 7, "f32_split"),
        ("bf16_wide", 12, "bf16"),
        ("tf32_wide", 12, ""),
        ("f16_wide", 16, ""),
        ("tf32", 6, ""),
        ("strip", 3, ""),
    ],
)
def test_a_wide_tile_whose_rows_no_copy_divides_becomes_a_plain_one(kind: str, depth: int, other: str) -> None:
    before = "## Algorithm Design\nstaged.\n"
    stage = STAGE.format(depth=depth, kind=kind)
    found = other_stage(f"{before}{stage}f0: out0=t1 t1\n", "")
    plain = f"stage 0 over d1={depth},k0=3,k1=3 along d4=14: {other}, vector 1, block 256, tile 64x32x32\n"
    assert found == (before + plain if other else "")


@pytest.mark.parametrize(
    ("stored", "vector", "fitting"),
    [
        ("out0", 2, 1),
        ("*out0", 4, 1),
        ("*out1", 4, 2),
        ("*out1", 2, 2),
        ("out2", 4, 4),
        ("s0", 4, 4),
        ("out3", 8, 8),
    ],
)
def test_vectors_over_whole_outputs_divide_them(stored: str, vector: int, fitting: int) -> None:
    """out0 has 1287 elements, out1 546, out2 64; of out3 nobody knows."""
    prompt = (
        "region v1\ndims d0=1287 d1=42 d2=13 d3=64 d4=?5\n"
        "out0 f32[d0] = t1\nout1 f32[d1,d2] = t2\nout2 f32[d3] = t3\nout3 f32[d4] = t4\n"
    )
    stages = f"staged.\nstage 0: {'stride' if vector == 2 else 'exact'}, vector {{}}, block 128\n"
    rest = f"f0: {stored}=t1 t1=*a0\nf0> a0 {{ t1 }} out0\nstage 1 over d1=42: exact, vector 1, block 64\n"
    found = other_stage(stages.format(vector) + rest, prompt)
    assert found == ("" if fitting == vector else stages.format(fitting))


def test_the_first_stage_that_cannot_be_is_another() -> None:
    first, second = STAGE.format(depth=8, kind="tf32_wide"), STAGE.format(depth=5, kind="tf32_wide")
    assert other_stage(first + second, "").startswith(first + "stage 0 over d1=5")


@pytest.mark.parametrize(
    ("kind", "sides", "depth", "found"),
    [
        ("f32_split", "4, 1, 4, 1", "d1", "2, 1, 2, 1"),  # rows of 70
        ("f32_split", "4, d0, 4, 1", "d3", "4, d0, 4, 1"),  # runs of 64 and rows of 128
        ("f32_split", "4, 1, 1, d2", "d1", "2, 1, 1, d2"),
        ("tf32", "4, d2, 4, d2 * 4", "d1", "1, d2, 4, d2 * 4"),  # 45, 180
        ("f16", "8, 1, 8, d2", "d1", "2, 1, 1, d2"),  # a copy has 4 bytes at least, or is one element
        ("bf16", "8, d0, 8, 1", "d3 * d2", "8, d0, 8, 1"),
        ("f32_split", "4, 1, 4, d0", "max(min(step, d1 - begin), 0)", "2, 1, 4, d0"),
        ("f32_split", "4, in0_d0, 4, 1", "d1", "4, in0_d0, 2, 1"),  # a stride that no dims line names
    ],
)
def test_copies_divide_the_runs_that_they_copy(kind: str, sides: str, depth: str, found: str) -> None:
    prompt = "target sm_90a\n\nregion v1\ndims d0=64 d1=70 d2=45 d3=128\nin0 f32[d0,d1]\n"
    call = "  product_pipe<{}, 64, 32, 32, 32, 16, 3, {}>(1, {},\n    [&](int m) {{\n"
    assert fit_copies(call.format(kind, sides, depth), prompt) == call.format(kind, found, depth)


def test_other_tiles_are_left_as_they_are() -> None:
    code = "  product_tile<f32_split, 64, 32, 32, 8, 8>(d1,\n  product_wide<tf32, 128, 128, 32, 4>(1, d1,\n"
    assert fit_copies(code, "region v1\ndims d1=70\n") == code
    pipe = "product_pipe<f32_split, 64, 32, 32, 32, 16, 3, 4, 1, 4, 1>(1, d1,"
    assert fit_copies(pipe, "region v1\ndims d1=?70\n") == pipe, "of any size"


FILL = (
    "// launch: f0<<<cdiv(d1, 256), 256>>>(in1, s0)\n"
    "// launch: f1<<<dim3(cdiv(d0, 192), 2), 640, 384 + max(({} + 2 * (192 + 2 * (d3 + 1) + 2)) * {}, "
    "128 * (192 + 4) * 4)>>>(in0, s0, out0)\n"
    "__global__ void __launch_bounds__(256) f0(const f32* in1, f32* s0 DIMS) {{\n}}\n"
    "__global__ void __launch_bounds__(640) f1(const f32* in0, const f32* s0, f32* out0 DIMS) {{\n"
    "  product_fill<tf32, 192, 128, 32, {}, k0 * k1, 2 * p3 + 2, 2>(1, d1,\n}}\n"
)
PLACES = "target sm_90a, 132 SMs, 227 KB shared a block, 50 MB L2\n\nregion v1\ndims d0=900 d1=256 d3=56\n"


@pytest.mark.parametrize(
    ("places", "of_place", "stages", "repaired"),
    [
        (768, 128, 6, (768, 6)),  # 177 KB
        (384, 256, 3, (256, 2)),  # 250 KB
        (384, 128, 6, (768, 6)),  # the launch has room for three
        (768, 128, 3, (768, 6)),  # six fit
        (384, 512, 3, (384, 3)),  # not even two fit: it is not for this repair
    ],
)
def test_call_and_launch_have_the_stages_that_fit(
    places: int, of_place: int, stages: int, repaired: tuple[int, int]
) -> None:
    wanted = FILL.format(repaired[0], of_place, repaired[1])
    assert fit_stages(FILL.format(places, of_place, stages), PLACES) == wanted


def test_stages_are_left_where_sizes_or_room_are_not_known() -> None:
    code = FILL.format(384, 256, 3)
    assert fit_stages(code, PLACES.replace("d3=56", "d3=?56")) == code
    assert fit_stages(code, PLACES.replace("227 KB shared a block, ", "")) == code
    stem = code.replace("product_fill", "product_stem")
    assert fit_stages(stem, PLACES) == stem
    fit_stages(code.replace("192, 128, 32", "192, 0, 32").replace(" * 256, ", " * 0, "), PLACES)  # does not raise


@pytest.mark.parametrize(
    ("over", "tiles", "other"),
    [
        (
            "d1=64,k0=3,k1=3",
            "tf32_fill, vector 1, block 640, tile 192x64x32",
            "field, vector 1, block 640, tile 192x64x32",
        ),
        (
            "d1=64,k0=4,k1=4",
            "tf32_fill, vector 1, block 768, tile 256x128x32",
            "field, vector 1, block 512, tile 128x128x32",
        ),
        (
            "d1=64,k0=9",
            "tf32_fill, vector 1, block 640, tile 192x256x32",
            "wide, vector 1, block 256, tile 128x128x32",
        ),
        (
            "d1=64,k0=3,k1=3",
            "tf32_bulk, vector 1, block 544, tile 256x64x64",
            "wide, vector 1, block 256, tile 128x64x32",
        ),
        (
            "d1=64,k0=2,k1=2",
            "tf32_phased_fill, vector 1, block 512, tile 128x32x32",
            "phased_wide, vector 1, block 256, tile 128x32x32",
        ),
    ],
)
def test_a_stage_whose_patches_leave_no_room_is_another(over: str, tiles: str, other: str) -> None:
    """Of 4x4 windows at a stride of 2 four of eight replies asked for more than a block has."""
    before = f"## Algorithm Design\nstaged.\nstage 0 over {over} along d4=128: "
    kernels = "f0: s0=a1\nf0> a1 s0\nf1: out0=t1 t1=in0,s0\nf1> m0 t1 out0\n"
    kernels += "stage 1 along d6=64: exact, vector 4, block 256\n"
    reply = f"{before}{tiles}\n{kernels}## Code\n```cuda\n{{}}```\n"
    assert other_tiles(reply.format(FILL.format(384, 512, 3)), PLACES) == f"{before}tf32_{other}\n"
    assert not other_tiles(reply.format(FILL.format(384, 256, 3)), PLACES)
    assert not other_tiles(reply.format(FILL.format(384, 512, 3)), PLACES.replace("d3=56", "d3=?56"))


STRIP = """__global__ void __launch_bounds__(128) f0(const f32* in0, const f32* in1, f32* out0 DIMS) {{
  float r1[k0 * k1];
  for (int k = 0; k < k0 * k1; k++) r1[k] = ld(in1 + c * k0 * k1 + k);
  for (int y = 0; y < {0}; y++) {{
    const int i1 = {2} * top + y - 1;
    float a0[{1}] = {{}};
    #pragma unroll
    for (int k = 0; k < {1}; k++) {{
      const int i2 = {2} * left + k - 1;
      if (i2 >= 0 && i2 < d2) a0[k] = ld(in0 + (i1 * d2 + i2) * d3 + c);
    }}
    for (int k = 0; k < {1}; k++) {{
      #pragma unroll
      for (int p = 0; p < 2; p++) {{
        const int w0 = {3};
        if (w0 < 0 || w0 >= k0) continue;
        for (int q = 0; q < 4; q++) {{
          const int w1 = {4};
          if (w1 < 0 || w1 >= k1) continue;
          t0[p][q] += a0[k] * r1[w0 * k1 + w1];
        }}
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    ("stride", "meets", "right"),
    [
        (2, ("y - 2 * p", "k - 2 * q"), ("2 + k0", "6 + k1")),
        (1, ("y - p", "k - q"), ("1 + k0", "3 + k1")),
        (3, ("(y - 3 * p) / 2", "(k - 3 * q) / 2"), ("4 + 2 * (k0 - 1)", "10 + 2 * (k1 - 1)")),
        (1, ("p + (k0 - 1) - y", "q + (k1 - 1) - k"), ("1 + k0", "3 + k1")),
        (2, ("(2 * p + 2 * (k0 - 1) - y) / 2", "k - 2 * q"), ("3 + 2 * (k0 - 1)", "6 + k1")),
    ],
)
@pytest.mark.parametrize(
    "stated", [("3 + k0", "3 + k1"), ("1 * k0", "7 + 2 * (k1 - 1)"), ("2 * (8 - 1) + k0", "2 + k1")]
)
def test_strips_walk_over_all_that_their_results_read(
    stride: int, meets: tuple[str, str], right: tuple[str, str], stated: tuple[str, str]
) -> None:
    wanted = STRIP.format(*right, stride, *meets)
    assert fit_spans(wanted) == wanted
    assert fit_spans(STRIP.format(*stated, stride, *meets)) == wanted


ROWS = "for (int y = 0; y < {}; y++) {{\n  for (int j = 0; j < 8; j++) {{\n    const int w0 = y - 2 * j;\n"


def test_each_kernel_has_spans_of_its_own() -> None:
    head = "__global__ void f{}(f32* out0 DIMS) {{\n"
    other = ROWS.replace("2 * j", "j")
    stated = head.format(0) + ROWS.format("3 + k0") + "}\n" + head.format(1) + other.format("3 + k0")
    wanted = head.format(0) + ROWS.format("14 + k0") + "}\n" + head.format(1) + other.format("7 + k0")
    assert fit_spans(stated) == wanted


def test_spans_as_strips_of_rows_write_them_stay() -> None:
    assert fit_spans(ROWS.format("2 * (8 - 1) + k0")) == ROWS.format("2 * (8 - 1) + k0")
    assert fit_spans(ROWS.format("2 * (4 - 1) + k0")) == ROWS.format("14 + k0")
    assert fit_spans(ROWS.format("k0")) == ROWS.format("k0"), "of weights alone, as far as anybody knows"
    assert fit_spans(ROWS.format("k0 * 3")) == ROWS.format("k0 * 3"), "of another form"


def test_whatever_a_reply_says_of_a_strip_does_not_raise() -> None:
    for old, new in (
        ("2 * j", "0 * j"),
        ("y - 2 * j", "(y - 2 * j) / 0"),
        ("< 8", "< 0"),
        ("< 8", f"< {'9' * 5000}"),
    ):
        fit_spans(ROWS.format("3 + k0").replace(old, new))
    fit_spans("")


@pytest.mark.parametrize(
    ("address", "single"),
    [
        ("in0 + i0 * d2 + min(i1, d2 - 2)", "in0 + i0 * d2 + min(i1 + j, d2 - 1)"),  # rows of 75
        ("in0 + (i0 * d1 + i1) * d2 + max(i2 - 4, 0)", "in0 + (i0 * d1 + i1) * d2 + max(i2 - 4 + j, 0)"),
        ("in1 + i0 * d1 + max(c - 75, 0)", "in1 + i0 * d1 + max(c - 75 + j, 0)"),  # of 150, but shifted by 75
        ("in1 + i0 * d1 + max(c - 74, 0)", ""),
        ("in1 + i0 * d1 + min(c, d1 - 2)", ""),
        ("in1 + i0 * d1 + min(c, d2 - 2)", ""),  # the bound of another axis
        ("in2 + i0 * d2 + min(i1, d2 - 2)", ""),  # strided
        ("in1 + i0 * d2 + min(i1, d2 - 2)", ""),  # not its rows
        ("in3 + i0 * d3 + min(i1, d3 - 2)", ""),  # of any size
    ],
)
def test_vectors_along_rows_that_they_do_not_divide_are_single_loads(address: str, single: str) -> None:
    prompt = (
        "region v1\ndims d0=61 d1=150 d2=75 d3=?9\nin0 f32[d0,d2]\nin1 f32[d0,d1]\n"
        "in2 f32[d0,d2] strides(80,1)\nin3 f32[d0,d3]\n"
    )
    load = f"  vload<2>({address}, a0_1[k]);\n"
    loop = f"  #pragma unroll\n  for (int j = 0; j < 2; j++) a0_1[k][j] = ld({single});\n"
    assert fit_loads(load, prompt) == (loop if single else load)


def test_a_mean_is_that_of_its_own_variance() -> None:
    """Where two norms are added each of eight replies had them the other way round, or did not build."""
    prompt = "region v1\nt0 f32[d1] = mean(in0) over d0\nt2 f32[d1] = var(in0, 0.0) over d0\n"
    prompt += (
        "t8 f32[d1] = mean(in3) over d0\nt9 f32[d1] = mean(in3) over d1\nt10 f32[d1] = var(in3, 0.0) over d0\n"
    )
    code = "const float t0 = m{};\nconst float t8 = m{};\nconst float t9 = m2;\nconst float m2 = p2 / d0;\n"
    assert fit_means(code.format(10, 2), prompt) == code.format(2, 10)
    assert fit_means(code.format(2, 10), prompt) == code.format(2, 10)


TURN = """// launch: f0<<<cdiv({c}, 64) * cdiv(d9, 64), 256>>>(in2, s0)
// launch: f1<<<cdiv(d6, 64), 256>>>(s0, out0)
__global__ void __launch_bounds__(256) f0(const f32* __restrict__ in2, f32* __restrict__ s0 DIMS) {{
  const int b = blockIdx.x;
  const int left = b % cdiv({c}, 64) * 64, top = b / cdiv({c}, 64) % cdiv(d9, 64) * 64;
  turn_tile<64, 64, 256>(
    [&](int row, int column) {{
      const int y = top + row, x = left + column;
      if (!(y < d9 && x < {c})) return 0.0f;
      const float a2 = ld(in2 + y * {step} + x);
      return a2;
    }},
    [&](int row, int column, float a2) {{
      const int y = top + row, x = left + column;
      if (y < d9 && x < {c}) st(s0 + x * d9 + y, a2);
    }});
}}
__global__ void f1(const f32* __restrict__ s0, f32* __restrict__ out0 DIMS) {{
  if (blockIdx.x < cdiv(d6, 64)) st(out0, ld(s0));
}}
"""


@pytest.mark.parametrize(
    ("axes", "said", "columns"),
    [
        ("d9,k0,k1,d6", ("d6", "(k0 * k1)"), ("k0 * k1 * d6", "(k0 * k1 * d6)")),
        ("d9,k0,k1,d6", ("d6", "k0 * k1)"), ("k0 * k1 * d6", "(k0 * k1 * d6)")),  # 8 of 8 replies to three regions
        ("d9,k0,k1,d6", ("k0 * k1 * d6", "(k0 * k1 * d6)"), ("k0 * k1 * d6", "(k0 * k1 * d6)")),
        ("d9,d6", ("d6", "d6"), ("d6", "d6")),
        ("d8,k0,d6", ("d6", "k0"), ("d6", "k0")),  # rows are not its first axis
    ],
)
def test_a_weight_is_turned_with_its_windows(axes: str, said: tuple[str, str], columns: tuple[str, str]) -> None:
    """The gradient of a strided convolution: all replies to three regions turned its last axis alone."""
    prompt = f"region v1\nin2 f32[{axes}]\n"
    reply = TURN.format(c=said[0], step=said[1])
    assert fit_turns(reply, prompt) == TURN.format(c=columns[0], step=columns[1])


def test_a_vector_of_no_element_does_not_raise() -> None:
    load = "  vload<0>(in0 + i0 * d1 + min(i1, d1 - 2), a0);\n"
    assert fit_loads(load, "region v1\ndims d0=3 d1=75\nin0 f32[d0,d1]\n") == load


def test_a_sum_of_exponentials_follows_its_running_maximum() -> None:
    """The model's own words, in seven of eight replies to the loss over 50,257 tokens."""
    line = "    const float w1 = maximum(p1, {});\n    p4 = p4 * expf({} - w1){};\n    p1 = w1;\n"
    for value in ("a1", "t0", "t5x1"):
        right = line.format(value, "p1", f" + expf({value} - w1)")
        assert fit_online(line.format(value, value, "")) == right == fit_online(right)
    other = line.format("a1", "a2", "")
    assert fit_online(other) == other, "of another value, as far as anybody knows"
