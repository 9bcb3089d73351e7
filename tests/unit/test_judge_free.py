"""Where anything is right: rounding decides whether a result is NaN, or a float that no integer holds is cast."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from torch import Tensor

from cudal1_compile.judge.compare import expect, measure, read, refusal
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import parse_program

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
