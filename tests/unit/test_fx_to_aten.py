"""A program as aten code equals the program's meaning, eagerly and under Inductor."""

from __future__ import annotations

import operator

import pytest
import torch
from slow_cases import slow_but
from torch.nn import functional as F

from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.pooling import pooling_windows
from cudal1_fx_passes.program.text import parse_program
from cudal1_fx_passes.program.to_aten import to_aten

TEXT = """region v1
dims d0=4 d1=8 d2=6 d3=6 d4=3 d5=3 k0=3 k1=3
in0 f32[d0,d1,d2,d3]
in1 f32[d1] >0
in2 i64[d0] in [0,d1)
t0 f32[d0,d1,d2,d3] = mul(in0, in1)
t1 f32[d0,d1,d4,d5] = amax(t0[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
t11 f32[d0,d1,d4,d5] = mean(t0[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
t12 i8[d0,d1,d4,d5] = argmax(t0[d2=2*d4+k0-1, d3=2*d5+k1-1]) over k0,k1
t2 f32[d1] = var(t0, 0) over d0,d2,d3
t3 f32[d0,d2,d3] = add(t0[d1=in2], -1e-05)
t4 i64[d1] = iota() along d1
t5 f32[d0,d1,d2,d3] = where(true, t0, 0.0)
t6 bool[d0,d1] = eq(t4, in2)
t7 f32[d0,d1] = where(t6, 1.0, in1)
t8 f32[d0,d1,d2,d3] = maximum(t0, 0.5)
t9 f32[d0,d1,d2,d3] = div(1.0, t8)
t10 f32[d0,d1,d2,d3] = cumsum(t9) along d2
out0 f32[d0,d1,d4,d5] = t1
out1 f32[d1] = t2
out2 f32[d0,d3,d2] = t3
out3 f32[d0,d1] = t7
out4 f32[d3,d1,d2,d0] = t10
out5 f32[d0,d1,d4,d5] = t11
out6 i8[d0,d1,d4,d5] = t12
"""


def _inputs() -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4, 8, 6, 6, generator=g)
    return [x, torch.rand(8, generator=g) + 0.1, torch.randint(0, 8, (4,), generator=g)]


@pytest.mark.parametrize("compiled", slow_but([False], [False, True]))
def test_equals_the_program(compiled: bool) -> None:
    program = parse_program(TEXT)
    run = to_aten(program)
    got = (torch.compile(run, dynamic=False, fullgraph=True) if compiled else run)(*_inputs())
    for expected, actual in zip(evaluate(program, _inputs()), got, strict=True):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected)


def test_pooling_is_torchs_own() -> None:
    program = parse_program(TEXT)
    x, w, _ = _inputs()
    y = x * w[None, :, None, None]
    got = to_aten(program)(*_inputs())
    assert torch.equal(got[0], F.max_pool2d(y, 3, 2, 1))
    torch.testing.assert_close(got[5], F.avg_pool2d(y, 3, 2, 1, count_include_pad=False))
    assert pooling_windows(program, program.op["t1"]) is not None
    assert pooling_windows(program, program.op["t12"]) is None


def test_windows_of_one_element_are_pooled_too() -> None:
    program = parse_program(
        "region v1\ndims d0=3 d1=4 d2=6 d3=6 d4=4 d5=3 d6=3 k0=2 k1=2\nin0 f32[d0,d1,d2,d3]\n"
        "t0 f32[d0,d4,d5,d6] = amax(in0[d1=d4, d2=2*d5+k0, d3=2*d6+k1]) over k0,k1\nout0 f32[d0,d4,d5,d6] = t0\n"
    )
    x = torch.randn(3, 4, 6, 6, generator=torch.Generator().manual_seed(3))
    run = to_aten(program)
    assert torch.equal(run(x)[0], F.max_pool3d(x, (1, 2, 2)))
    assert not _calls_index(run)


# axes and sizes, the axes of a window's place, how the gradients are read, over what, axes of the result
GRADIENTS = {
    "padded planes": ("d4=4 d5=3", "k0=3 k1=3", "d4=(d2-k0+1)/2, d5=(d3-k1+1)/2", "d2=8 d3=6"),
    "dilated, one padded side": ("d4=4 d5=7", "k0=3 k1=2", "d4=d2-2*k0, d5=d3-k1+1", "d2=8 d3=6"),
    "rows": ("d4=4", "k0=3", "d4=(d2-k0+1)/2", "d2=7"),
}


CASES = [(name, compiled) for compiled in (False, True) for name in GRADIENTS]


