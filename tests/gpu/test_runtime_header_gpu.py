"""The device header on a GPU gives what torch gives on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from product_kernels import CASES, NULL_ROWS, NULL_ROWS_REGION, Product
from runtime_kernels import Case, cases

from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launcher import load
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.quickcheck import empty_scratch

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
    _assert_equal(case, detect_target(torch.device("cuda")))


@pytest.mark.parametrize("case", [c for c in CASES if c.wide or c.bulk], ids=lambda c: c.name)
def test_products_of_warp_groups_equal_torch_where_there_are_none(case: Product) -> None:
    """Built without what is Hopper's alone, as for any other GPU."""
    _assert_equal(case, replace(detect_target(torch.device("cuda")), arch="sm_90"))


def _assert_equal(case: Product, target: Target) -> None:
    program = case.program()
    candidate = case.candidate(program)
    kernel = load(program, candidate, build(program, candidate, target))
    inputs = case.inputs("cuda")
    want = case.want(case.inputs())
    out = torch.full(want.shape, torch.nan, dtype=inputs[0].dtype, device="cuda")
    scratch = empty_scratch(program, candidate, out.device)
    kernel(out, *scratch, *inputs, torch.cuda.current_stream().cuda_stream)
    assert (out.cpu().double() - want).abs().max() <= case.rtol * want.abs().max()
    kernel.close()


@pytest.mark.parametrize("case", [c for c in CASES if c.arithmetic == "f32_split"], ids=lambda c: c.name)
def test_split_products_keep_what_is_not_finite(case: Product) -> None:
    """An infinite factor times the low part of another is of either sign, or NaN."""
    program = case.program()
    candidate = case.candidate(program)
    kernel = load(program, candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    inputs = case.inputs()
    inputs[0].view(-1)[::400], inputs[0].view(-1)[7::500] = torch.inf, torch.nan
    inputs[1].view(-1)[::3] = inputs[1].view(-1)[::3].round()  # has no low part
    want = case.want(inputs)
    out = torch.zeros(want.shape, device="cuda")
    kernel(out, *(x.cuda() for x in inputs), torch.cuda.current_stream().cuda_stream)
    assert want.isinf().any() and want.isnan().any() and want.isfinite().any()
    got = out.cpu().double()
    rest = want.isfinite()
    assert torch.equal(got[~rest].nan_to_num(1.0), want[~rest].nan_to_num(1.0))
    assert (got[rest] - want[rest]).abs().max() <= case.rtol * want[rest].abs().max()
    kernel.close()


@pytest.mark.parametrize("case", [c for c in CASES if c.warp[0] and c.matrix], ids=lambda c: c.name)
def test_a_sum_of_no_terms_is_zero(case: Product) -> None:
    """As the last part of a split sum may be."""
    program = case.program()
    code = case.candidate(program).code.replace(">(1, d1,", ">(1, 0,")
    candidate = parse_candidate(code, program)
    assert ">(1, 0," in code
    kernel = load(program, candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    inputs = case.inputs("cuda")
    out = torch.full(case.want(case.inputs()).shape, torch.nan, dtype=inputs[0].dtype, device="cuda")
    kernel(out, *inputs, torch.cuda.current_stream().cuda_stream)
    assert not out.any()
    kernel.close()


def test_rows_that_are_not_there_are_not_read() -> None:
    program = parse_program(NULL_ROWS_REGION)
    candidate = parse_candidate(NULL_ROWS, program)
    kernel = load(program, candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    x, y = torch.randn(8, 80, 160, 100, device="cuda"), torch.randn(8, 80, 100, device="cuda")
    padded = torch.nn.functional.pad(y, (1, 1)).double()
    taps = torch.stack([padded[..., k : k + 100] for k in (0, 2)], -1)
    want = torch.einsum("bgjd,bgdk->gjk", x.double(), taps)
    for _ in range(50):  # how warps fall decides whether one reads too early
        out = torch.full((80, 160, 2), torch.nan, device="cuda")
        kernel(out, x, y, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        assert (out.double() - want).abs().max() <= 2e-3 * want.abs().max()
    kernel.close()
