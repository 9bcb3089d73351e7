"""Threads that must not outlive the interpreter: one inside torch when Python ends aborts the process (SIGABRT).

They are daemons, so that nobody waits for a long one; at exit each is told to end, and given a moment for it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections.abc import Callable

WAIT_S = 10.0  # one operation of torch on a busy CPU; the exception comes behind it
STEP_S = 0.1  # of a thread that waits: the exception comes behind that too


class Daemon(threading.Thread):
    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.work = work
        # is_alive() is wrong up to Python 3.12 where Ctrl-C ended a join
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        finally:
            _running.discard(self)
            self.ended.set()


_running: set[Daemon] = set()
os.register_at_fork(after_in_child=_running.clear)  # a child has none of the threads to wait for


def start_daemon(work: Callable[[], None], name: str) -> Daemon:
    # registered anew each time: the last comes first, so before what the threads use is closed
    atexit.unregister(end_daemons)
    atexit.register(end_daemons)
    thread = Daemon(work, name)
    _running.add(thread)
    thread.start()
    return thread


def end_soon(thread: Daemon) -> None:
    """Raises SystemExit in it, which goes through every `except Exception`."""
    raise_in(thread, SystemExit)


def raise_in(thread: Daemon, error: type[BaseException]) -> None:
    """Once its call of what is not Python is over; nowhere where it has ended, for its number may be another's."""
    if thread.ended.is_set():
        return
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))


def end_daemons() -> None:
    """Tells each to end, and waits for them."""
    ending = [t for t in list(_running) if t is not threading.current_thread()]
    for thread in ending:
        end_soon(thread)
    until = time.monotonic() + WAIT_S
    for thread in ending:
        thread.ended.wait(max(0.0, until - time.monotonic()))


def wait_until(event: threading.Event, deadline: float) -> bool:
    """Whether `event` is set by then (time.monotonic seconds). A daemon that waits so can be told to end."""
    while not event.wait(max(0.0, min(STEP_S, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return False
    return True
