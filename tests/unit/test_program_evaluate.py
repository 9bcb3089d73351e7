"""What a program means: every operation of the table and every kind of access, against torch's own functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from program_strategies import programs, random_inputs
from torch import Tensor
from torch.nn import functional as F

from cudal1_fx_passes.program.evaluate import TORCH_DTYPE, evaluate, run_values
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.ops import OPS, Kind, Result
from cudal1_fx_passes.program.text import parse_program


def run(text: str, *inputs: Tensor, **kwargs: object) -> list[Tensor]:
    return evaluate(parse_program("region v1\n" + text), inputs, **kwargs)  # type: ignore[arg-type]


def check(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def tensor(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


TORCH_NAMES = {"cast": None, "fma": None, "logical_not": torch.logical_not, "where": None}


@pytest.mark.parametrize("fn", [n for n, s in OPS.items() if s.kind is Kind.POINTWISE and n not in TORCH_NAMES])
def test_pointwise_operations_are_torchs(fn: str) -> None:
    spec = OPS[fn]
    logical = fn.startswith("logical")
    inputs = [tensor(4, 5, seed=i).abs() + 0.1 for i in range(spec.arity)]
    dtype = "bool" if logical else "f32"
    inputs = [x > 0.7 for x in inputs] if logical else inputs
    names = [f"in{i}" for i in range(spec.arity)]
    lines = "".join(f"{name} {dtype}[d0,d1]\n" for name in names)
    made = "bool" if spec.result is Result.BOOL else dtype
    text = f"dims d0=4 d1=5\n{lines}t0 {made}[d0,d1] = {fn}({', '.join(names)})\nout0 {made}[d0,d1] = t0\n"
    (got,) = run(text, *inputs)
    wanted = getattr(torch, fn)(*inputs)
    assert got.dtype == wanted.dtype == TORCH_DTYPE[made]
    check(got, wanted)


@pytest.mark.parametrize("fn", ["sum", "mean", "amax", "amin", "logsumexp"])
@pytest.mark.parametrize("over", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_reductions_are_torchs(fn: str, over: tuple[int, ...]) -> None:
    x = tensor(3, 4, 5)
    kept = ",".join(f"d{i}" for i in range(3) if i not in over)
    axes = ",".join(f"d{i}" for i in over)
    text = (
        f"dims d0=3 d1=4 d2=5\nin0 f32[d0,d1,d2]\nt0 f32[{kept}] = {fn}(in0) over {axes}\nout0 f32[{kept}] = t0\n"
    )
    check(run(text, x)[0], getattr(torch, fn)(x, dim=over))


@pytest.mark.parametrize("correction", [0.0, 1.0])
def test_variance_and_its_correction(correction: float) -> None:
    x = tensor(3, 4, 5)
    text = (
        f"dims d0=3 d1=4 d2=5\nin0 f32[d0,d1,d2]\nt0 f32[d1] = var(in0, {correction}) over d0,d2\n"
        "out0 f32[d1] = t0\n"
    )
    check(run(text, x)[0], x.var(dim=(0, 2), correction=correction))


def test_arg_extrema_over_several_axes_take_the_first_in_the_order_of_over() -> None:
    x = torch.zeros(2, 3, 4)
    x[0, 1, 2] = x[0, 2, 0] = 5.0
    head = "dims d0=2 d1=3 d2=4\nin0 f32[d0,d1,d2]\n"
    (rows,) = run(head + "t0 i64[d0] = argmax(in0) over d1,d2\nout0 i64[d0] = t0\n", x)
    (columns,) = run(head + "t0 i32[d0] = argmax(in0) over d2,d1\nout0 i32[d0] = t0\n", x)
    assert rows.tolist() == [1 * 4 + 2, 0] and rows.dtype is torch.int64
    assert columns.tolist() == [0 * 3 + 2, 0] and columns.dtype is torch.int32


def test_products_any_and_all() -> None:
    x = tensor(3, 4)
    head = "dims d0=3 d1=4\nin0 f32[d0,d1]\n"
    check(run(head + "t0 f32[] = prod(in0) over d0,d1\nout0 f32[] = t0\n", x)[0], x.prod())
    mask = x > 0
    head = "dims d0=3 d1=4\nin0 bool[d0,d1]\n"
    assert torch.equal(run(head + "t0 bool[d0] = any(in0) over d1\nout0 bool[d0] = t0\n", mask)[0], mask.any(1))
    assert torch.equal(run(head + "t0 bool[d1] = all(in0) over d0\nout0 bool[d1] = t0\n", mask)[0], mask.all(0))


def test_scans_and_positions() -> None:
    x = tensor(3, 4)
    head = "dims d0=3 d1=4\nin0 f32[d0,d1]\n"
    check(run(head + "t0 f32[d0,d1] = cumsum(in0) along d0\nout0 f32[d0,d1] = t0\n", x)[0], x.cumsum(0))
    check(run(head + "t0 f32[d0,d1] = cumprod(in0) along d1\nout0 f32[d0,d1] = t0\n", x)[0], x.cumprod(1))
    (steps,) = run("dims d0=3\nt0 i32[d0] = iota() along d0\nout0 i32[d0] = t0\n")
    assert steps.tolist() == [0, 1, 2] and steps.dtype is torch.int32


def test_transposed_inputs_and_outputs_are_in_memory_order() -> None:
    x, y = tensor(3, 4), tensor(4, 3, seed=1)
    text = "dims d0=3 d1=4\nin0 f32[d0,d1]\nin1 f32[d1,d0]\nt0 f32[d0,d1] = sub(in0, in1)\nout0 f32[d1,d0] = t0\n"
    check(run(text, x, y)[0], (x - y.T).T)


def test_a_value_without_an_axis_is_the_same_along_it() -> None:
    x, w = tensor(3, 4), tensor(4, seed=1)
    text = "dims d0=3 d1=4\nin0 f32[d0,d1]\nin1 f32[d1]\nt0 f32[d0,d1] = mul(in0, in1)\nout0 f32[d0,d1] = t0\n"
    check(run(text, x, w)[0], x * w)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
def test_max_pooling_windows(stride: int, padding: int, dilation: int) -> None:
    x = tensor(2, 3, 9, 9)
    wanted = F.max_pool2d(x, 3, stride, padding, dilation)
    made = wanted.shape[-1]
    text = (
        f"dims d0=2 d1=3 d2=9 d3=9 d4={made} d5={made} k0=3 k1=3\nin0 f32[d0,d1,d2,d3]\n"
        f"t0 f32[d0,d1,d4,d5] = amax(in0[d2={stride}*d4+{dilation}*k0-{padding}, "
        f"d3={stride}*d5+{dilation}*k1-{padding}]) over k0,k1\nout0 f32[d0,d1,d4,d5] = t0\n"
    )
    check(run(text, x)[0], wanted)


@pytest.mark.parametrize("count_padding", [False, True])
def test_average_pooling_windows(count_padding: bool) -> None:
    """A mean counts what lies inside; a sum divided by the window's size counts the padding too."""
    x = tensor(2, 8, 8)
    access = "in0[d1=2*d3+k0-1, d2=2*d4+k1-1]"
    how = (
        f"sum({access}) over k0,k1\nt1 f32[d0,d3,d4] = div(t0, 9.0)"
        if count_padding
        else f"mean({access}) over k0,k1"
    )
    last = "t1" if count_padding else "t0"
    text = (
        f"dims d0=2 d1=8 d2=8 d3=4 d4=4 k0=3 k1=3\nin0 f32[d0,d1,d2]\nt0 f32[d0,d3,d4] = {how}\n"
        f"out0 f32[d0,d3,d4] = {last}\n"
    )
    check(run(text, x)[0], F.avg_pool2d(x, 3, 2, 1, count_include_pad=count_padding))


