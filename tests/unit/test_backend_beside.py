"""A writer's thread beside the user's: results, errors, and whose a Ctrl-C is (real signals to this process)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from cudal1_compile.pipeline import beside as module
from cudal1_compile.pipeline.beside import beside

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """A shell's background job ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Endless:
    """A writer that notes what ends it."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.by: type[BaseException] | None = None

    def __call__(self) -> str:
        self.begun.set()
        try:
            while True:
                time.sleep(0.01)
        except BaseException as error:
            self.by = type(error)
            self.ended.set()
            raise


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)  # the handler runs here


def test_both_go_on_at_once() -> None:
    here, there = threading.Event(), threading.Event()
    usual_s = sys.getswitchinterval()

    def write() -> tuple[str, bool]:
        there.set()
        return threading.current_thread().name, here.wait(WAIT_S)

    def meanwhile() -> None:
        assert there.wait(WAIT_S) and sys.getswitchinterval() == pytest.approx(module.SWITCH_S)
        here.set()

    assert beside(write, meanwhile) == ("cudal1-synthesis", True)
    assert sys.getswitchinterval() == usual_s and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_writers_error_is_raised_once_the_other_is_done() -> None:
    done: list[str] = []

    def write() -> None:
        raise ValueError("the writer's")

    with pytest.raises(ValueError, match="the writer's"):
        beside(write, lambda: done.append("compiled"))
    assert done == ["compiled"]


def test_an_error_here_ends_the_writer() -> None:
    writer = Endless()

    def meanwhile() -> None:
        writer.begun.wait(WAIT_S)
        raise ValueError("the compile's")

    with pytest.raises(ValueError, match="the compile's"):
        beside(writer, meanwhile)
    assert writer.ended.wait(WAIT_S) and writer.by is SystemExit, "which is no interrupt"


def test_the_first_interrupt_is_the_writers() -> None:
    writer, compiled = Endless(), []

    def meanwhile() -> None:
        writer.begun.wait(WAIT_S)
        interrupt()
        assert writer.ended.wait(WAIT_S)
        compiled.append(True)

    assert beside(writer, meanwhile) is None
    assert writer.by is KeyboardInterrupt and compiled


def test_the_second_interrupt_is_raised_here() -> None:
    writer = Endless()

    def meanwhile() -> None:
        writer.begun.wait(WAIT_S)
        interrupt()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        beside(writer, meanwhile)
    assert writer.ended.wait(WAIT_S)


def test_a_writer_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in one call that is not Python's, for somebody's server say."""
    monkeypatch.setattr(module, "ENDING_S", 0.2)
    free = threading.Lock()
    begun = threading.Event()

    def write() -> None:
        begun.set()
        free.acquire()

    def meanwhile() -> None:
        begun.wait(WAIT_S)
        interrupt()

    with free:
        begun_s = time.monotonic()
        assert beside(write, meanwhile) is None
        assert time.monotonic() - begun_s < WAIT_S / 2


def test_a_programs_own_handler_stays() -> None:
    writer, heard = Endless(), []
    signal.signal(signal.SIGINT, lambda *_: heard.append(True))

    def meanwhile() -> None:
        writer.begun.wait(WAIT_S)
        interrupt()
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        beside(writer, meanwhile)
    assert heard and writer.ended.wait(WAIT_S) and writer.by is SystemExit


def test_another_thread_may_call_it() -> None:
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(beside(lambda: "written", lambda: None)))
    thread.start()
    thread.join(WAIT_S)
    assert found == ["written"]
