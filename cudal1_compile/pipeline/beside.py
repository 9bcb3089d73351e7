"""Kernels are written in a thread of their own, so that the user's thread compiles meanwhile.

    beside(write, meanwhile) -> what `write` returned; None where Ctrl-C ended it before it could

Dynamo's and Inductor's state belongs to the thread in which Dynamo calls the backend, so the compile stays there.
The first Ctrl-C is the writer's: KeyboardInterrupt is raised in it, and the compile goes on; the next one is
raised here. Where a program has a handler of its own, or calls from another thread than its first, Ctrl-C stays
what it is there, and what it raises ends both.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Generic, TypeVar

from cudal1_compile.generate.daemons import STEP_S, Daemon, end_soon, raise_in, start_daemon

T = TypeVar("T")

ENDING_S = 1.0  # that an interrupted writer is waited for
SWITCH_S = 5e-4  # after which the writer asks for the interpreter; a tenth takes the compile 1.6 times as long


class _Writer(Generic[T]):
    def __init__(self, write: Callable[[], T]) -> None:
        self._write = write
        self._found: T | None = None
        self._error: BaseException | None = None
        self.thread: Daemon = start_daemon(self._run, "cudal1-synthesis")

    def _run(self) -> None:
        try:
            self._found = self._write()
        except BaseException as error:  # noqa: BLE001  whoever waits for it raises it
            self._error = error

    def wait(self, ends_s: Callable[[], float]) -> T | None:
        """Raises what it raised. None where it has not ended at that time (monotonic), which may change."""
        while not self.thread.ended.wait(STEP_S):
            if time.monotonic() > ends_s():
                return None
        if isinstance(self._error, KeyboardInterrupt):
            return None
        if self._error is not None:
            raise self._error
        return self._found


def beside(write: Callable[[], T], meanwhile: Callable[[], object]) -> T | None:
    """Raises what either of the two raises; what is raised here ends the writer."""
    writer = _Writer(write)
    with _quick_switches(), _first_interrupt(writer.thread) as ends_s:
        try:
            meanwhile()
            return writer.wait(ends_s)
        except BaseException:
            end_soon(writer.thread)
            raise


@contextmanager
def _first_interrupt(writer: Daemon) -> Iterator[Callable[[], float]]:
    """The time (monotonic) after which nobody is waited for any more: that of the first Ctrl-C and ENDING_S."""
    ends_s = float("inf")
    is_ours = threading.current_thread() is threading.main_thread()
    if not (is_ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
        yield lambda: ends_s
        return

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal ends_s
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ends_s = time.monotonic() + ENDING_S
        raise_in(writer, KeyboardInterrupt)

    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: ends_s
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def _quick_switches() -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(min(usual_s, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)
