"""Who ends tools and removes folders when this process is killed: a small process that outlives it.

    watched(pid) -> a tool's process group     watch(name), release(name) -> a folder, by its path
    this process ends, however it does -> the pipe to the warden closes -> what is held is killed, then removed

A signal handler would be the user's to install, SIGKILL has none, and PR_SET_PDEATHSIG follows a thread and is not
inherited by what a compiler starts. The warden starts with the first tool or folder, and goes when it has none at
a look every KEPT_S. Where it cannot start there is none: limits end a tool, and scratch.py sweeps up later.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

KEPT_S = 5.0
PROGRAM = Path(__file__).with_name("warden_process.py")


class Warden:
    """For several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, name: str) -> None:
        """A process group's number, or a folder's path."""
        with self._lock:
            self._names.add(name)
            if self._process is None or self._process.poll() is not None:
                self._start()
            else:
                self._say("+", name)

    def release(self, name: str) -> None:
        """It has ended, or is removed."""
        with self._lock:
            self._names.discard(name)
            self._say("-", name)

    def forget(self) -> None:
        """In a fork, which has nothing to do with what its parent holds."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._lock, self._names, self._process = threading.Lock(), set(), None

    def _start(self) -> None:
        # no site, no environment: 15 ms, and nothing of the user's runs in it
        command = [sys.executable, "-I", "-S", str(PROGRAM)]
        try:
            self._process = subprocess.Popen(
                command, stdin=-1, stdout=-3, stderr=-3, cwd="/", start_new_session=True, bufsize=0
            )
            self._look_later()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread
            log.debug("nobody clears up after this process: %s", error)
        for name in self._names:
            self._say("+", name)

    def _say(self, sign: str, name: str) -> None:
        if self._process is not None and self._process.stdin is not None and "\n" not in name:
            with suppress(OSError):  # it was killed; the next one hears all names
                self._process.stdin.write(os.fsencode(f"{sign}{name}\n"))

    def _look_later(self) -> None:
        timer = threading.Timer(KEPT_S, self._look)
        timer.daemon = True
        timer.start()

    def _look(self) -> None:
        with self._lock:
            if self._names:
                self._look_later()
            elif self._process is not None:
                self._process.communicate()
                self._process = None


_warden = Warden()
os.register_at_fork(after_in_child=_warden.forget)
watch, release = _warden.watch, _warden.release


@contextmanager
def watched(pid: int) -> Iterator[None]:
    """A process that leads a group, as long as it runs."""
    watch(str(pid))
    try:
        yield
    finally:
        release(str(pid))
