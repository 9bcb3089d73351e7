"""Child processes side by side, one in each place: a GPU, with a share of the cores.

    child = start_child(command, place), stop_children([child])     in the parent
    with ends_with_parent(): ...                                    in a child's main thread

A child ends when its work is done, or it fails; it also ends where it is stopped, or the parent has gone, by
SIGKILL too. Its stdin is a pipe of the parent's: once that is closed, OutOfTime is raised in the child, which ends
what it has started itself, also in other sessions. A child that has not ended after STOP_S is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

OUT_OF_TIME = 75  # a child's exit code: not done, and no failure
STOP_S = 6.0


class OutOfTime(Exception):
    """What is left needs another call."""


def _ring(number: int, frame: object) -> None:
    raise OutOfTime("the time is over")


@contextmanager
def ends_with_parent() -> Iterator[None]:
    """Raises OutOfTime in the body, whatever it is doing, when stdin has ended. Once in a process."""

    def listen(main: int) -> None:
        while os.read(0, 1):
            pass
        signal.pthread_kill(main, signal.SIGALRM)

    signal.signal(signal.SIGALRM, _ring)
    threading.Thread(target=listen, args=(threading.get_ident(),), daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one child at a time runs."""

    environment: Mapping[str, str]  # beside the parent's
    cores: frozenset[int] = frozenset()  # none: the parent's


def share_cores(count: int) -> list[frozenset[int]]:
    """This process's cores in `count` parts; no parts where there are too few, or the system cannot pin."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [frozenset(cores[len(cores) * k // count : len(cores) * (k + 1) // count]) for k in range(count)]


def start_child(command: Sequence[str], place: Place, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """output: where its stdout and stderr go; None: to the parent's."""
    environment = {**os.environ, **place.environment}
    errors = None if output is None else subprocess.STDOUT
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=environment,
        start_new_session=True,
    )
    if place.cores:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.sched_setaffinity(child.pid, place.cores)
    return child


def stop_children(children: Iterable[subprocess.Popen[bytes]]) -> None:
    """Closes their stdin; who has not ended after STOP_S is killed with all of its session."""
    children = list(children)
    for child in children:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a word that it has not read, and never will
            child.stdin.close()
    limit = time.monotonic() + STOP_S
    for child in children:
        try:
            child.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
