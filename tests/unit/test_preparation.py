"""The judge is made beside tracing, raised where it is awaited, and closed once, whatever comes between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cudal1_compile.errors import BuildError
from cudal1_compile.pipeline import preparation
from cudal1_compile.pipeline.place import TargetDevice
from cudal1_compile.pipeline.preparation import Preparation
from cudal1_compile.pipeline.process_state import Session
from cudal1_compile.runtime.target import Target

HOST = TargetDevice(torch.device("cpu"), Target("host", "cpu", "x86-64", 1, 48 << 10, 1 << 20))


class Judge:
    def __init__(self, made: list[Judge], wait: Callable[[], Any]) -> None:
        wait()
        self.thread, self.awake, self.closed = threading.current_thread(), 0, 0
        made.append(self)

    def wake(self) -> None:
        self.awake += 1

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Judge]:
    found: list[Judge] = []
    monkeypatch.setattr(preparation, "Judge", lambda target: Judge(found, lambda: None))
    monkeypatch.setattr(preparation.fork_server, "prepare", lambda: None)
    return found


def prepared(generator: Any = None) -> Preparation:
    return Preparation(HOST, Session(), generator)


def test_one_judge_for_all_that_is_asked(made: list[Judge]) -> None:
    with prepared() as preparing:
        preparing.begin()
        with preparing:
            judge: Any = preparing.judge()
        assert preparing.judge() is judge and judge.closed == 0
    assert [judge] == made and (judge.awake, judge.closed) == (1, 1)
    assert judge.thread is not threading.main_thread()


def test_without_a_beginning_it_is_made_when_it_is_asked_for(made: list[Judge]) -> None:
    preparing = prepared()
    for count in (1, 2):
        with preparing:
            assert preparing.judge() is made[-1] and len(made) == count
        assert made[-1].closed == 1


def test_a_judge_that_nobody_wants_is_closed_and_not_waited_for(
    made: list[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(preparation, "Judge", lambda target: Judge(made, go_on.wait))
    with prepared() as preparing:
        preparing.begin()
        assert preparing._judge._coming is not None
        thread = preparing._judge._coming._thread
    assert not made
    go_on.set()
    assert thread.ended.wait(10.0) and made[0].closed == 1


def test_what_its_making_raises_is_raised_where_it_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(target: Target) -> Any:
        raise BuildError("no NVRTC")

    monkeypatch.setattr(preparation, "Judge", fail)
    monkeypatch.setattr(preparation.fork_server, "prepare", lambda: None)
    with prepared() as preparing:
        preparing.begin()
        for _ in range(2):
            with pytest.raises(BuildError, match="no NVRTC"):
                preparing.judge()
