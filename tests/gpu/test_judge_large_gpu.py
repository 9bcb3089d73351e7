"""Regions of many GiB on a GPU: examined in their own memory; what is wrong there alone is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.attacks_large import LARGE, PLAIN
from benchmarks.redteam.regions import region
from cudal1_compile.judge.checks.lean import LEAN_BYTES
from cudal1_compile.judge.inputs.sizes import tensor_bytes
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Rejected, Timed
from cudal1_compile.runtime.target import detect_target

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu

OWN_BYTES = 2 << 30  # a context, the flush buffer, what the allocator rounds up


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(detect_target(torch.device("cuda")), Limits(workers=1)) as found:
        yield found


@contextmanager
def least_free() -> Iterator[list[int]]:
    """The device's free memory at its lowest, looked at every few milliseconds."""
    found, over = [torch.cuda.mem_get_info()[0]], threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            found[0] = min(found[0], torch.cuda.mem_get_info()[0])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def test_a_huge_region_takes_its_own_tensors_and_little_more(judge: Judge) -> None:
    program = region("huge_silu")
    before = torch.cuda.mem_get_info()[0]
    with least_free() as free:
        (quick,) = [f.result() for f in judge.submit_quick([(program, PLAIN)])]
        assert isinstance(quick, Timed), quick
        found = judge.submit_exam(program, PLAIN).result()
        assert not isinstance(found, Rejected), found
        assert isinstance(judge.judge(program, PLAIN), Accepted)
    assert before - free[0] < tensor_bytes(program) + LEAN_BYTES + OWN_BYTES


@pytest.mark.parametrize("attack", LARGE, ids=lambda a: a.name)
def test_what_is_wrong_at_full_size_alone_is_refused(judge: Judge, attack: Attack) -> None:
    verdict = judge.judge(region(attack.region), attack.code)
    assert isinstance(verdict, Rejected) and verdict.stage == "verify", verdict
