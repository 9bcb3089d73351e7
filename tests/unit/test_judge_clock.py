"""The clock's rules without a device: what happens in which order, and which times are believed."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field

import pytest
import torch

from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.timing import clock as clock_module
from cudal1_compile.judge.timing.clock import Clock, Contender


@dataclass
class _Recorder:
    """Stands for the flush buffer, the events and the graphs: notes who was asked."""

    said: list[str] = field(default_factory=list)

    def fill_(self, value: int) -> None:
        self.said.append("flush")

    def contender(self, name: str) -> Contender:
        return Contender(name, _Graph(name, self.said), 1, lambda: self.said.append(f"reset {name}"))


@dataclass
class _Graph:
    name: str
    said: list[str]

    def replay(self) -> None:
        self.said.append(f"replay {self.name}")


@dataclass
class _Event:
    word: str
    said: list[str]

    def record(self, stream: object) -> None:
        self.said.append(self.word)

    def elapsed_time(self, end: _Event) -> float:
        return 0.01


def test_each_contender_is_reset_and_timed_once_a_round_in_random_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = _Recorder()
    clock = Clock.__new__(Clock)
    clock.device_lock = DeviceLock.private()
    monkeypatch.setattr(clock, "stream", None, raising=False)
    monkeypatch.setattr(clock, "_flush", recorder, raising=False)
    monkeypatch.setattr(clock, "wait", lambda limit_s: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(
        clock_module, "_events", lambda: (_Event("begin", recorder.said), _Event("end", recorder.said))
    )
    times = clock.measure([recorder.contender(name) for name in "abc"], 40, random.Random(1))
    assert times == [[10.0] * 40] * 3
    steps = [recorder.said[i : i + 5] for i in range(0, len(recorder.said), 5)]
    names = [step[0].removeprefix("reset ") for step in steps]
    assert steps == [[f"reset {n}", "flush", "begin", f"replay {n}", "end"] for n in names]
    rounds = ["".join(names[i : i + 3]) for i in range(0, len(names), 3)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert len(set(rounds)) == 6  # every order comes


@pytest.mark.parametrize(("moved", "floor_us"), [(0, 0.3), (100, 0.3), (10_000, 1.125), (200_000, 90.0)])
def test_the_physical_floor_is_a_launch_or_the_bytes(moved: int, floor_us: float) -> None:
    """1,000 bytes a microsecond; what fits into twice the L2 may move four times as fast."""
    clock = Clock.__new__(Clock)
    clock.l2_bytes, clock.bytes_per_us = 50_000, 1000.0
    assert clock.floor_us(moved) == pytest.approx(floor_us)
