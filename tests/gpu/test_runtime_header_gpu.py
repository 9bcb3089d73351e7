"""The device header on a GPU gives what torch gives on the CPU."""

from __future__ import annotations

import pytest
import torch
from product_kernels import CASES, Product
from runtime_kernels import Case, cases

from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launcher import load
from cudal1_compile.runtime.target import detect_target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("case", list(cases()), ids=lambda c: c.name)
def test_the_gpu_equals_torch(case: Case) -> None:
    inputs = case.inputs()
    program = case.program(len(inputs[0]))
    candidate = case.candidate(program)
    kernel = load(program, candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    out = torch.zeros(len(inputs[0]), dtype=case.out_dtype(), device="cuda")
    kernel(out, *(x.cuda() for x in inputs), torch.cuda.current_stream().cuda_stream)
    # float32 functions of the GPU are exact to a few units in the last place, not to the last bit
    rtol = max(case.rtol, 5e-6) if case.rtol else 0.0
    torch.testing.assert_close(out.cpu(), case.want(*inputs), rtol=rtol, atol=case.atol, equal_nan=True)
    kernel.close()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_products_equal_torch(case: Product) -> None:
    program = case.program()
    candidate = case.candidate(program)
    kernel = load(program, candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    inputs = case.inputs("cuda")
    want = case.want(case.inputs())
    out = torch.full(want.shape, torch.nan, dtype=inputs[0].dtype, device="cuda")
    kernel(out, *inputs, torch.cuda.current_stream().cuda_stream)
    assert (out.cpu().double() - want).abs().max() <= case.rtol * want.abs().max()
    kernel.close()
