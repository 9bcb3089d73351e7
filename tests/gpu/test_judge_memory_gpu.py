"""A GPU that a model has filled: regions are judged within what is left or put off, never lost for want of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from benchmarks.redteam.honest import HONEST, SILU_VECTOR
from benchmarks.redteam.regions import region
from cudal1_cache import Store
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_compile.synthesis.budget import Budget
from cudal1_compile.synthesis.outcome import Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.rounds import synthesize
from cudal1_fx_passes.program.canonical import canonicalise, fingerprint
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.template_generator import TemplateGenerator

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

GIB = 1 << 30
LARGE = parse_program(
    f"region v1\ndims d0={1 << 26}\nin0 f32[d0]\n"
    "t0 f32[d0] = exp(in0)\nt1 f32[d0] = mul(t0, in0)\nout0 f32[d0] = t1\n"
)
LARGE_CODE = """// launch: k<<<cdiv(d0, 256), 256>>>(in0, out0)
__global__ void k(const f32* in0, f32* out0 DIMS) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < d0) st(out0 + i, expf(ld(in0 + i)) * ld(in0 + i));
}
"""


@pytest.fixture(scope="module")
def target() -> Target:
    return detect_target(torch.device("cuda"))


@contextmanager
def filled(left_bytes: int) -> Iterator[None]:
    """A model that leaves so much of the device."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - left_bytes), dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del held
        gc.collect()
        torch.cuda.empty_cache()


def tenth() -> int:
    return torch.cuda.mem_get_info()[1] // 10


def test_small_regions_are_judged_and_measured_beside_a_model_of_nine_tenths(target: Target) -> None:
    with filled(tenth()), Judge(target) as judge:
        verdicts = judge.judge_tasks([(region(h.region), h.code) for h in HONEST[:8]])
        assert all(isinstance(v, Accepted) for v in verdicts), verdicts
        (final,) = judge.finalists(region("silu"), [SILU_VECTOR])
    assert not isinstance(final, Rejected), final


def test_a_region_without_room_is_put_off_and_judged_when_there_is(target: Target) -> None:
    with Judge(target) as judge:
        with filled(3 * GIB):
            (full,) = judge.judge_many(LARGE, [LARGE_CODE])
            assert isinstance(full, Deferred), full
        (free,) = judge.judge_many(LARGE, [LARGE_CODE])
    assert isinstance(free, Accepted), free


def test_a_region_without_room_is_never_stored_as_unprofitable(target: Target) -> None:
    program: Program = canonicalise(LARGE)
    store, budget = Store.memory(), Budget(seconds=60, rounds=1, samples_per_round=2)
    with Judge(target) as judge:
        with filled(3 * GIB):
            first = synthesize(program, TemplateGenerator(), judge, store, budget)
        assert isinstance(first.result, Unfinished), first
        assert store.find_entry(fingerprint(program), target.key) is None
        again = synthesize(program, TemplateGenerator(), judge, store, budget)
    assert isinstance(again.result, Won | Unprofitable), again


def test_a_model_of_nine_tenths_compiles_and_runs(capfd: pytest.CaptureFixture[str]) -> None:
    torch._dynamo.reset()
    left = tenth()
    width = 4096
    x = torch.randn(256, width, device="cuda")
    norm = torch.nn.LayerNorm(width).cuda()
    with filled(left), torch.no_grad():
        options: dict[str, Any] = {"generator": TemplateGenerator(), "budget_s": 20.0, "process_budget_s": 1e6}
        fast = torch.compile(
            lambda y: torch.softmax(torch.nn.functional.gelu(norm(y)), -1), backend="cudal1", options=options
        )
        for _ in range(40):  # the trial of the first calls included
            got = fast(x)
        want = torch.softmax(torch.nn.functional.gelu(norm(x)), -1)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert "out of memory" not in capfd.readouterr().err.lower()
