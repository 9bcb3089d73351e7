"""Where anything is right: rounding decides whether a result is NaN, or a float that no integer holds is cast."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge.oracle.bounds import bounded_outputs
from cudal1_compile.judge.oracle.compare import expect, measure, read, refusal
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program

ROOTS = parse_program("""region v1
dims d0=4 d1=96
in0 f32[d0,d1]
in1 f32[d0]
t0 f32[d0] = var(in0, 0) over d1
t1 f32[d0] = add(t0, in1)
t2 f32[d0] = sqrt(t1)
t3 f32[d0] = mul(t2, 2.0)
out0 f32[d0] = t3
""")
CASTS = parse_program("""region v1
dims d0=4
in0 f32[d0]
t0 f32[d0] = mul(in0, 2.0)
t1 i32[d0] = cast(t0)
t2 i32[d0] = add(t1, 1)
out0 i32[d0] = t2
""")
SCALED = parse_program("""region v1
dims d0=4 d1=3
in0 f32[d0,d1]
in1 f32[d1]
in2 f32[d0]
t0 f32[d0] = dot_tf32(in0, in1) over d1
t1 f32[d0] = mul(t0, in2)
t2 f32[d0] = relu(t1)
out0 f32[d0] = t2
""")


def _is_right(program: Program, inputs: list[Tensor], got: list[float]) -> bool:
    (wanted,) = expect(program, inputs)
    dtype = torch.float32 if not wanted.discrete else wanted.want.dtype
    made = torch.tensor(got, dtype=torch.float64).to(dtype)
    return refusal(read(measure(made, wanted), wanted), made, wanted) is None


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ([nan, 2.0, nan, 2.0], True),
        ([3e-4, 2.0, nan, 2.0], True),
        ([inf, 2.0, nan, 2.0], True),
        ([nan, nan, nan, 2.0], False),
        ([nan, 2.0, 0.0, 2.0], False),
        ([nan, 2.0, nan, 2.1], False),
    ],
)
def test_only_where_rounding_decides_the_sign_a_root_is_anything(got: list[float], right: bool) -> None:
    x = torch.full((4, 96), 0.7)
    assert _is_right(ROOTS, [x, torch.tensor([-1e-30, 1.0, -5.0, 1.0])], got) == right


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ([3, 7, -2147483647, 5], True),
        ([3, 0, 0, 5], True),
        ([4, 7, 0, 5], False),
        ([3, 7, 0, 6], False),
    ],
)
def test_casts_of_what_no_integer_holds_are_anything(got: list[float], right: bool) -> None:
    assert _is_right(CASTS, [torch.tensor([1.0, nan, inf, 2.0])], got) == right


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ([inf, inf, inf, 0.0], True),
        ([0.0, inf, inf, 0.0], True),
        ([nan, 0.0, inf, 0.0], True),
        ([inf, inf, 0.0, 0.0], False),
        ([inf, inf, inf, inf], False),
        ([inf, inf, nan, 0.0], False),
    ],
)
def test_only_where_rounding_decides_its_sign_an_infinite_product_is_anything(
    got: list[float], right: bool
) -> None:
    """A norm's infinite scale behind sums of 1e-5, -1e-5, 3 and -3, which err by some 1e-3."""
    x = torch.tensor([[1.0, -1.0, 1e-5], [1.0, -1.0, -1e-5], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
    assert _is_right(SCALED, [x, torch.ones(3), torch.full((4,), inf)], got) == right


@pytest.mark.parametrize(
    ("got", "right"),
    [
        ([-2.6073837e-37, -5.328e-37, -0.0, 1.0], True),
        ([-0.0, -5.328e-37, -0.0, 1.0], True),
        ([-0.0, -0.0, -0.0, 1.0], False),
        ([-0.0, -5.328e-37, -9e-37, 1.0], False),
    ],
)
def test_where_rounding_decides_whether_an_exponential_is_finite_its_quotients_are_anything(
    got: list[float], right: bool
) -> None:
    """SiLU at -88.7228, -88, -89.5 and 1.278: exp(88.7228) is the largest float within its error."""
    program = parse_program(
        "region v1\ndims d0=4 d1=3\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nt1 f32[d0] = neg(t0)\n"
        "t2 f32[d0] = exp(t1)\nt3 f32[d0] = add(t2, 1.0)\nt4 f32[d0] = div(t0, t3)\nout0 f32[d0] = t4\n"
    )
    x = torch.tensor([[-88.0, -0.7, -0.02283], [-88.0, 0.5, -0.5], [-89.0, -0.5, 0.0], [1.2784645, 0.0, 0.0]])
    assert _is_right(program, [x], got) == right


def test_an_exponential_that_is_read_elsewhere_is_as_free() -> None:
    """Its operand has other sizes than it has."""
    program = parse_program(
        "region v1\ndims d0=4 d1=3 d2=2\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\n"
        "t1 f32[d2] = exp(t0[d0=d2+1])\nout0 f32[d2] = t1\n"
    )
    x = torch.tensor([[1.0, 1.0, 1.0], [88.0, 0.7, 0.02283], [88.0, -0.5, 0.5], [0.0, 0.0, 0.0]])
    (found,) = bounded_outputs(program, [x])
    assert found.free is not None and found.free.tolist() == [True, False]


@pytest.mark.parametrize("op", ["div(t0, in2)", "div(in1, t0)", "reciprocal(t0)", "fma(in1, t0, in2)"])
def test_signs_of_infinite_quotients_too(op: str) -> None:
    """The sum is exactly 0 in the first row, and certainly not in the second."""
    program = parse_program(
        "region v1\ndims d0=2 d1=3\nin0 f32[d0,d1]\nin1 f32[d0]\nin2 f32[d0]\nt0 f32[d0] = mean(in0) over d1\n"
        f"t1 f32[d0] = {op}\nout0 f32[d0] = t1\n"
    )
    (found,) = bounded_outputs(
        program, [torch.tensor([[0.5, -0.25, -0.25], [1.0, 1.0, 1.0]]), torch.full((2,), inf), torch.zeros(2)]
    )
    assert found.free is not None and found.free.tolist() == [True, False]
