"""Regions of many GiB on a GPU: examined in their own memory; what is wrong there alone is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.redteam.attack import Attack
from benchmarks.redteam.attacks_large import LARGE, PLAIN
from benchmarks.redteam.regions import region
from cudal1_compile.judge.bench.lean_session import Entrant
from cudal1_compile.judge.bench.session import DeviceSession, open_session
from cudal1_compile.judge.checks.lean import LEAN_BYTES
from cudal1_compile.judge.inputs.sizes import tensor_bytes
from cudal1_compile.judge.judge import Judge
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, Rejected, Timed
from cudal1_compile.kernel.candidate import parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import detect_target

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge(detect_target(torch.device("cuda")), Limits(workers=1)) as found:
        yield found


def test_a_huge_region_is_timed_and_examined(judge: Judge) -> None:
    program = region("huge_silu")
    (quick,) = [f.result() for f in judge.submit_quick([(program, PLAIN)])]
    assert isinstance(quick, Timed), quick
    assert not isinstance(judge.submit_exam(program, PLAIN).result(), Rejected)
    assert isinstance(judge.judge(program, PLAIN), Accepted)


def test_an_examination_takes_the_regions_own_tensors_and_little_more() -> None:
    program = region("huge_silu")
    candidate = parse_candidate(PLAIN, program)
    entrant = Entrant(candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    session = open_session(0, Limits(inductor=False))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert isinstance(session.judge(program, entrant, seed=3, timed=False), Accepted)
    assert torch.cuda.max_memory_allocated() - before < tensor_bytes(program) + LEAN_BYTES


@pytest.fixture(scope="module")
def session() -> DeviceSession:
    return open_session(0, Limits(inductor=False))


def test_what_the_judge_has_queued_is_not_the_candidates_time(session: DeviceSession) -> None:
    program = region("huge_silu")
    candidate = parse_candidate(PLAIN, program)
    entrant = Entrant(candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    with session.clock.active():
        torch.cuda._sleep(6_000_000_000)  # type: ignore[no-untyped-call]  # cycles: 3 s
    (verdict,) = session.finalists(program, [entrant], seed=5, is_right_smaller=True)
    assert not isinstance(verdict, Rejected), verdict


@pytest.mark.parametrize("attack", LARGE, ids=lambda a: a.name)
def test_what_was_right_smaller_and_is_wrong_here_is_refused(session: DeviceSession, attack: Attack) -> None:
    program = region(attack.region)
    candidate = parse_candidate(attack.code, program)
    entrant = Entrant(candidate, build(program, candidate, detect_target(torch.device("cuda"))))
    (verdict,) = session.finalists(program, [entrant], seed=5, is_right_smaller=True)
    assert isinstance(verdict, Rejected) and verdict.stage == "verify", verdict


@pytest.mark.parametrize("attack", LARGE, ids=lambda a: a.name)
def test_what_is_wrong_at_full_size_alone_is_refused(judge: Judge, attack: Attack) -> None:
    verdict = judge.judge(region(attack.region), attack.code)
    assert isinstance(verdict, Rejected) and verdict.stage == "verify", verdict
