"""At which sizes candidates of symbolic regions are tried."""

from __future__ import annotations

import pytest
import torch

from benchmarks.redteam.honest_corners import ANY_NORM, ANY_PRODUCTS, ANY_WIDE_ROWS
from benchmarks.redteam.honest_more import ANY_ROWS
from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks.case_suite import Unverifiable, prepare_suite
from cudal1_compile.judge.inputs.sizes import (
    BEYOND_ANY_BLOCK,
    GRID_ELEMENTS,
    _hardly_covered,
    beyond_grids,
    compared_sizes,
    counts_in_floats,
    fixed_symbolic,
    own_sizes,
    size_variants,
    tensor_elements,
)
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_fx_passes.program.text import parse_program

GRID = "cdiv(d0*d1, 128)"


def test_a_small_symbolic_axis_is_even_odd_long_and_one() -> None:
    sizes = [s["d0"] for s in size_variants(region("any_rows"), 12) if s]
    assert {1024, 263, 1, 6} <= set(sizes)
    assert not any(size_variants(region("silu"), 12))


def test_some_sizes_are_drawn_and_three_are_left_of_a_large_one() -> None:
    drawn = [{s["d0"] for s in size_variants(region("any_rows"), 14, seed) if s} for seed in range(1, 9)]
    assert len({frozenset(s) for s in drawn}) == len(drawn)
    assert all({n % 4 for n in s if n > 100} >= {0, 3} and any(n % 4 == 2 for n in s) for s in drawn)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("switch (d0) { case 77: return; }", 77),
        ("if (!(d0 - 0x4d)) return;", 77),
        ("if (d0 == 70 + 7 || d0 * d0 == 5929) return;", 77),
        ("if (d0 / 7 == 11) return;", 77),
        ("if (d0 * 1.0f == 77.f) return;", 77),
        ("int n = d0;\n  if (n == 96) return;", 96),
        ("int n = d0;\n  if (!(96 != n)) return;", 96),
        ("if (d0 - 96 == 0) return;", 96),
        ("const int sizes[3] = {32, 96, 160};", 160),
        ("if (__popc(d0) == 7) return;", 127),
        ("if (__clz(d0) == 24) return;", 255),
    ],
)
def test_numbers_that_no_block_has_are_sizes(line: str, size: int) -> None:
    program = region("any_rows")
    code = ANY_ROWS.replace("float x =", f"{line}\n  float x =")
    assert {"d0": size} in compared_sizes(program, parse_candidate(code, program))
    assert compared_sizes(program, parse_candidate(ANY_ROWS, program)) == []


