"""The quick check on the host target: templates' kernels pass, sabotaged ones are named; blame and job order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.collect import PRODUCT_SEED, STRUCTURE_SEED, Budget, Job, blame, jobs_left
from cudal1_trainer.scores.gpu_time import Captured
from cudal1_trainer.scores.measure import Built, _check_all, _hopeless, build_all, copy_storage
from cudal1_trainer.scores.quickcheck import Unusable, check, make_subject
from cudal1_trainer.scores.workers import Lost
from cudal1_trainer.tasks import generate_task
from cudal1_trainer.tasks.variants import WIDE_SEED, write_variants

CPU = torch.device("cpu")
ADD = parse_program(
    "region v1\ndims d0=1000\nin0 f32[d0]\nin1 f32[d0]\nt0 f32[d0] = add(in0, in1)\nout0 f32[d0] = t0\n"
)
KERNEL = """// launch: k<<<4, 256>>>(in0, in1, out0)
__global__ void k(const f32* in0, const f32* in1, f32* out0 DIMS) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < END) st(out0 + i, ld(in0 + i) + BODY);
}
"""


def _judge(code: str, distributions: tuple[str, ...] = ("normal",)) -> dict[str, str]:
    candidate = parse_candidate(code, ADD)
    failures: dict[str, str] = {}
    built = [Built("k", candidate, build(ADD, candidate, HOST))]
    kernels, _ = _check_all(ADD, built, CPU, lambda _: None, distributions, failures)
    assert bool(kernels) != bool(failures)
    return failures


def _code(end: str = "d0", body: str = "ld(in1 + i)") -> str:
    return KERNEL.replace("END", end).replace("BODY", body)


def test_a_right_kernel_passes_every_distribution() -> None:
    assert _judge(_code(), ("normal", "offset", "coherent")) == {}


@pytest.mark.parametrize(
    ("end", "body", "word"),
    [
        ("d0", "2.0f * ld(in1 + i)", "expected"),
        ("d0 - 1", "ld(in1 + i)", "out0"),
        ("d0 + 1", "ld(in1 + i % d0)", "past its end"),
        ("d0", "round_to<bf16>(ld(in1 + i))", "out0"),
    ],
)
def test_a_wrong_kernel_is_named(end: str, body: str, word: str) -> None:
    found = _judge(_code(end, body))["k"]
    assert found.startswith("wrong:") and word in found


def test_code_that_does_not_build_is_recorded() -> None:
    candidate = parse_candidate(_code(body="nonsense"), ADD)
    (built,) = build_all(ADD, {"k": candidate}, HOST, lambda _: None)
    assert built.binary is None and built.failure is not None and built.failure.startswith("build:")


@pytest.mark.parametrize("seed", range(4))
def test_templates_kernels_pass(seed: int) -> None:
    program = generate_task(random.Random(seed), small=True)
    candidates = {v.name: v.candidate for v in write_variants(program, 3)}
    built = build_all(program, candidates, HOST, lambda _: None)
    failures = {b.name: b.failure for b in built if b.failure is not None}
    kernels, _ = _check_all(program, built, CPU, lambda _: None, ("normal",), failures)
    assert failures == {} and set(kernels) == set(candidates)


def test_a_reference_that_is_not_finite_is_not_used() -> None:
    text = "region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = log(in0)\nout0 f32[d0] = t0\n"
    with pytest.raises(Unusable):
        make_subject(parse_program(text), CPU)


def test_a_running_variance_gets_positive_inputs() -> None:
    text = "region v1\ndims d0=64\nin0 f32[d0]\nt0 f32[d0] = sqrt(in0)\nout0 f32[d0] = t0\n"
    program = parse_program(text)
    (variant, *_) = write_variants(program, 1)
    built = build_all(program, {"k": variant.candidate}, HOST, lambda _: None)
    failures: dict[str, str] = {}
    kernels, inputs = _check_all(program, built, CPU, lambda _: None, ("normal",), failures)
    assert kernels and not failures and bool((inputs[0] > 0).double().mean() > 0.99)


def test_a_kernel_that_reaches_the_expectations_is_seen() -> None:
    subject = make_subject(ADD, CPU)
    assert subject.checksum.intact

    def run(outputs: Sequence[Tensor], scratch: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        tolerance = subject.expected[0].tolerance
        assert tolerance is not None
        with torch.inference_mode():
            tolerance.fill_(torch.inf)

    reason = check(subject, write_variants(ADD, 1)[0].candidate, run)
    assert reason is not None and "far outside" in reason and not subject.checksum.intact


def test_copies_keep_strides_and_gaps() -> None:
    x = torch.arange(100.0).as_strided((4, 5), (20, 2))
    y = copy_storage(x)
    assert y.stride() == x.stride() and torch.equal(x, y) and x.data_ptr() != y.data_ptr()


def test_the_variant_that_broke_a_worker_is_not_run_again() -> None:
    job = Job(7, 12)
    again = blame(Lost(job, "grouped/block.4.256.r", "silent"))
    assert again is not None and again.blamed == ("grouped/block.4.256.r",)
    unclear = blame(Lost(again, "reference on normal", "killed"))
    assert unclear is not None and unclear.blamed == again.blamed
    assert blame(Lost(unclear, "timing", "killed")) is None


def test_tasks_already_measured_are_skipped() -> None:
    found = [j.seed for j in islice(jobs_left([0, 2], Budget(1.0, 4, 12)), 10)]
    assert found == [WIDE_SEED, STRUCTURE_SEED, PRODUCT_SEED, 1]


def test_arms_far_behind_are_not_timed_in_rounds() -> None:
    def captured(once_us: float) -> Captured:
        return Captured(Mock(), 1, once_us)

    times = {"fast": 300.0, "slow": 2900.0, "hopeless": 3100.0}
    assert set(_hopeless({name: captured(us) for name, us in times.items()})) == {"hopeless"}
    assert _hopeless({"tiny": captured(5.0), "small": captured(900.0)}) == {}
    assert _hopeless({}) == {}
