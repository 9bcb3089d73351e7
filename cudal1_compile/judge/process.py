"""A worker process as seen from the judge: started clean, asked with a deadline, killed with its whole group.

    Worker(...) -> ask(message, limit_s) -> reply | WorkerLost

It knows pipes, deadlines and signals; what the messages mean is told in wire.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cudal1_compile.judge.isolation import worker_environment
from cudal1_compile.judge.wire import Message, decode, encode

log = logging.getLogger(__name__)

LOG_TAIL = 2000  # characters of a worker's stderr that go into our log


class WorkerLost(Exception):
    """The worker hung beyond its deadline or died; it has been killed."""


class Worker:
    """One child process. `module` is run with -m; it must speak one JSON object a line."""

    def __init__(
        self,
        module: str = "cudal1_compile.judge.worker",
        compiled: Path | None = None,
        read_only: bool = True,
    ) -> None:
        """compiled: a folder for Inductor's code that outlives this worker.

        read_only: it may change files in its own folder and in `compiled` only.
        """
        self.given_up: Message = {}  # what it gave up, by name, once it has said hello
        self._folder = Path(tempfile.mkdtemp(prefix="cudal1-worker-"))
        writable = [str(f) for f in (self._folder, compiled) if f is not None and read_only]
        self._errors = (self._folder / "stderr").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *writable],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._folder,
            env=dict(worker_environment(self._folder, compiled)),
            start_new_session=True,
        )
        self._buffer = b""

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: Message, limit_s: float) -> Message:
        """Sends one request and waits for its reply. Raises WorkerLost; the process is dead then."""
        end = time.monotonic() + limit_s
        try:
            if not self.given_up:
                self.given_up = decode(self._read_line(end))["given_up"]
            assert self._process.stdin is not None
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
            return decode(self._read_line(end))
        except (OSError, ValueError) as error:
            self.kill()
            raise WorkerLost(f"the worker process died: {error}") from None

    def stop(self) -> None:
        """Ends the process at once; whoever waits for its answer in another thread gets WorkerLost."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Ends the process and everything it started. May be called twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._folder.is_dir():
            text = (self._folder / "stderr").read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
            if text:
                log.debug("a worker's last words:\n%s", text)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _read_line(self, end: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.kill()
                raise WorkerLost("the worker process did not answer in time and was killed")
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                raise OSError("it closed its pipe")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