def test_an_extremum_of_integers_ignores_the_outside() -> None:
    x = torch.tensor([-5, -3, -9])
    text = "dims d0=3 d1=3 k0=3\nin0 i64[d0]\nt0 i64[d1] = amax(in0[d0=d1+k0-1]) over k0\nout0 i64[d1] = t0\n"
    assert run(text, x)[0].tolist() == [-3, -3, -3]


def test_the_product_of_a_matrix_multiplication() -> None:
    a, b = tensor(3, 4), tensor(4, 5, seed=1)
    text = (
        "dims d0=3 d1=4 d2=5\nin0 f32[d0,d1]\nin1 f32[d1,d2]\n"
        "t0 f32[d0,d2] = dot(in0, in1) over d1\nout0 f32[d0,d2] = t0\n"
    )
    check(run(text, a, b)[0], a @ b)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (2, 0, 2), (3, 2, 1)])
def test_convolutions_are_windowed_products(stride: int, padding: int, dilation: int) -> None:
    x, w = tensor(2, 3, 10, 10), tensor(4, 3, 3, 3, seed=1)
    wanted = F.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)
    made = wanted.shape[-1]
    text = (
        f"dims d0=2 d1=3 d2=10 d3=10 d4=4 d5={made} d6={made} k0=3 k1=3\nin0 f32[d0,d1,d2,d3]\n"
        "in1 f32[d4,d1,k0,k1]\n"
        f"t0 f32[d0,d4,d5,d6] = dot(in0[d2={stride}*d5+{dilation}*k0-{padding}, "
        f"d3={stride}*d6+{dilation}*k1-{padding}], in1) over d1,k0,k1\nout0 f32[d0,d4,d5,d6] = t0\n"
    )
    torch.testing.assert_close(run(text, x, w)[0], wanted, rtol=1e-4, atol=1e-5)


