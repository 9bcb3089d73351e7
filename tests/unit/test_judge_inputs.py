"""Inputs: inside their domains, repeatable, different from each other, strided as declared; indices in bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch

from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks.case_suite import CaseSuite, prepare_suite
from cudal1_compile.judge.inputs import floats
from cudal1_compile.judge.inputs.extremes import (
    INFINITE,
    MAGNITUDES,
    NONFINITE,
    SCALARS,
    ZEROS,
    nan_of_all_kinds,
    summed_degree,
    with_magnitudes,
)
from cudal1_compile.judge.inputs.floats import MIXED
from cudal1_compile.judge.inputs.indices import IndexRange, index_range, markers
from cudal1_compile.judge.inputs.make import DISTRIBUTIONS, make_inputs
from cudal1_compile.judge.inputs.names import TIED_VALUES
from cudal1_compile.judge.timing.least_bytes import least_bytes
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.text import parse_program

CPU = torch.device("cpu")
DOMAINS = parse_program("""region v1
dims d0=64 d1=50 d2=7
in0 f32[d0,d1] >0
in1 f32[d0,d1] >=0
in2 f32[d0,d1] in [-1,1]
in3 bf16[d0,d1] <=0
in4 i64[d0] in [0,d2)
in5 f16[d0,d1] in (0,1]
in6 bool[d0,d1]
in7 u8[d0]
in8 f32[d2,d1]
t0 f32[d0,d1] = mul(in8[d2=in4], in0)
out0 f32[d0,d1] = t0
""")
CONVOLUTION_AND_NORM = """region v1
dims d0=4 d1=9 d2=6 d3=6 d4=3 d5=6 d6=6 k0=3 k1=3
in0 f32[d1,d4,k0,k1]
in1 f32[d0,d4,d5,d6]
t0 f32[d0,d1,d2,d3] = dot(in0, in1[d5=d2+k0-1, d6=d3+k1-1]) over d4,k0,k1
t1 f32[d1] = var(t0, 0.0) over d0,d2,d3
out0 f32[d0,d1,d2,d3] = t0
out1 f32[d1] = t1
"""
QUOTIENTS = """region v1
dims d0=64 d1=8
in0 f32[d0,d1]
in1 f32[d0]
t0 f32[d0,d1] = div(in0, in1)
t1 f32[d0] = sum(t0) over d1
out0 f32[d0] = t1
"""
LOSS = parse_program("""region v1
dims d0=16 d1=10
in0 f32[d0,d1]
in1 i64[d0] in [0,d1)
t0 bool[d0] = ne(in1, -100)
t1 i64[d0] = where(t0, in1, 0)
t2 f32[d0] = neg(in0[d1=t1])
t3 f32[d0] = where(t0, t2, 0.0)
t4 i64[d0] = cast(t0)
t5 i64[] = sum(t4) over d0
t6 f32[] = cast(t5)
t7 f32[] = sum(t3) over d0
out0 f32[] = t6
out1 f32[] = t7
""")


PRODUCT = "region v1\ndims d0=40 d1=9\nin0 f32[d0,d1]\nt0 f32[d0] = prod(in0) over d1\nout0 f32[d0] = t0\n"


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, "small", MIXED])
def test_values_lie_in_their_domains(distribution: str) -> None:
    x = make_inputs(DOMAINS, distribution, 5, CPU)
    if distribution in (NONFINITE, MIXED):  # what a square or a softmax gives is NaN where it was given that
        assert distribution == MIXED or all(bool(x[n].isnan().any()) for n in (0, 1, 2))
        x = [v[~v.isnan()] for v in x]
    if distribution == NONFINITE:  # a logarithm may be taken of 0, though it asks for more
        assert bool((x[0] == 0).any())
        x[0], x[5] = (v.masked_fill(v == 0, 0.5) for v in (x[0], x[5]))
    assert bool((x[0] > 0).all())
    assert bool((x[1] >= 0).all())
    assert bool((x[2].abs() <= 1).all())
    assert bool((x[3] <= 0).all())
    assert bool(((x[4] >= 0) & (x[4] < 7)).all())
    assert bool(((x[5] > 0) & (x[5] <= 1)).all())
    assert [t.dtype for t in x[3:8]] == [torch.bfloat16, torch.int64, torch.float16, torch.bool, torch.uint8]


def test_the_ends_of_a_domain_are_tried_and_small_values_next_to_an_open_end() -> None:
    ends, small = (make_inputs(DOMAINS, d, 5, CPU) for d in (NONFINITE, MAGNITUDES))
    assert bool((ends[1] == 0).any())
    assert bool((ends[2] == 1).any()) and bool((ends[2] == -1).any())
    assert 0 < float(small[0].min()) < 1e-7


@pytest.mark.parametrize("dtype", ["i64", "i32"])
def test_large_integers_are_not_exact_in_floats_and_are_often_nearly_equal(dtype: str) -> None:
    text = f"region v1\ndims d0=4096\nin0 {dtype}[d0]\nin1 {dtype}[d0]\n"
    program = parse_program(text + "t0 bool[d0] = eq(in0, in1)\nout0 bool[d0] = t0\n")
    a, b = make_inputs(program, MAGNITUDES, 5, CPU)
    assert int(((a != b) & (a.float() == b.float())).sum()) > 50
    wide = torch.float64 if dtype == "i64" else torch.float32
    assert int((a.to(wide).long() != a).sum()) > 500
    if dtype == "i64":  # the upper halves are the same, the lower ones differ by their uppermost bit
        assert int(((a >> 32 == b >> 32) & ((a < b) != (a.int() < b.int()))).sum()) > 5


GATHERED = """region v1
dims d0=64 d1=40 d2=9
in0 i64[d0] in [-40,39]
in1 i64[d0]
in2 f32[d1,d2]
t0 bool[d0] = lt(in0, 0)
t1 i64[d0] = add(in0, 40)
t2 i64[d0] = where(t0, t1, in0)
t3 i64[d0] = maximum(in1, 0)
t4 f32[d0] = neg(in2[d1=t2, d2=t3])
out0 f32[d0] = t4
"""


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, MIXED])
def test_what_indexes_stays_inside_also_behind_a_clamp_and_from_the_end(distribution: str) -> None:
    first, second, _ = make_inputs(parse_program(GATHERED), distribution, 5, CPU)
    assert bool(((first >= -40) & (first < 40)).all()) and bool((second < 9).all())


INDEXED = """region v1
dims d0=200 d1=9
in0 i64[d0]{domain}
in1 f32[d1]
{ops}
t8 f32[d0] = neg(in1[d1=t7])
out0 f32[d0] = t8
"""


@pytest.mark.parametrize(
    ("ops", "domain", "ends", "beyond"),
    [
        ("t7 i64[d0] = add(in0, 2)", " in [0,d1)", (0, 6), ()),
        ("t7 i64[d0] = sub(in0, 1)", " in [0,d1)", (1, 8), ()),
        ("t7 i64[d0] = add(in0, 90)", " in [0,d1)", (0, 8), ()),  # nothing would be left: as it is
        ("t7 i64[d0] = add(in0, 2)", "", (-2, 6), ()),
        ("t0 i64[d0] = sub(in0, 1)\nt7 i64[d0] = maximum(t0, 0)", " in [0,d1)", (0, 8), ()),
        ("t0 i64[d0] = sub(in0, 1)\nt7 i64[d0] = maximum(t0, 0)", "", (-7, 9), (-1,)),
        ("t0 i64[d0] = add(in0, 1)\nt7 i64[d0] = minimum(t0, 8)", "", (-1, 15), (1,)),
        ("t0 i64[d0] = maximum(in0, 0)\nt7 i64[d0] = minimum(t0, 8)", "", (-8, 16), (-1, 1)),
        ("t7 i64[d0] = minimum(in0, 20)", "", (0, 8), ()),  # a clamp that leaves too much
        ("t7 i64[d0] = add(in0, in0)", "", (0, 4), ()),
        (
            "t0 bool[d0] = lt(in0, 0)\nt1 i64[d0] = add(in0, 9)\nt7 i64[d0] = where(t0, t1, in0)",
            "",
            (-9, 8),
            (),
        ),
    ],
)
def test_an_index_stays_inside_but_where_a_clamp_takes_care_of_it(
    ops: str, domain: str, ends: tuple[int, int], beyond: tuple[int, ...]
) -> None:
    program = parse_program(INDEXED.format(ops=ops, domain=domain))
    x = make_inputs(program, "normal", 5, CPU)[0]
    assert (int(x.min()), int(x.max())) == ends
    for distribution in (MAGNITUDES, MIXED, "edges", TIED_VALUES):
        x = make_inputs(program, distribution, 5, CPU)[0]
        assert -1 in beyond or int(x.min()) >= ends[0]
        assert 1 in beyond or int(x.max()) <= ends[1]
    wide = make_inputs(program, MAGNITUDES, 5, CPU)[0]
    assert (int(wide.min()) < -1000, int(wide.max()) > 1000) == (-1 in beyond, 1 in beyond)
    evaluate(program, make_inputs(program, MAGNITUDES, 5, CPU))


@pytest.mark.parametrize(
    ("ops", "first", "second"),
    [
        ("t0 i64[d2] = add(in1, 4)\nt1 i64[d0,d2] = add(in0, t0)", (0, 4), (-4, 0)),
        ("t0 i64[d0,d2] = sub(in0, in1)\nt1 i64[d0,d2] = add(t0, 4)", (-2, 2), (-2, 2)),
        ("t0 i64[d2] = iota() along d2\nt1 i64[d0,d2] = add(in0, t0)", (0, 6), (-8, 8)),
        ("t0 i64[d2] = iota() along d2\nt2 i64[d2] = add(t0, 1)\nt1 i64[d0,d2] = sub(in0, t2)", (3, 9), (-8, 8)),
        ("t0 i64[d2] = iota() along d2\nt1 i64[d0,d2] = sub(t0, in0)", (-6, 0), (-8, 8)),
        (
            "t0 i64[d2] = iota() along d2\nt2 i64[d2] = mul(t0, 3)\nt1 i64[d0,d2] = add(in0, t2)",
            (0, 2),
            (-8, 8),
        ),
    ],
)
def test_sums_of_indices_and_places_stay_inside(ops: str, first: tuple[int, int], second: tuple[int, int]) -> None:
    program = parse_program(
        f"region v1\ndims d0=200 d1=9 d2=3\nin0 i64[d0]\nin1 i64[d2]\nin2 f32[d1]\n{ops}\n"
        "t8 f32[d0,d2] = neg(in2[d1=t1])\nt9 f32[d2] = cast(in1)\nout0 f32[d0,d2] = t8\nout1 f32[d2] = t9\n"
    )
    x, y, _ = make_inputs(program, "normal", 5, CPU)
    assert (int(x.min()), int(x.max())) == first
    assert second[0] <= int(y.min()) and int(y.max()) <= second[1]
    for distribution in (*DISTRIBUTIONS, MIXED):
        inputs = make_inputs(program, distribution, 5, CPU)
        assert first[0] <= int(inputs[0].min()) and int(inputs[0].max()) <= first[1]


MASKED = """region v1
dims d0=40 d1=24
in0 f32[d0,d1]
in1 bool[d0,d1]
in2 bool[d0]
in3 f32[]
t0 f32[d0,d1] = where(in1, in0, 0.0)
t1 f32[d0,d1] = where(in2, t0, in3)
t2 f32[d1] = sum(t1) over d0
out0 f32[d1] = t2
"""


@pytest.mark.parametrize("seed", range(3))
def test_lines_of_a_mask_hold_nothing_all_or_one_whatever_axis_is_reduced(seed: int) -> None:
    program = parse_program(MASKED)
    for distribution in (MAGNITUDES, MIXED):
        counts = set(make_inputs(program, distribution, seed, CPU)[1].sum(0).tolist())
        assert {0, 40, 1, 39} <= counts
    assert {1, 39} <= set(make_inputs(program, "edges", seed, CPU)[1].sum(0).tolist())
    none, all_ = (make_inputs(program, name, seed, CPU)[2] for name in (ZEROS, "coherent"))
    assert not bool(none.any()) and bool(all_.all())


def test_scalars_are_zero_and_infinite_in_cases_of_their_own() -> None:
    program = parse_program(MASKED)
    suite = prepare_suite(program, 3, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    found = {case.name: float(case.inputs[3]) for case in suite.cases}
    assert found[ZEROS] == 0.0 and found[INFINITE] == math.inf and math.isnan(found[SCALARS])


@pytest.mark.parametrize("dtype", ["i64", "i32", "i8", "u8"])
@pytest.mark.parametrize("rows", [1, 12])
def test_sums_of_integers_need_their_whole_dtype(dtype: str, rows: int) -> None:
    """Of one sign, and of eight bits all at their end: no narrower accumulator holds such a line."""
    text = f"region v1\ndims d0={rows} d1=512\nin0 {dtype}[d0,d1]\nt0 i64[d0,d1] = cast(in0)\n"
    program = parse_program(text + "t1 i64[d0] = sum(t0) over d1\nout0 i64[d0] = t1\n")
    x = make_inputs(program, MAGNITUDES, 5, CPU)[0].long()
    room = {"i64": 1 << 50, "i32": 1 << 31, "i8": 1 << 15, "u8": 1 << 16}[dtype]
    assert int(x.sum(1).abs().max()) > room
    assert bool((x >= 0).all(1).any()) and (rows == 1 or dtype == "u8" or bool((x <= 0).all(1).any()))


COMPARED = """region v1
dims d0=300 d1=100
in0 {dtype}[d0]
in1 f32[d0,d1]
{ops}
out0 f32[d0,d1] = t9
"""


@pytest.mark.parametrize(
    ("ops", "met"),
    [
        ("t0 i64[d1] = iota() along d1\nt1 bool[d0,d1] = lt(t0, in0)", range(-1, 101)),
        ("t0 i64[d1] = iota() along d1\nt2 i64[d1] = add(t0, 1)\nt1 bool[d0,d1] = eq(in0, t2)", range(-1, 101)),
        ("t1 bool[d0] = lt(in0, 500)", (-8, 499, 500, 501)),
        ("t2 i64[d0] = add(in0, 3)\nt1 bool[d0] = eq(t2, 70)", (-8, 69, 70, 71)),
    ],
)
@pytest.mark.parametrize("dtype", ["i64", "i32"])
def test_integers_lie_on_both_sides_of_what_they_are_compared_with(
    dtype: str, ops: str, met: Iterable[int]
) -> None:
    text = COMPARED.format(dtype=dtype, ops=f"{ops}\nt9 f32[d0,d1] = where(t1, in1, 0.5)")
    if dtype == "i32":
        text = text.replace("t2 i64[d0]", "t2 i32[d0]")
    program = parse_program(text)
    found = {int(v) for d in DISTRIBUTIONS for seed in (5, 6) for v in make_inputs(program, d, seed, CPU)[0]}
    assert set(met) <= found
    ordinary = set(make_inputs(program, "normal", 5, CPU)[0].tolist())
    assert min(ordinary) >= -8 and max(ordinary) <= 502


def test_lines_of_zeros_end_in_nan_or_zero() -> None:
    (x,) = make_inputs(parse_program(PRODUCT), NONFINITE, 5, CPU)
    zero = (x[:, :-1] == 0).all(1)
    assert bool(x[zero, -1].isnan().any()) and bool((x[zero, -1] == 0).any())


ROW_SUM = "region v1\ndims d0={} d1=40\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("seed", range(5))
def test_a_sum_meets_infinity_and_then_nan_in_some_line(rows: int, seed: int) -> None:
    (x,) = make_inputs(parse_program(ROW_SUM.format(rows)), NONFINITE, seed, CPU)
    both = (x[:, :10].isinf().sum(1) >= 9) & x[:, 30:].isnan().all(1)
    assert bool(both.any())


@pytest.mark.parametrize("seed", range(5))
def test_no_line_of_a_maximum_may_start_at_a_number(seed: int) -> None:
    """Some row lies below any number that a fold might start at, or above it."""
    (x,) = make_inputs(parse_program(ROW_SUM.format(24)), MAGNITUDES, seed, CPU)
    assert float(x.amax(1).min()) < -(2.0**20) and float(x.amin(1).max()) > 2.0**10


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [3, 12])
def test_the_largest_of_a_row_may_be_its_first_or_its_last_and_far_from_zero(rows: int, seed: int) -> None:
    program = parse_program(ROW_SUM.format(rows).replace("sum(", "amax("))
    near, heavy = (make_inputs(program, name, seed, CPU)[0] for name in ("near_rows", "heavy"))
    assert bool((near.amax(1) < -100).any()) and heavy[0, 0] > 1000 < heavy[1, -1]
    if rows == 12:
        assert bool((near[:, 0] - near[:, 1:].amax(1) > 100).any())
        assert bool((near[:, -1] - near[:, :-1].amax(1) > 100).any())


@pytest.mark.parametrize("seed", range(5))
def test_a_window_may_hold_nothing_but_minus_infinity(seed: int) -> None:
    pool = region("max_pool")
    (found,) = evaluate(pool, make_inputs(pool, NONFINITE, seed, CPU))
    assert bool((found == -torch.inf).any())


def test_no_partial_sum_overflows_by_its_order() -> None:
    """A denormal divisor of a softmax's gradient once did that, in one case suite of a thousand."""
    x, scale = make_inputs(parse_program(QUOTIENTS), NONFINITE, 5, CPU)
    assert scale.isnan().any() and (scale == 0).any()
    quotients = x.nan_to_num(0, 0, 0) / scale[:, None]
    assert (quotients[quotients.isfinite()].abs() < 1e20).all() and (scale[scale != 0].abs() < 1e-9).any()


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    first, second, third = (make_inputs(LOSS, "normal", s, CPU)[0] for s in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_distributions_differ() -> None:
    means = {d: float(make_inputs(LOSS, d, 1, CPU)[0].double().mean()) for d in ("normal", "offset", "coherent")}
    assert means["offset"] > 4.0
    assert 0.5 < means["coherent"] < 2.5
    assert abs(means["normal"]) < 0.5


def test_edges_fall_on_and_around_every_literal() -> None:
    program = parse_program(
        "region v1\ndims d0=4000\nin0 f32[d0]\nt0 bool[d0] = gt(in0, 0.37)\nout0 bool[d0] = t0\n"
    )
    x = make_inputs(program, "edges", 1, CPU)[0]
    near = x[(x - 0.37).abs() < 0.01]
    assert bool((near == torch.tensor(0.37)).any())
    assert bool((near < 0.37).any())
    assert bool((near > 0.3701).any())


@pytest.mark.parametrize(("dtype", "digits"), [("f32", 24), ("bf16", 8), ("f16", 11)])
def test_edges_fall_on_the_very_next_numbers(dtype: str, digits: int) -> None:
    """Towards zero from a power of two they lie twice as close: `floor(x + 0.5)` is wrong below 0.5 alone."""
    text = f"region v1\ndims d0=4000\nin0 {dtype}[d0]\nt0 {dtype}[d0] = round(in0)\nout0 {dtype}[d0] = t0\n"
    x = make_inputs(parse_program(text), "edges", 1, CPU)[0].double()
    for end in (0.5, 1.0, -1.0):
        for beside in (1.0 - 2.0**-digits, 1.0 + 2.0 ** (1 - digits)):
            assert bool((x == end * beside).any()), (end, beside)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_coherent_values_all_round_down_and_survive_in_f32(narrow: torch.dtype) -> None:
    x = make_inputs(LOSS, "coherent", 1, CPU)[0]
    rounded = x.to(narrow).float()
    assert bool((rounded < x).all())
    assert float(((x - rounded) / x).mean()) > 1e-4


def test_strides_are_kept_and_gaps_hold_values() -> None:
    program = parse_program(
        "region v1\ndims d0=5 d1=6\nin0 f32[d0,d1] strides(8,1)\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    )
    x = make_inputs(program, "normal", 1, CPU)[0]
    assert x.stride() == (8, 1)
    assert x.untyped_storage().nbytes() == 4 * (4 * 8 + 6)
    whole = torch.empty(0).set_(x.untyped_storage())
    assert bool((whole != 0).all())


@pytest.mark.parametrize(
    ("name", "item", "wanted"),
    [("split_table", 0, {39, 40, 79, 80}), ("late_rows", 1, {699, 700, 701}), ("from_the_end", 1, {-1, 0, 1})],
)
def test_integers_are_tried_at_what_they_are_compared_with(name: str, item: int, wanted: set[int]) -> None:
    """Also where they index: those that the region itself keeps out of the table read nothing."""
    met = set(make_inputs(region(name), "edges", 1, CPU)[item].tolist())
    assert wanted <= met


def test_an_index_of_rows_and_columns_stays_inside() -> None:
    program = parse_program(
        "region v1\ndims d0=96 d1=8 d2=49\nin0 f32[d2,d1]\nin1 i64[d0]\nin2 i64[d0]\nt0 i64[d0] = mul(in1, 7)\n"
        "t1 i64[d0] = add(t0, in2)\nt2 f32[d0,d1] = tanh(in0[d2=t1])\nout0 f32[d0,d1] = t2\n"
    )
    assert index_range(program, "in1", {"d2": 49}) == IndexRange(0, 3)
    for distribution in ("normal", "edges", "magnitudes", "coincident"):
        _, rows, columns = make_inputs(program, distribution, 1, CPU)
        assert int((rows * 7 + columns).min()) >= 0 and int((rows * 7 + columns).max()) < 49


def test_indices_and_their_markers_are_found() -> None:
    assert index_range(LOSS, "in1", {"d1": 9}) == IndexRange(0, 8)
    assert markers(LOSS, "in1") == (-100,)
    assert index_range(DOMAINS, "in4", {"d2": 5}) == IndexRange(0, 4)
    direct = parse_program(
        "region v1\ndims d0=4 d1=9\nin0 f32[d1]\nin1 i64[d0]\nt0 f32[d0] = neg(in0[d1=in1])\n"
        "t1 bool[d0] = eq(in1, -100)\nt2 f32[d0] = where(t1, 0.0, t0)\nout0 f32[d0] = t2\n"
    )
    assert markers(direct, "in1") == ()  # it would be read at -100
    assert bool((make_inputs(direct, "normal", 1, CPU)[1] < 9).all())


def test_a_label_that_is_ignored_makes_the_count_of_labels_verifiable() -> None:
    for seed in range(5):
        assert isinstance(prepare_suite(LOSS, seed, CPU, 1 << 30), CaseSuite)


def test_masks_of_infinity_and_finite_row_masks_are_verifiable() -> None:
    mask = parse_program(
        "region v1\ndims d0=64\nin0 f32[d0]\nt0 bool[d0] = gt(in0, 0.0)\nt1 f32[d0] = where(t0, 0.0, -inf)\n"
        "out0 f32[d0] = t1\n"
    )
    assert isinstance(prepare_suite(mask, 3, CPU, 1 << 30), CaseSuite)
    finite = parse_program(
        "region v1\ndims d0=40 d1=30\nin0 f32[d0,d1]\nt0 bool[d0,d1] = isnan(in0)\nt1 bool[d0] = any(t0) over d1\n"
        "out0 bool[d0] = t1\n"
    )
    suite = prepare_suite(finite, 3, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    assert NONFINITE in {case.name for case in suite.cases}


def test_bytes_that_must_move() -> None:
    assert least_bytes(LOSS) == 4 + 4 + 16 * 8  # the gathered logits count as not read
    pooled = parse_program(
        "region v1\ndims d0=8 d1=4 k0=2\nin0 f32[d0]\n"
        "t0 f32[d1] = amax(in0[d0=2*d1+k0]) over k0\nout0 f32[d1] = t0\n"
    )
    assert least_bytes(pooled) == 4 * (8 + 4)
    half = parse_program(
        "region v1\ndims d0=8 d1=4\nin0 f32[d0]\nt0 f32[d1] = neg(in0[d0=2*d1])\nout0 f32[d1] = t0\n"
    )
    assert least_bytes(half) == 4 * (4 + 4)


MASKED_ROWS = """region v1
dims d0=3 d1=9 d2=24
in0 f32[d0,d1,d2]
in1 bf16[d1,d2]
t0 f32[d1,d2] = cast(in1)
t1 f32[d0,d1,d2] = add(in0, t0)
t2 bool[d0,d1,d2] = eq(t1, -inf)
t3 bool[d0,d1,d2] = logical_not(t2)
t4 bool[d0,d1] = any(t3) over d2
t5 bool[d0,d1] = logical_not(t4)
out0 bool[d0,d1] = t5
"""
EQUAL_IDS = """region v1
dims d0=16 d1=16 d2=50257
in0 i64[d0] in [0,d2)
in1 i64[d1] in [0,d2)
t0 bool[d0,d1] = eq(in0, in1)
t1 f32[d0,d1] = where(t0, 0.0, -inf)
out0 f32[d0,d1] = t1
"""
PADDING = """region v1
dims d0=2 d1=16 d2=16
in0 i64[d0,d2]
t0 bool[d0,d2] = ne(in0, 0)
t1 i64[d2] = iota() along d2
t2 i64[d1] = iota() along d1
t3 bool[d1,d2] = le(t1, t2)
t4 bool[d0,d1,d2] = logical_and(t0, t3)
t5 f32[d0,d1,d2] = where(t4, 0.0, -inf)
out0 f32[d0,d1,d2] = t5
"""
ZERO_HALF = """region v1
dims d0=36 d1=2
in0 f32[d0]
t0 i64[d1] = iota() along d1
t1 bool[d1] = eq(t0, 0)
t2 f32[d0,d1] = where(t1, in0, 0.0)
t3 f32[d1] = sum(t2) over d0
out0 f32[d1] = t3
"""


@pytest.mark.parametrize("text", [MASKED_ROWS, EQUAL_IDS, PADDING, ZERO_HALF])
def test_masks_are_verifiable_and_only_the_right_one_passes(text: str) -> None:
    program = parse_program(text)
    for seed in range(6):
        suite = prepare_suite(program, seed, CPU, 1 << 30)
        assert isinstance(suite, CaseSuite), suite
        right = [evaluate(program, case.inputs) for case in suite.cases]
        assert all(c.check(r).refusal is None for c, r in zip(suite.cases, right, strict=True))
        for value in (0.0, -torch.inf):
            same = [[torch.full_like(x, value) for x in r] for r in right]
            assert any(c.check(s).refusal for c, s in zip(suite.cases, same, strict=True))


def test_integers_that_are_compared_are_equal_and_differ() -> None:
    program = parse_program(EQUAL_IDS)
    one, other = make_inputs(program, "offset", 3, CPU)
    share = (one == other[:, None]).float().mean().item()
    assert 0.05 < share < 0.5


def test_large_tensors_are_made_slab_by_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floats, "_LARGE", 1000)
    monkeypatch.setattr(floats, "_SLAB", 300)
    program = parse_program(
        "region v1\ndims d0=70 d1=40 d2=2000\nin0 f32[d0,d1]\nin1 f32[d2]\nt0 f32[d0] = sum(in0) over d1\n"
        "t1 f32[] = sum(in1) over d2\nt2 f32[d0] = add(t0, t1)\nout0 f32[d0] = t2\n"
    )
    for name in ("normal", MIXED, "magnitudes"):
        x, y = make_inputs(program, name, 3, torch.device("cpu"))
        assert (x.shape, y.shape) == ((70, 40), (2000,))
        assert len(set(x[:, 0].tolist())) > 40


@pytest.mark.parametrize("over", ["d1", "d0", "d0,d2", "d1,d2"])
def test_lines_are_of_one_distribution_each_in_turn_whatever_axis_is_reduced(over: str) -> None:
    kept = ",".join(a for a in ("d0", "d1", "d2") if a not in over)
    program = parse_program(
        "region v1\ndims d0=30 d1=40 d2=50\nin0 f32[d0,d1,d2]\nin1 f32[d0,d1,d2]\n"
        "t0 f32[d0,d1,d2] = mul(in0, in1)\n"
        f"t1 f32[{kept}] = sum(t0) over {over}\nout0 f32[{kept}] = t1\n"
    )
    along = [int(a[1]) for a in over.split(",")]
    for x in make_inputs(program, MIXED, 3, CPU):
        rows = x.movedim(along, list(range(-len(along), 0))).flatten(-len(along)).flatten(0, -2)
        whole = (rows == rows.round()).all(1)
        offset, one_value = rows[1::12], rows[7::12]
        assert bool(whole[5::12].all()) and not bool(whole[0::12].any())
        assert bool(((offset.mean(1) - 5.0).abs() < 2.0).all())
        assert all(len(row.unique()) <= 2 for row in one_value)


def test_squares_of_products_and_their_sums_stay_finite() -> None:
    """A variance by a plain sum of squares is right too; Welford's formula alone would survive larger products."""
    program = parse_program(CONVOLUTION_AND_NORM)
    for seed in range(8):
        made = evaluate(program, make_inputs(program, MAGNITUDES, seed, CPU))[0]
        assert made.abs().max() > 1e10
        assert (made - made.mean((0, 2, 3), keepdim=True)).square().sum((0, 2, 3)).isfinite().all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_an_expanded_input_has_one_value_along_its_axis(distribution: str) -> None:
    program = parse_program(
        "region v1\ndims d0=8 d1=64\nin0 f32[d0,d1] strides(0,1)\nin1 f32[d1,d0] strides(1,0)\n"
        "t0 f32[d0,d1] = mul(in0, in1)\nout0 f32[d0,d1] = t0\n"
    )
    x, y = make_inputs(program, distribution, 3, CPU)
    assert (x.shape, x.stride(), y.shape, y.stride()) == ((8, 64), (0, 1), (64, 8), (1, 0))
    assert len(x[0].unique()) > 2


def test_small_integers_are_no_zeros_in_every_second_line() -> None:
    program = parse_program("region v1\ndims d0=5000\nin0 f32[d0]\nt0 f32[] = sum(in0) over d0\nout0 f32[] = t0\n")
    (x,) = make_inputs(program, "integers", 3, CPU)
    assert {v for v in x.tolist() if abs(v) < 5} == {-4.0, -3.0, -2.0, -1.0, 1.0, 2.0, 3.0, 4.0}


@pytest.mark.parametrize(("dtype", "largest"), [("f32", 4095), ("f16", 2047), ("bf16", 255)])
@pytest.mark.parametrize("length", [40, 3000, 20000])
def test_whole_numbers_of_some_rows_are_wide_and_add_up_to_little(dtype: str, largest: int, length: int) -> None:
    """No half type holds sums of few of them; float32 has them in any order."""
    digits = 256 if dtype == "bf16" else 2048
    program = parse_program(
        f"region v1\ndims d0=12 d1={length}\nin0 {dtype}[d0,d1]\nt0 f32[d0,d1] = cast(in0)\n"
        "t1 f32[d0] = sum(t0) over d1\nout0 f32[d0] = t1\n"
    )
    (x,) = make_inputs(program, "integers", 3, CPU)
    wide, few = x[1::3].double(), x[0::3].double()
    assert float(few.abs().max()) == 4.0
    assert largest / 2 < float(wide.abs().max()) <= largest
    assert float(wide.abs().sum(1).max()) < 1 << 22
    assert float(wide.sum(1).abs().max()) < length / 2
    pairs = wide[:, ::2] + wide[:, 1::2]
    assert int((pairs.abs() > digits).sum()) > len(pairs)


def test_products_of_wide_whole_numbers_cancel_by_one_of_their_factors() -> None:
    program = region("half_long_dot")
    a, b = (x.double() for x in make_inputs(program, "integers", 3, CPU))
    products = a[1::3, :, None] * b[None, :, 1::3]
    assert float(products.abs().max()) > 2048
    assert float(products.abs().sum(1).max()) < 1 << 24
    assert float(products.sum(1).abs().max()) < 1000.0 and bool(
        evaluate(program, [a.half(), b.half()])[0].isfinite().all()
    )


@pytest.mark.parametrize(
    ("head", "value"),
    [("t0 f16[d0,d1] = relu(in0)\n", "t0"), ("t0 f16[d0,d1] = mul(in0, in0)\n", "t0"), ("", "in0")],
)
def test_sums_of_wide_whole_numbers_in_f16_are_finite(head: str, value: str) -> None:
    text = f"dims d0=60 d1=4000\nin0 f16[d0,d1]\n{head}t1 f16[d0] = sum({value}) over d1\nout0 f16[d0] = t1\n"
    program = parse_program(f"region v1\n{text}")
    inputs = make_inputs(program, "integers", 3, CPU)
    assert float(inputs[0].abs().max()) > 35.0
    assert bool(evaluate(program, inputs)[0].isfinite().all())


@pytest.mark.parametrize("name", ["softmax", "scaled_tanh", "layernorm", "silu", "running_sum"])
def test_what_is_rounded_before_it_is_summed_has_no_wide_whole_numbers(name: str) -> None:
    assert all(float(x.abs().max()) <= 4.0 for x in make_inputs(region(name), "integers", 3, CPU))


def test_rows_whose_first_element_lies_apart_are_for_variances() -> None:
    for name, apart in (("layernorm", True), ("batch_stats", True), ("softmax", False), ("squared_error", True)):
        x, *_ = make_inputs(region(name), "scaled", 3, CPU)
        rows = x.transpose(0, 1) if name == "batch_stats" else x
        first = rows.flatten(1)[1::2] if name != "batch_stats" else rows[1::2, :, 0, 0]
        assert bool((first[:, 0] > 200.0).all()) == apart, name
        assert bool((x.abs() < 60.0).all()) != apart, name


def test_logarithms_get_denormals() -> None:
    x, y = make_inputs(region("logarithms"), NONFINITE, 3, CPU)
    least = torch.finfo(torch.float32).smallest_normal
    assert bool(((x > 0) & (x < least)).any()) and bool(((y > 0) & (y < least)).any())
    (z,) = make_inputs(region("log_softmax"), NONFINITE, 3, CPU)
    assert bool(((z > 0) & (z < least)).any())
    assert not any(
        bool(((v > 0) & (v < 1e-30)).any()) for v in make_inputs(region("layernorm"), NONFINITE, 3, CPU)
    )


def test_the_degree_that_is_summed_up_sets_how_large_magnitudes_are() -> None:
    head = "region v1\ndims d0=4 d1=8\nin0 f32[d0,d1]\nin1 f32[d0]\nt0 f32[d0,d1] = mul(in0, in1)\n"
    cube = head + "t1 f32[d0,d1] = mul(t0, in1)\n"
    degrees = {
        head + "out0 f32[d0,d1] = t0\n": 0,
        head + "t1 f32[d0] = sum(t0) over d1\nout0 f32[d0] = t1\n": 2,
        cube + "t2 f32[d0,d1] = cumsum(t1) along d1\nout0 f32[d0,d1] = t2\n": 3,
        cube + "t2 f32[d0] = var(t1, 0.0) over d1\nout0 f32[d0] = t2\n": 6,
    }
    for text, degree in degrees.items():
        program = parse_program(text)
        assert summed_degree(program) == degree
        drawn = with_magnitudes(program, program.inputs[0], torch.ones(4, 8).double(), torch.Generator())
        assert float(drawn.max()) ** max(1, degree) * 8 < 3e38


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_nan_comes_as_cpus_and_as_gpus_make_it(dtype: torch.dtype) -> None:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    x = nan_of_all_kinds(torch.tensor([torch.nan, torch.nan, torch.nan, -0.0, torch.inf, 1.5], dtype=dtype))
    bits = x.view(integer).tolist()
    assert x[:3].isnan().all() and len(set(bits[:3])) == 3
    assert bits[1] < 0 and bits[2] == torch.iinfo(integer).max
    assert torch.equal(x[3:], torch.tensor([-0.0, torch.inf, 1.5], dtype=dtype))
    assert nan_of_all_kinds(torch.tensor(torch.nan, dtype=dtype)).shape == ()


@pytest.mark.parametrize("seed", range(5))
def test_an_image_has_a_few_odd_values_and_weights_two_where_no_frame_is_near(seed: int) -> None:
    weights, image = make_inputs(parse_program(CONVOLUTION_AND_NORM), NONFINITE, seed, CPU)
    assert (weights == 0).any() and int(weights.isnan().sum()) == int(weights.isinf().sum()) == 1
    assert not bool(weights[:, :, 1, 1].isfinite().all()) and int((~weights.isfinite()).any((1, 2, 3)).sum()) == 2
    assert 3 <= int((~image.isfinite()).sum()) <= 10
    assert image.isnan().any() and image.isinf().any()
    assert not image[0, 0, 0, 0].isfinite() and not image[-1, -1, -1, -1].isfinite()


@pytest.mark.parametrize("name", ["squared_error", "norm_gradient"])
def test_two_inputs_whose_difference_is_taken_are_near_each_other_in_one_case(name: str) -> None:
    program = region(name)
    values = make_inputs(program, "near_rows", 3, CPU)
    x, y = (values[0], values[1]) if name == "squared_error" else (values[1][0, :, 0], values[2])
    assert not torch.equal(x, y) and torch.allclose(x, y, rtol=1e-3)
    assert not torch.allclose(*make_inputs(program, "normal", 3, CPU)[:2], rtol=1e-3)


def test_zeros_of_both_signs_tie_where_the_first_of_equals_is_asked_for() -> None:
    (x,) = make_inputs(region("both_ends"), TIED_VALUES, 3, CPU)
    zeros = x[(x == 0).all(1)]
    assert len(zeros) >= 2 and set(zeros[:, 0].signbit().tolist()) == {True, False}
    assert (zeros[:, 0].signbit() != zeros[:, 1].signbit()).all()


def test_weights_may_begin_with_what_changes_nothing() -> None:
    _, weight, bias = make_inputs(region("affine_relu"), "edges", 3, CPU)
    assert weight[0] == 1 and bias[0] == 0 and (weight != 1).any() and (bias != 0).any()


def test_integers_that_are_only_bounded_below_may_be_large() -> None:
    _, divisor = make_inputs(region("wrapped_products"), MAGNITUDES, 3, CPU)
    assert divisor.min() >= 1 and divisor.max() > 1 << 20


LINE_KINDS = """region v1
dims d0={} d1=64
in0 f32[d0,d1]
in1 f32[d1]
t0 f32[d0,d1] = add(in0, in1)
t1 f32[d0] = amax(t0) over d1
out0 f32[d0] = t1
"""


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_few_lines_meet_every_kind_in_further_cases(rows: int) -> None:
    program = parse_program(LINE_KINDS.format(rows))
    suite = prepare_suite(program, 3, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    lines = [line for c in suite.cases if c.name.startswith(NONFINITE) for line in c.inputs[0].reshape(-1, 64)]
    assert len(lines) >= 8
    nan, inf, none = (
        torch.stack([test(x) for x in lines]) for test in (torch.isnan, torch.isposinf, torch.isneginf)
    )
    assert bool(((nan.sum(1) == 1) & (inf.sum(1) == 0)).any()), "a NaN alone"
    assert bool(((inf.sum(1) == 1) & (nan.sum(1) == 0)).any()), "an infinity alone"
    assert bool(none.all(1).any()) and bool((none.any(1) & ~none.all(1) & none[:, 0]).any())
    large = [line for c in suite.cases if c.name.startswith(MAGNITUDES) for line in c.inputs[0].reshape(-1, 64)]
    assert min(float(x.max()) for x in large) < -1e9, "a line far below zero"


def test_a_vector_beside_rows_is_not_finite_in_cases_of_its_own() -> None:
    suite = prepare_suite(parse_program(LINE_KINDS.format(20)), 3, CPU, 1 << 30)
    assert isinstance(suite, CaseSuite)
    vectors = {c.name: c.inputs[1] for c in suite.cases}
    assert int(vectors[SCALARS].isnan().sum()) == 1 and int(vectors[ZEROS].isneginf().sum()) == 1
    assert bool(vectors[NONFINITE].isfinite().all()) and int((vectors[NONFINITE] == 0).sum()) == 9
