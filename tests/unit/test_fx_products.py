"""Products become torch's own convolutions and contractions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
import torch
from fx_trace import tensor, trace
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from cudal1_compile.judge.oracle.memory import oracle_bytes
from cudal1_fx_passes.fusion.partition import PartitionConfig, partition
from cudal1_fx_passes.importer.capture import take_for_cuda
from cudal1_fx_passes.importer.layout import memory_view
from cudal1_fx_passes.program.evaluate import evaluate, round_to_tf32
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.products import match_convolution
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_fx_passes.program.to_aten import to_aten


def check(program: Program, *inputs: Tensor) -> str:
    """Asserts that the aten code is the program's meaning; returns the names of what it calls."""
    gm = to_aten(program)
    for wanted, got in zip(evaluate(program, inputs), gm(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    return " ".join(str(n.target) for n in gm.graph.nodes)


def convolution(stride: int, padding: int, dilation: int) -> Program:
    made = F.conv2d(torch.zeros(1, 3, 10, 10), torch.zeros(1, 3, 3, 3), None, stride, padding, dilation).shape[-1]
    first, second = (f"{stride}*{d}+{dilation}*{k}-{padding}" for d, k in (("d5", "k0"), ("d6", "k1")))
    return parse_program(
        f"region v1\ndims d0=2 d1=3 d2=10 d3=10 d4=4 d5={made} d6={made} k0=3 k1=3\n"
        "in0 f32[d0,d1,d2,d3]\nin1 f32[d4,d1,k0,k1]\n"
        f"t0 f32[d0,d4,d5,d6] = dot(in0[d2={first}, d3={second}], in1) over d1,k0,k1\nout0 f32[d0,d4,d5,d6] = t0\n"
    )


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (2, 0, 2), (3, 2, 1)])
def test_convolutions(stride: int, padding: int, dilation: int) -> None:
    program = convolution(stride, padding, dilation)
    found = match_convolution(program, program.ops[0])
    assert found is not None and not found.swapped and not found.transposed
    assert (found.batch, found.inputs, found.outputs, found.groups) == (("d0",), ("d1",), ("d4",), ())
    assert "conv2d" in check(program, tensor(2, 3, 10, 10), tensor(4, 3, 3, 3, seed=1))


def test_operands_in_the_other_order() -> None:
    text = "region v1\ndims d0=2 d1=3 d2=8 d3=4 d4=8 k0=3\nin0 f32[d3,d1,k0]\nin1 f32[d0,d1,d2]\n"
    text += "t0 f32[d0,d3,d4] = dot(in0, in1[d2=d4+k0-1]) over d1,k0\nout0 f32[d0,d3,d4] = t0\n"
    assert "conv1d" in check(parse_program(text), tensor(4, 3, 3), tensor(2, 3, 8, seed=1))


def test_groups_and_depthwise_convolutions() -> None:
    grouped = "region v1\ndims d0=2 d1=2 d2=3 d3=8 d4=2 d5=8 k0=3\nin0 f32[d0,d1,d2,d3]\nin1 f32[d1,d4,d2,k0]\n"
    grouped += "t0 f32[d0,d1,d4,d5] = dot(in0[d3=d5+k0-1], in1) over d2,k0\nout0 f32[d0,d1,d4,d5] = t0\n"
    assert "conv1d" in check(parse_program(grouped), tensor(2, 2, 3, 8), tensor(2, 2, 3, 3, seed=1))
    depthwise = "region v1\ndims d0=2 d1=4 d2=8 d3=8 k0=3\nin0 f32[d0,d1,d2]\nin1 f32[d1,k0]\n"
    depthwise += "t0 f32[d0,d1,d3] = dot(in0[d2=d3+k0-1], in1) over k0\nout0 f32[d0,d1,d3] = t0\n"
    assert "conv1d" in check(parse_program(depthwise), tensor(2, 4, 8), tensor(4, 3, seed=1))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 1])