def test_even_sizes_of_two_axes_are_smaller_and_large_regions_have_none() -> None:
    two = parse_program(
        "region v1\ndims d0=?8 d1=?9\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    )
    found = list(size_variants(two, 12))
    assert all(s in found for s in ({"d0": 512, "d1": 128}, {"d0": BEYOND_ANY_BLOCK, "d1": 1}, {"d0": 6, "d1": 6}))
    drawn = [size_variants(two, 12, seed) for seed in range(1, 9)]
    assert {s["d0"] for several in drawn for s in several if s and min(s.values()) == 128} == {128, 512}
    wide = parse_program(
        "region v1\ndims d0=?100 d1=90000\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    )
    assert {s["d0"] for s in size_variants(wide, 12) if s} >= {64, 102, 1, 6, 101}


@pytest.mark.parametrize(
    ("grid", "beyond"),
    [
        (GRID, False),
        ("d0, 64", False),
        ("cdiv(d0*d1, 4096)", False),
        (f"max({GRID}, 1100)", False),
        (f"min({GRID}, 1100)", True),
        (f"min({GRID}, 65535)", False),
        ("1200", True),
        (f"{GRID} / max(1, cdiv(d0*d1, 150000))", True),
    ],
)
def test_a_grid_that_stops_growing_is_tried_beyond_its_end(grid: str, beyond: bool) -> None:
    program = region("any_rows")
    code = ANY_ROWS.replace(f"{GRID}, 128", grid if "64" in grid else f"{grid}, 128")
    sizes = beyond_grids(program, parse_candidate(code, program))
    assert bool(sizes) == beyond
    if sizes:
        per_row = tensor_elements(program) / program.axis["d0"].size
        assert 0.9 * 2 * GRID_ELEMENTS < sizes["d0"] * per_row <= 2 * GRID_ELEMENTS


@pytest.mark.parametrize(
    ("grid", "left_out"),
    [
        (GRID, None),
        ("d0*d1 / 128 + 1", 0),
        ("max((d0*d1 + 126) / 128, 1)", 1),
        ("max((d0*d1 + 111) / 128, 1)", 16),
        ("max(d0*d1 / 128 + (d0*d1 % 128 + 120) / 128, 1)", 7),
        ("d0*d1 / (d0 - 2) + 1", None),
    ],
)
def test_a_grid_that_is_rounded_by_hand_is_tried_where_it_covers_least(grid: str, left_out: int | None) -> None:
    program = region("any_table")
    candidate = parse_candidate(ANY_ROWS.replace(f"{GRID}, 128", f"{grid}, 128"), program)
    found = [s["d0"] * s["d1"] for s in _hardly_covered(program, candidate)]
    assert bool(found) == (left_out is not None)
    if left_out:
        assert all(1 <= elements % 128 <= left_out for elements in found)


def test_in_half_of_the_case_suites_a_single_one_is_left_of_any_block() -> None:
    narrow = parse_program(
        "region v1\ndims d0=?40 d1=8\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\nout0 f32[d0,d1] = t0\n"
    )
    drawn = [max(s["d0"] for s in size_variants(narrow, 12, seed) if s) for seed in range(1, 17)]
    assert 4 <= drawn.count(2049) <= 12
    assert all(size % 4 == 1 for size in drawn)


ROWS = "region v1\ndims d0={} d1={}\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"


@pytest.mark.parametrize(
    ("rows", "columns", "launch", "beyond"),
    [
        ("?32", "512", "320, 128", True),  # rows that no other size comes near
        ("?32", "512", "d0, 128", False),
        ("512", "?128", "512, 128", True),  # a row held in registers
        ("?128", "1024", "min(d0, 512), 128", True),
    ],
)
def test_beside_a_large_axis_a_fixed_number_of_threads_is_tried_further(
    rows: str, columns: str, launch: str, beyond: bool
) -> None:
    program = parse_program(ROWS.format(rows, columns))
    code = f"// launch: f0<<<{launch}>>>(in0, out0)\n__global__ void f0(const f32* in0, f32* out0 DIMS) {{\n}}\n"
    assert bool(beyond_grids(program, parse_candidate(code, program))) == beyond


@pytest.mark.parametrize(
    ("line", "beyond"),
    [
        ("if (i / d1 >= 3000) return;", True),
        ("if (4096 <= i / d1) return;", True),
        ("if (i / d1 > (1 << 14)) return;", True),
        ("if (i / d1 >= 2000) return;", False),
        ("float y = 30000.0f * x, z = x < 3000.5f ? x : y;", False),
        ("i = min(i, 4095);", True),
        ("if (i / d1 >> 12) return;", True),
    ],
)
def test_a_number_beyond_the_sizes_that_are_tried_is_tried(line: str, beyond: bool) -> None:
    program = region("any_rows")
    code = ANY_ROWS.replace("float x =", f"{line}\n  float x =")
    assert bool(beyond_grids(program, parse_candidate(code, program))) == beyond


@pytest.mark.parametrize(
    ("line", "sizes"),
    [
        ("if (d0 > 300 && d0 < 700) return;", [301, 300, 299, 701, 700, 699]),
        ("if (i / d1 == 77) return;", [78, 77, 76]),
        ("if (512 <= d0) return;", [513, 512, 511]),
        ("if (d0 >= 1 << 9) return;", [513, 512, 511]),
        ("for (int j = 0; j < 512; ++j) {}", []),
        ("float y[4] = {1, x, 3, 4};", []),
        ("if (threadIdx.x == 31) x += 0.0f;", [31]),
        ("float y = x < 300.5f ? x : vload<300>(in0);", []),
    ],
)
def test_sizes_beside_numbers_that_a_size_is_compared_with_are_tried(line: str, sizes: list[int]) -> None:
    program = region("any_rows")
    code = ANY_ROWS.replace("float x =", f"{line}\n  float x =")
    assert [s["d0"] for s in compared_sizes(program, parse_candidate(code, program))] == sizes


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("int r = (int)(i * 0.5f);", True),
        ("float place = i; int r = (int)place;", True),
        ("float place = i; int r = int(place);", True),
        ("int r = static_cast<int>((float)i / d1);", True),
        ("int r = __float2int_rz(y);", True),
        ("if ((float)i >= (float)d0 * (float)d1) return;", True),
        ("int r = (int)ld(in0 + i), q = (int)(i / 2 * 3), n = (int)blockIdx.x;", False),
        ("float mean = y / (float)d1; int above = (int)(y > 0.5f);", False),
        ("for (int j = 0; j < 4; ++j) y += 1.0f;", False),
        ("float v[4]; int j = (int)threadIdx.x; float w = (float)d0;", False),
    ],
)
def test_whole_numbers_made_of_floats(line: str, found: bool) -> None:
    def counts(name: str) -> bool:
        program = region(name)
        return counts_in_floats(
            program, parse_candidate(ANY_ROWS.replace("float x =", f"{line}\n  float x ="), program)
        )

    assert counts("any_rows") == found
    assert not counts("silu_f64")  # of one size, and all of it is compared


