"""Blocks that wait for each other on a GPU: right, with far more groups than fit, and beside another stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from waiting_kernel import GROUPS, NORM, PROGRAM, SIZE, wanted

from cudal1_compile.codegen.templates import variants
from cudal1_compile.kernel.candidate import Candidate, parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launcher import allocate, load
from cudal1_compile.runtime.target import detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.tasks.variants import write_variant

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def softmax(rows: int, length: int) -> Program:
    return parse_program(f"""region v1
dims d0={rows} d1={length}
in0 f32[d0,d1]
t0 f32[d0] = amax(in0) over d1
t1 f32[d0,d1] = sub(in0, t0)
t2 f32[d0,d1] = exp(t1)
t3 f32[d0] = sum(t2) over d1
t4 f32[d0,d1] = div(t2, t3)
out0 f32[d0,d1] = t4
""")


CUDA = torch.device("cuda")


def inter_block(program: Program) -> Candidate:
    """By the most blocks a row that a template takes."""
    found = [s for s in variants(program) if s.stages[0].kind == "joined"]
    variant = write_variant(program, max(found, key=lambda s: s.stages[0].splits))
    assert variant is not None
    return variant.candidate


def loaded(program: Program, candidate: Candidate) -> Callable[[Tensor], Tensor]:
    kernel = load(program, candidate, build(program, candidate, detect_target(CUDA)))

    def call(x: Tensor) -> Tensor:
        outputs, scratch = allocate(program, candidate, CUDA)
        kernel(*outputs, *scratch, x, torch.cuda.current_stream().cuda_stream)
        return outputs[0]

    return call


def test_each_block_sees_what_the_others_stored() -> None:
    call = loaded(PROGRAM, parse_candidate(NORM, PROGRAM))
    for _ in range(50):
        x = torch.randn(GROUPS, SIZE, device="cuda")
        torch.testing.assert_close(call(x), wanted(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "length"), [(20000, 10000), (7, 500_000), (1, 500_000)])
def test_groups_that_do_not_fit_at_once_come_one_after_the_other(rows: int, length: int) -> None:
    program = softmax(rows, length)
    call = loaded(program, inter_block(program))
    x = torch.randn(rows, length, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(call(x), x.softmax(1), rtol=1e-4, atol=1e-8)


def test_two_streams_do_not_starve_each_other() -> None:
    program = softmax(64, 500_000)
    call, x = loaded(program, inter_block(program)), torch.randn(64, 500_000, device="cuda")
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(call(x))
    torch.cuda.synchronize()
    want = x.softmax(1)
    for got in found[-4:]:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-8)
