"""Large regions at smaller sizes: which axes are shortened, by how much, and for which candidates."""

from __future__ import annotations

import pytest

from cudal1_compile.judge.inputs.reduced import names_sizes, reduced
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program


def program(dims: str, body: str) -> Program:
    return parse_program(f"region v1\ndims {dims}\n{body}")


ROWS = "in0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nt1 f32[d0,d1] = sub(in0, t0)\nout0 f32[d0,d1] = t1\n"
POOL = (
    "in0 f32[d0,d1,d2]\nt0 f32[d0,d1,d3] = amax(in0[d2=2*d3+d4]) over d4\n"
    "t1 f32[d0,d1,d3] = exp(t0)\nout0 f32[d0,d1,d3] = t1\n"
)
CODE = """// launch: k<<<d0, 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {{
  for (int i = threadIdx.x; i < {size}; i += 256) st(out0 + blockIdx.x * d1 + i, ld(in0 + blockIdx.x * d1 + i));
}}
"""


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        ("d0=70001 d1=8192", (64 + 70001 % 32, 2048)),
        ("d0=16 d1=8195", (2, 2048 + 3)),
        ("d0=17 d1=900", (3, 900)),
    ],
)
def test_axes_keep_their_remainders(dims: str, sizes: tuple[int, ...]) -> None:
    found = reduced(program(dims, ROWS))
    assert found is not None and tuple(a.size for a in found.axes) == sizes


def test_what_is_read_at_computed_places_stays() -> None:
    found = reduced(program("d0=64 d1=128 d2=100000 d3=50000 d4=2", POOL))
    assert found is not None and [a.size for a in found.axes] == [2, 64, 100000, 50000, 2]


def test_nothing_to_shorten_is_no_region() -> None:
    assert reduced(program("d0=3 d1=900", ROWS)) is None


@pytest.mark.parametrize(("size", "names"), [("d1", False), ("8192", True), ("16384", True), ("256", False)])
def test_a_number_where_a_size_belongs_is_seen(size: str, names: bool) -> None:
    region = program("d0=70001 d1=8192", ROWS)
    assert names_sizes(region, parse_candidate(CODE.format(size=size), region)) is names


CONVOLUTION = (
    "in0 f32[d0,d4,d5]\nin1 f32[d1,d4,k0]\nt0 f32[d0,d1,d2] = dot(in0[d5=d2+k0-1], in1) over d4,k0\n"
    "out0 f32[d0,d1,d2] = t0\n"
)
BATCHED = (
    "in0 f32[d0,d1,d3]\nin1 f32[d0,d2,d3]\nt0 f32[d0,d1,d2] = dot(in0, in1) over d3\nout0 f32[d0,d1,d2] = t0\n"
)
SUMMED = "in0 f32[d0,d1]\nin1 f32[d0,d2]\nt0 f32[d1,d2] = dot(in0, in1) over d0\nout0 f32[d1,d2] = t0\n"


@pytest.mark.parametrize(
    ("dims", "body", "batch"),
    [
        ("d0=190 d1=128 d2=4096 d4=64 d5=4096 k0=3", CONVOLUTION, 6),
        ("d0=64 d1=200 d2=300 d3=128", BATCHED, 4),
        ("d0=3 d1=2000 d2=300 d3=128", BATCHED, 3),
        ("d0=100 d1=5000 d2=300", SUMMED, 100),
    ],
)
def test_of_a_products_batch_a_few_images_are_left(dims: str, body: str, batch: int) -> None:
    found = reduced(program(dims, body))
    before = program(dims, body)
    assert found is not None and found.axes[0].size == batch
    assert all(a == b or b.size > 512 for a, b in zip(found.axes[1:], before.axes[1:], strict=True))