def test_a_row_that_a_fixed_number_of_threads_share_is_tried_far_along() -> None:
    program = region("any_norm")
    assert {"d0": 3, "d1": 20011} in own_sizes(program, parse_candidate(ANY_NORM, program))
    assert not any(s["d0"] > 3000 for s in own_sizes(program, parse_candidate(ANY_NORM, program)))


def test_a_row_in_shared_memory_is_not_tried_where_no_launch_holds_it() -> None:
    program = region("any_norm")
    shared = ANY_NORM.replace("<<<d0, 128>>>", "<<<d0, 128, 4 * d1>>>")
    assert not any(s["d1"] > 3000 for s in own_sizes(program, parse_candidate(shared, program)))
    assert own_sizes(program, parse_candidate(ANY_NORM.replace("<<<d0,", "<<<d0 / (d0 - 3),"), program))


def test_half_of_a_small_tile_is_left_along_each_axis() -> None:
    program = region("any_products")
    sizes = own_sizes(program, parse_candidate(ANY_PRODUCTS, program))
    assert {"d0": 12, "d1": 3} in sizes and {"d0": 3, "d1": 12} in sizes
    assert {"d0": 24, "d1": 3} not in sizes


def test_a_short_number_of_a_row_is_tried_beside_few_columns() -> None:
    program = region("any_wide_rows")
    short = ANY_WIDE_ROWS.replace("int r = blockIdx.x", "int r = (short)blockIdx.x")
    assert {"d0": 65541, "d1": 3} in own_sizes(program, parse_candidate(short, program))


def test_a_symbolic_size_that_no_trial_could_vary_gets_no_kernel() -> None:
    program = parse_program(
        "region v1\ndims d0=?4 d1=?17 d2=?9 k0=3\nin0 f32[d0,d1]\n"
        "t0 f32[d0,d2] = amax(in0[d1=2*d2+k0-1]) over k0\nout0 f32[d0,d2] = t0\n"
    )
    assert fixed_symbolic(program) == ["d1", "d2"] and fixed_symbolic(region("any_embedding")) == []
    found = prepare_suite(program, 5, torch.device("cpu"), 1 << 30)
    assert isinstance(found, Unverifiable) and "d1, d2" in found.reason
