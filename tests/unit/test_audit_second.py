"""The second implementation agrees with aten in float64, knows what is exact and how far rounding may move it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from benchmarks.redteam.second_oracle import MANTISSA, Unsupported, representable, run
from benchmarks.redteam.witness import Reference, WitnessSample
from cudal1_fx_passes.program.evaluate import evaluate
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.tasks import FAMILIES, generate_task


def _aten(program: Program, sample: WitnessSample, float64: bool) -> list[np.ndarray]:
    """What evaluate.py gives, dims in the program's axis order."""
    types = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    inputs = [torch.from_numpy(np.array(sample.inputs[i.name])).to(types.get(i.dtype)) for i in program.inputs]
    found = []
    for out, got in zip(program.outputs, evaluate(program, inputs, float64=float64), strict=True):
        wide = got.double() if got.is_floating_point() else got
        found.append(wide.permute([out.axes.index(a) for a in program.value_axes[out.value]]).numpy())
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_it_agrees_with_aten_in_float64(family: str) -> None:
    for seed in range(2):
        program = generate_task(random.Random(seed), family, small=True)
        for name in ("integers", "normal", "not finite"):
            try:
                sample = WitnessSample(program, name, seed, {})
            except Unsupported:
                continue
            for out, got in zip(program.outputs, _aten(program, sample, True), strict=True):
                want = sample.expected(out).data
                if program.output_dtype(out) in MANTISSA:
                    near = np.isclose(got, want, rtol=1e-9, atol=1e-12, equal_nan=True)
                    overflow = np.abs(got) > 6e4  # a result beyond its dtype is infinite here
                    assert (near | overflow).all(), print_program(program)
                else:
                    assert (got == want).mean() > 0.999, print_program(program)  # float64 decides ties its own way


@pytest.mark.parametrize("family", FAMILIES)
def test_exact_elements_are_what_every_dtype_gives(family: str) -> None:
    for seed in range(4):
        program = generate_task(random.Random(seed), family, small=True)
        sample = WitnessSample(program, "integers", seed, {})
        for out, got in zip(program.outputs, _aten(program, sample, False), strict=True):
            want = sample.expected(out)
            assert (got[want.exact] == want.data[want.exact]).all(), print_program(program)


def test_what_is_exact() -> None:
    text = (
        "region v1\ndims d0=3 d1=4\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nt1 f32[d0] = mul(t0, 0.5)\n"
        "t2 f32[d0] = mul(t0, 0.1)\nt3 f32[d0] = exp(t0)\nt4 bool[d0] = gt(t1, 0.5)\n"
        "out0 f32[d0] = t1\nout1 f32[d0] = t2\nout2 f32[d0] = t3\nout3 bool[d0] = t4\n"
    )
    x = np.arange(12.0).reshape(3, 4)
    values = run(parse_program(text), {"in0": x})
    assert values["t1"].exact.all() and (values["t1"].data == x.sum(1) / 2).all()
    assert values["t4"].exact.all()
    assert not values["t2"].exact.any() and not values["t3"].exact.any()
    # a third has more bits than a sum may have
    assert not run(parse_program(text), {"in0": x / 3})["t0"].exact[1:].any()


def test_representable() -> None:
    x = np.array([1.0, 257.0, 0.1, 65536.0, 2.0**-20, 0.0])
    assert representable(x, "bf16").tolist() == [True, False, False, True, True, True]
    assert representable(x, "f16").tolist() == [True, True, False, False, False, True]


def test_rounding_moves_a_result_by_its_dtype() -> None:
    text = (
        "region v1\ndims d0=64\nin0 {0}[d0]\nt0 {0}[d0] = exp(in0)\nt1 {0}[d0] = add(t0, 1.0)\nout0 {0}[d0] = t1\n"
    )
    wide = {}
    for dtype in ("f32", "bf16"):
        program = parse_program(text.format(dtype))
        sample = Reference(program, 1).samples[1]
        out = program.outputs[0]
        wide[dtype] = np.median(sample.allowed(out) / np.abs(sample.expected(out).data))
    assert 2.0**-23 < wide["f32"] < 2.0**-17 and 2.0**-7 < wide["bf16"] < 2.0**-1


def test_an_unverifiable_task_is_known() -> None:
    text = "region v1\ndims d0=9\nin0 f32[d0]\nt0 f32[d0] = {}\nout0 f32[d0] = t0\n"
    assert Reference(parse_program(text.format("mul(in0, 0.0)")), 1).is_unverifiable()
    assert Reference(parse_program(text.format("mul(in0, 1.0)")), 1).is_unverifiable()  # an input passed through
    assert not Reference(parse_program(text.format("mul(in0, 1.5)")), 1).is_unverifiable()