@pytest.mark.parametrize(("name", "compiled"), slow_but(CASES[:4], CASES))
def test_the_gradient_of_max_pooling_is_torchs_own(name: str, compiled: bool) -> None:
    outs, window, access, read = GRADIENTS[name]
    d, k, r = (",".join(x.split("=")[0] for x in part.split()) for part in (outs, window, read))
    place = "t2 i64[k0] = mul(t0, 1)\n"
    if "k1" in k:
        columns = window[-1]
        place = f"t1 i64[k0] = mul(t0, {columns})\nt3 i64[k1] = iota() along k1\nt2 i64[k0,k1] = add(t1, t3)\n"
    program = parse_program(
        f"region v1\ndims d0=2 d1=3 {outs} {window} {read}\nin0 bf16[d0,d1,{d}]\n"
        f"in1 i8[d0,d1,{d}] in [0,5]\nt0 i64[k0] = iota() along k0\n"
        f"{place}t4 i64[d0,d1,{d}] = cast(in1)\nt5 bool[d0,d1,{d},{k}] = eq(t4, t2)\n"
        f"t6 f32[d0,d1,{d}] = cast(in0)\nt7 f32[d0,d1,{d},{k}] = where(t5, t6, 0.0)\n"
        f"t8 f32[d0,d1,{r}] = sum(t7[{access}]) over {k}\nout0 f32[d0,d1,{r}] = t8\n"
    )
    shape = [program.axis[a].size for a in program.inputs[0].axes]
    g = torch.Generator().manual_seed(3)
    inputs = [
        torch.randn(shape, generator=g).bfloat16(),
        torch.randint(0, 3, shape, generator=g, dtype=torch.int8),
    ]
    run = to_aten(program)
    assert not _calls_index(run)
    got = (torch.compile(run, dynamic=False, fullgraph=True) if compiled else run)(*inputs)
    torch.testing.assert_close(got, evaluate(program, inputs))


def _calls_index(run: torch.fx.GraphModule) -> bool:
    return any(n.target is operator.getitem for n in run.graph.nodes)


@pytest.mark.parametrize(
    ("made", "axes", "what"),
    [
        ("where(t1, in0[d1=d2+4], in1[d3=d2-2])", "d0,d2", "cat of a slice and another tensor"),
        ("neg(in0[d1=2*d3])", "d0,d3", "every second"),
        ("mul(in0[d1=5], in1)", "d0,d3", "one place"),
        ("add(in0[d1=d3, d0=d4], in1)", "d0,d3,d4", "axes renamed and turned"),
    ],
)
def test_slices_are_no_index(made: str, axes: str, what: str) -> None:
    head = "region v1\ndims d0=3 d1=6 d2=5 d3=3 d4=3\nin0 f32[d0,d1]\nin1 f32[d0,d3]\n"
    positions = "t0 i64[d2] = iota() along d2\nt1 bool[d2] = lt(t0, 2)\n"
    program = parse_program(f"{head}{positions}t2 f32[{axes}] = {made}\nout0 f32[{axes}] = t2\n")
    g = torch.Generator().manual_seed(3)
    inputs = [torch.randn(3, 6, generator=g), torch.randn(3, 3, generator=g)]
    run = to_aten(program)
    assert not _calls_index(run), what
    for expected, actual in zip(evaluate(program, inputs), run(*inputs), strict=True):
        torch.testing.assert_close(actual, expected)


def test_reductions_beyond_the_bounds_leave_out_what_is_outside() -> None:
    program = parse_program(
        "region v1\ndims d0=3 d1=6 d2=6\nin0 f32[d0,d1]\n"
        "t0 f32[d0] = amin(in0[d1=d2-2]) over d2\nout0 f32[d0] = t0\n"
    )
    x = torch.rand(3, 6) + 1.0
    torch.testing.assert_close(to_aten(program)(x)[0], x[:, :4].amin(1))


def test_a_choice_between_two_literals_keeps_its_dtype() -> None:
    program = parse_program(
        "region v1\ndims d0=4\nin0 bool[d0]\nt0 bf16[d0] = where(in0, 1.0, 0.0)\nout0 bf16[d0] = t0\n"
    )
    (got,) = to_aten(program)(torch.tensor([True, False, True, True]))
    assert got.dtype is torch.bfloat16 and got.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_symbolic_sizes_are_refused() -> None:
    program = parse_program("region v1\ndims d0=?4\nin0 f32[d0]\nt0 f32[d0] = neg(in0)\nout0 f32[d0] = t0\n")
    with pytest.raises(ValueError, match="symbolic"):
        to_aten(program)