def test_transposed_convolutions(stride: int, extra: int) -> None:
    if extra >= stride:
        pytest.skip("torch asks for an output padding below the stride")
    made = (5 - 1) * stride - 2 + 2 + 1 + extra
    text = f"region v1\ndims d0=2 d1=3 d2=5 d3=4 d4={made} k0=3\nin0 f32[d0,d1,d2]\nin1 f32[d1,d3,k0]\n"
    text += f"t0 f32[d0,d3,d4] = dot(in0[d2=(d4-k0+1)/{stride}], in1) over d1,k0\nout0 f32[d0,d3,d4] = t0\n"
    x, w = tensor(2, 3, 5), tensor(3, 4, 3, seed=1)
    program = parse_program(text)
    assert "conv_transpose1d" in check(program, x, w)
    wanted = F.conv_transpose1d(x, w, stride=stride, padding=1, output_padding=extra)
    torch.testing.assert_close(to_aten(program)(x, w)[0], wanted, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class Layer:
    """A convolution of an image and a weight."""

    run: Callable[..., Tensor]
    image: tuple[int, ...]
    weight: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        return self.run(x, w, **self.settings)

    def backward(self, x: Tensor, w: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self(x, w), (x, w), grad)


def check_on_gpu(run: Callable[..., Any], *inputs: Tensor) -> str:
    """Asserts that the one product of a function is computed right by its aten code; returns what that calls.

    The region is as on a GPU. It is held against the function: `evaluate` would call the same library.
    """
    gm = trace(run, *inputs)
    gm.graph.eliminate_dead_code()
    take_for_cuda(gm.graph)
    (region,) = partition(gm.graph, PartitionConfig(products=True)).regions
    values = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), inputs, strict=True))
    made = run(*inputs)
    wanted = dict(zip(gm.graph.output_node().args[0], made, strict=True)) if isinstance(made, tuple) else {}
    module = to_aten(region.program)
    given = [v.detach() for v in (values[n] for n in region.inputs)]
    got = module(*(memory_view(region.program, *pair) for pair in zip(region.program.inputs, given, strict=True)))
    for spec, node, found in zip(region.program.outputs, region.outputs, got, strict=True):
        value = node.meta["val"]
        laid = torch.empty_strided(value.shape, value.stride()).copy_(wanted.get(node, made))
        torch.testing.assert_close(found, memory_view(region.program, spec, laid), rtol=1e-4, atol=1e-4)
    assert all(op.fn == "dot_tf32" for op in region.program.ops)
    return " ".join(str(n.target) for n in module.graph.nodes)