def test_grouped_convolutions_keep_the_group_axis() -> None:
    x, w = tensor(2, 6, 8), tensor(4, 3, 3, seed=1)
    wanted = F.conv1d(x, w, padding=1, groups=2)
    text = (
        "dims d0=2 d1=2 d2=3 d3=8 d4=2 d5=8 k0=3\nin0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,d2,k0]\n"
        "t0 f32[d0,d1,d4,d5] = dot(in0[d3=d5+k0-1], in1) over d2,k0\nout0 f32[d0,d1,d4,d5] = t0\n"
    )
    (got,) = run(text, x.view(2, 2, 3, 8), w.view(2, 2, 3, 3))
    torch.testing.assert_close(got.reshape(2, 4, 8), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed_convolutions_divide_exactly(stride: int) -> None:
    x, w = tensor(2, 3, 5), tensor(3, 4, 3, seed=1)
    wanted = F.conv_transpose1d(x, w, stride=stride, padding=1)
    text = (
        f"dims d0=2 d1=3 d2=5 d3=4 d4={wanted.shape[-1]} k0=3\nin0 f32[d0,d1,d2]\nin1 f32[d1,d3,k0]\n"
        f"t0 f32[d0,d3,d4] = dot(in0[d2=(d4-k0+1)/{stride}], in1) over d1,k0\nout0 f32[d0,d3,d4] = t0\n"
    )
    torch.testing.assert_close(run(text, x, w)[0], wanted, rtol=1e-4, atol=1e-5)


def test_gathers_slices_and_flips() -> None:
    x, index = tensor(5, 6), torch.tensor([3, 0, 5, 1, 1])
    head = "dims d0=5 d1=6 d2=3\nin0 f32[d0,d1]\nin1 i64[d0] in [0,d1)\n"
    (picked,) = run(head + "t0 f32[d0] = neg(in0[d1=in1])\nout0 f32[d0] = t0\n", x, index)
    check(picked, -x.gather(1, index[:, None])[:, 0])
    (sliced,) = run(head + "t0 f32[d0,d2] = neg(in0[d1=2*d2+1])\nout0 f32[d0,d2] = t0\n", x, index)
    check(sliced, -x[:, 1::2])
    (flipped,) = run(head + "t0 f32[d0,d1] = neg(in0[d1=-d1+5])\nout0 f32[d0,d1] = t0\n", x, index)
    check(flipped, -x.flip(1))


def test_a_square_matrix_may_be_read_transposed() -> None:
    x = tensor(4, 4)
    text = "dims d0=4 d1=4\nin0 f32[d0,d1]\nt0 f32[d0,d1] = add(in0, in0[d0=d1, d1=d0])\nout0 f32[d0,d1] = t0\n"
    check(run(text, x)[0], x + x.T)


def test_operations_round_to_their_dtype_unless_the_oracle_runs() -> None:
    x = torch.tensor([1.0, 2.0]).bfloat16()
    text = (
        "dims d0=2\nin0 bf16[d0]\nt0 bf16[d0] = add(in0, 0.001)\nt1 bf16[d0] = sub(t0, in0)\nout0 bf16[d0] = t1\n"
    )
    assert run(text, x)[0].dtype is torch.bfloat16 and run(text, x)[0].tolist() == [0.0, 0.0]
    (exact,) = run(text, x, float64=True)
    assert exact.dtype is torch.float64
    torch.testing.assert_close(exact, torch.full((2,), 0.001, dtype=torch.float64))


def test_casts_truncate_and_wheres_take_literals() -> None:
    x = torch.tensor([-1.7, 0.0, 2.9])
    text = (
        "dims d0=3\nin0 f32[d0]\nt0 i32[d0] = cast(in0)\nt1 bool[d0] = gt(t0, 0)\n"
        "t2 f32[d0] = where(t1, in0, -0.5)\n"
    )
    ints, chosen = run(text + "out0 i32[d0] = t0\nout1 f32[d0] = t2\n", x)
    assert ints.tolist() == [-1, 0, 2] and chosen.tolist() == [-0.5, -0.5, pytest.approx(2.9)]


def test_extrema_propagate_nan() -> None:
    x, y = torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([2.0, 2.0, float("nan")])
    text = "dims d0=3\nin0 f32[d0]\nin1 f32[d0]\nt0 f32[d0] = maximum(in0, in1)\nt1 f32[] = amin(in0) over d0\n"
    larger, least = run(text + "out0 f32[d0] = t0\nout1 f32[] = t1\n", x, y)
    assert torch.isnan(larger).tolist() == [False, True, True] and bool(torch.isnan(least))


def test_sizes_may_be_overridden() -> None:
    text = "region v1\ndims d0=?8 d1=3\nin0 f32[d0,d1]\nt0 f32[d1] = mean(in0) over d0\nout0 f32[d1] = t0\n"
    x = tensor(5, 3)
    check(evaluate(parse_program(text), [x], sizes={"d0": 5})[0], x.mean(0))


def test_a_wrong_number_of_inputs_is_a_value_error() -> None:
    text = "region v1\ndims d0=2\nin0 f32[d0]\nout0 f32[d0] = in0\n"
    with pytest.raises(ValueError, match="got 0 inputs, the program has 1"):
        evaluate(parse_program(text), [])


@given(programs())
def test_every_value_has_the_dtype_and_shape_that_it_declares(program: Program) -> None:
    values = run_values(program, random_inputs(program))
    for op in program.ops:
        assert values[op.name].dtype is TORCH_DTYPE[op.dtype]
        assert tuple(values[op.name].shape) == tuple(program.axis[a].size for a in op.axes)
