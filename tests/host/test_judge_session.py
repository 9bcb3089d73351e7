"""The device session's logic without a device: host objects stand in for cubins, a fake clock for CUDA."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest
import torch

from cudal1_compile.candidate import parse_candidate
from cudal1_compile.judge.audit.attacks import ATTACKS
from cudal1_compile.judge.audit.honest import HONEST
from cudal1_compile.judge.audit.regions import region
from cudal1_compile.judge.clock import Arm, Clock
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.session import DeviceSession, Entrant
from cudal1_compile.judge.verdict import Accepted, Rejected
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program import Program

pytestmark = pytest.mark.host


class _Replayed:
    """What a CUDA graph does, one call at a time."""

    def __init__(self, call: Callable[[int], object], calls: int) -> None:
        self._call, self._calls = call, calls

    def replay(self) -> None:
        for i in range(self._calls):
            self._call(i)


class _FakeClock:
    """The clock's interface over a CPU and wall time."""

    device = torch.device("cpu")
    stream_handle = 0
    bytes_per_us = 1e9

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return 1 << 30

    def capture(self, call: Callable[[int], object], calls: int) -> _Replayed:
        return _Replayed(call, calls)

    def wait(self, limit_s: float) -> None:
        """Host calls have ended when they return."""

    def rounds_for(self, arms: Sequence[Arm], budget_ms: float, rng: random.Random) -> int:
        return 7

    def floor_us(self, moved_bytes: int) -> float:
        return moved_bytes / self.bytes_per_us

    def measure(self, arms: Sequence[Arm], rounds: int, rng: random.Random) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in arms]
        for _ in range(rounds):
            for arm, row in zip(arms, times, strict=True):
                arm.reset()
                begin = time.perf_counter()
                arm.graph.replay()
                row.append((time.perf_counter() - begin) * 1e6 / arm.calls)
        return times


@pytest.fixture(scope="module")
def session() -> DeviceSession:
    return DeviceSession(HOST, cast(Clock, _FakeClock()), Limits(inductor=False))


def _entrant(program: Program, code: str) -> Entrant:
    candidate = parse_candidate(code, program)
    return Entrant(candidate, build(program, candidate, HOST))


@pytest.mark.parametrize("honest", HONEST, ids=lambda h: h.name)
def test_accepts_honest_kernels_with_a_quick_time(session: DeviceSession, honest: object) -> None:
    item = next(h for h in HONEST if h is honest)
    program = region(item.region)
    verdict = session.judge(program, _entrant(program, item.code), seed=7)
    assert isinstance(verdict, Accepted), verdict
    assert verdict.proof.timing is not None
    assert verdict.proof.timing.candidate_us > 0
    assert not verdict.proof.timing.final


HARMLESS = [a for a in ATTACKS if a.stages == ("verify",) and a.hack not in ("C18", "C20", "C21", "C27")]


@pytest.mark.parametrize("attack", HARMLESS, ids=lambda a: a.name)
def test_rejects_attacks(session: DeviceSession, attack: object) -> None:
    item = next(a for a in HARMLESS if a is attack)
    program = region(item.region)
    verdict = session.judge(program, _entrant(program, item.code), seed=7)
    assert isinstance(verdict, Rejected), verdict
    assert verdict.stage == "verify"


def test_finalists_are_measured_together_and_the_wrong_one_is_named(session: DeviceSession) -> None:
    program = region("softmax")
    right = [h.code for h in HONEST if h.region == "softmax"]
    wrong = next(a.code for a in ATTACKS if a.name == "softmax sum without its last element")
    verdicts = session.finalists(program, [_entrant(program, c) for c in (*right[:2], wrong)], seed=7)
    assert isinstance(verdicts[2], Rejected)
    for verdict in verdicts[:2]:  # a loaded machine may make the times vary; then no verdict is given
        assert not isinstance(verdict, Rejected)
        if isinstance(verdict, Accepted):
            assert verdict.proof.timing is not None
            assert verdict.proof.timing.final


def test_an_implausible_time_is_rejected(session: DeviceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    program = region("silu")
    monkeypatch.setattr(session.clock, "floor_us", lambda moved: 1e9)
    verdict = session.judge(program, _entrant(program, HONEST[0].code), seed=7)
    assert isinstance(verdict, Rejected)
    assert verdict.stage == "time"
    assert "bytes" in verdict.reason