LAYERS = {
    "plain": Layer(F.conv2d, (2, 3, 13, 12), (4, 3, 3, 3), {"padding": 1}),
    "stride": Layer(F.conv2d, (2, 3, 13, 12), (4, 3, 3, 3), {"stride": 2, "padding": 1}),
    "stride and dilation": Layer(F.conv1d, (2, 3, 40), (4, 3, 3), {"stride": 2, "dilation": 3}),
    "groups": Layer(F.conv2d, (2, 4, 14, 14), (6, 2, 3, 3), {"groups": 2, "padding": 1}),
    "depthwise": Layer(F.conv2d, (2, 4, 14, 14), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
    "a window of one row": Layer(F.conv2d, (2, 3, 8, 20), (4, 3, 1, 5), {"padding": (0, 2)}),
    "3d": Layer(F.conv3d, (2, 2, 8, 8, 8), (3, 2, 2, 2, 2), {"stride": 2}),
    "transposed": Layer(F.conv_transpose2d, (2, 3, 10, 10), (3, 4, 3, 3), {"stride": 2, "padding": 1}),
    "size 1": Layer(F.conv2d, (2, 16, 9, 9), (24, 16, 1, 1)),
    "size 1, stride": Layer(F.conv2d, (2, 6, 9, 9), (5, 6, 1, 1), {"stride": 2}),
}


LAYOUTS = {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_what_the_library_has_for_them(name: str, layout: str) -> None:
    """Or a kernel would win by far over what nobody runs."""
    layer, form = LAYERS[name], LAYOUTS[layout]
    if layout == "channels last" and len(layer.image) != 4:
        pytest.skip("channels-last is a layout of images")
    x, w = (
        tensor(*layer.image).to(memory_format=form).requires_grad_(),
        tensor(*layer.weight, seed=1).requires_grad_(),
    )
    grad = tensor(*layer(x, w).shape, seed=2).to(memory_format=form)
    called = check_on_gpu(lambda x, w, grad: layer.backward(x, w, grad), x, w, grad)
    assert called.count("convolution_backward") == 1, "of the weight"
    assert called.count("conv") == 2 and "mm" not in called and "mul" not in called


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_convolution_of_size_1_is_one_in_every_layout(layout: str) -> None:
    """On a GPU torch's flags allow TF32 for it, but not for the matrix product that it could be."""
    x, w = tensor(2, 16, 9, 9).to(memory_format=LAYOUTS[layout]), tensor(24, 16, 1, 1, seed=1)
    assert ("conv2d" if layout == "channels last" else "conv1d") in check_on_gpu(F.conv2d, x, w)


class Convolved(TorchDispatchMode):
    """What convolutions are given, and every operation that lays a tensor out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[Tensor] = []
        self.copies: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "convolution" in func.name():
            self.images += args[: 2 if "backward" in func.name() else 1]
        elif any(word in func.name() for word in ("clone", "contiguous", "_unsafe_view")):
            self.copies.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("width", [1, 3])
def test_what_lies_in_channels_last_is_given_as_such(width: int, batch: int) -> None:
    """A baseline that copies each image is none: in a network the library copies nothing."""
    layer = Layer(F.conv2d, (batch, 16, 9, 9), (24, 16, width, width), {"padding": width // 2})
    x, w = tensor(*layer.image).to(memory_format=torch.channels_last), tensor(*layer.weight, seed=1)
    grad = tensor(*layer(x, w).shape, seed=2).to(memory_format=torch.channels_last)
    with Convolved() as seen:
        check_on_gpu(lambda x, w: layer(x, w), x, w)
        check_on_gpu(lambda x, w, grad: layer.backward(x, w, grad), x.requires_grad_(), w.requires_grad_(), grad)
    assert len(seen.images) >= 5
    assert {suggest_memory_format(image) for image in seen.images} == {torch.channels_last}
    assert {image.shape[2] for image in seen.images} == {9}, (
        "no row of all places, which libraries are not made for"
    )
    assert seen.copies == []


def test_matrix_and_batched_products_are_contractions() -> None:
    text = "region v1\ndims d0=2 d1=3 d2=4 d3=5\nin0 f32[d0,d1,d2]\nin1 f32[d0,d3,d2]\n"
    text += "t0 f32[d0,d1,d3] = dot(in0, in1) over d2\nout0 f32[d0,d3,d1] = t0\n"
    assert "bmm" in check(parse_program(text), tensor(2, 3, 4), tensor(2, 5, 4, seed=1))


def test_only_a_convolution_of_size_1_may_use_tf32_where_matrix_products_may_not() -> None:
    text = "region v1\ndims d0=2 d1=3 d2=20 d3=5\nin0 f32[d0,d1,d2]\nin1 f32[d3,d1]\n"
    text += "t0 f32[d0,d2,d3] = dot_tf32(in0, in1) over d1\nout0 f32[d0,d3,d2] = t0\n"
    program, x, w = parse_program(text), tensor(2, 3, 20), tensor(5, 3, seed=1)
    names = " ".join(str(n.target) for n in to_aten(program).graph.nodes)
    assert "conv1d" in names
    torch.testing.assert_close(to_aten(program)(x, w)[0], F.conv1d(x, w[..., None]))
    assert "mm" in check(parse_program(text.replace("dot_tf32", "dot")), x, w)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert "conv1d" not in " ".join(str(n.target) for n in to_aten(program).graph.nodes)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_a_factor_without_the_summed_axis_is_right() -> None:
    text = "region v1\ndims d0=2 d1=3\nin0 f32[d0,d1]\nin1 f32[d0]\n"
    check(parse_program(text + "t0 f32[d0] = dot(in0, in1) over d1\nout0 f32[d0] = t0\n"), tensor(2, 3), tensor(2))


@pytest.mark.parametrize(
    "access",
    ["in0[d2=d4-k0-1]", "in0[d2=d4+k0+1]", "in0[d2=d4+k0]", "in0[d2=2*d4+k0-1]", "in0[d2=-d4+k0]"],
)
def test_other_windows_are_no_convolution_but_right(access: str) -> None:
    text = "region v1\ndims d0=2 d1=3 d2=8 d3=4 d4=8 k0=3\nin0 f32[d0,d1,d2]\nin1 f32[d3,d1,k0]\n"
    text += f"t0 f32[d0,d3,d4] = dot({access}, in1) over d1,k0\nout0 f32[d0,d3,d4] = t0\n"
    program = parse_program(text)
    assert match_convolution(program, program.ops[0]) is None
    assert "conv" not in check(program, tensor(2, 3, 8), tensor(4, 3, 3, seed=1))


def test_convolutions_compile() -> None:
    program = convolution(1, 1, 1)
    inputs = tensor(2, 3, 10, 10), tensor(4, 3, 3, 3, seed=1)
    (got,) = torch.compile(to_aten(program), backend="eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(got, evaluate(program, inputs)[0], rtol=1e-4, atol=1e-4)


def test_tf32_rounds_the_operands_of_the_native_reference_only() -> None:
    program = parse_program(print_program(convolution(1, 1, 1)).replace("= dot(", "= dot_tf32("))
    x, w = tensor(2, 3, 10, 10), tensor(4, 3, 3, 3, seed=1)
    native, exact = evaluate(program, [x, w])[0], evaluate(program, [x, w], float64=True)[0]
    wanted = F.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(exact, wanted)
    error = (native - wanted).abs().max()
    assert 1e-5 < error < 1e-2
    assert torch.equal(
        round_to_tf32(torch.tensor([1.0 + 2.0**-11, torch.inf])), torch.tensor([1.0 + 2.0**-10, torch.inf])
    )


def test_a_slice_of_a_convolution_is_one_too() -> None:
    """A large case is compared slice by slice: the sum's terms must never lie side by side."""
    program = convolution(2, 1, 1)
    x, w = tensor(2, 3, 10, 10), tensor(4, 3, 3, 3, seed=1)
    (whole,) = evaluate(program, [x, w])
    with mock.patch("cudal1_fx_passes.program.evaluate._dot", side_effect=AssertionError):
        (part,) = evaluate(program, [x[1:], w], {"d0": 1})
    torch.testing.assert_close(part, whole[1:])
    few = oracle_bytes(program, {})
    assert few < 16 * 10 * (x.numel() + w.numel() + whole.numel())
