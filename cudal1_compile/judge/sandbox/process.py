"""A worker process as seen from the judge: started clean, asked with a deadline, killed with its whole group.

    Worker(...) -> ask(message, limit_s) -> reply | WorkerLost
                   send, send, receive, ...: the next request lies ready when one is answered

It knows pipes, deadlines and signals; what the messages mean is told in wire.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from cudal1_compile.judge.sandbox.device_lock import LockFiles, let_go
from cudal1_compile.judge.sandbox.fork_server import Fork, ForkServer, Start, kill_group
from cudal1_compile.judge.sandbox.isolation import worker_environment
from cudal1_compile.judge.sandbox.wire import Message, decode, encode
from cudal1_compile.runtime.scratch import ScratchFolder

log = logging.getLogger(__name__)

LOG_TAIL = 2000  # characters of a worker's stderr that go into our log
STEP_S = 0.1  # of a thread that waits for a reply: a stop, or an exception, comes behind it
DEVICE_S = 300.0  # that a worker may wait for the device besides its limit: a hung one elsewhere is killed earlier


class WorkerLost(Exception):
    """The worker hung beyond its deadline or died; it has been killed."""


class WorkerLate(WorkerLost):
    """It did not answer by its deadline."""


class DeviceTaken(WorkerLost):
    """All the time it waited for other processes to leave the device: nothing is known of what it was asked."""


class _Deadline:
    """Of a request: what its worker waits for others is not its own time."""

    def __init__(self, limit_s: float) -> None:
        self._end = time.monotonic() + limit_s
        self._last = self._end + DEVICE_S
        self._waits_since: float | None = None

    @property
    def waits(self) -> bool:
        return self._waits_since is not None

    @property
    def left_s(self) -> float:
        return max(0.0, (self._last if self.waits else self._end) - time.monotonic())

    def hear(self, waits: bool) -> None:
        now = time.monotonic()
        if self._waits_since is not None:
            self._end = min(self._last, self._end + now - self._waits_since)
        self._waits_since = now if waits else None


class _Alone:
    """A process that imports what it needs by itself. Like a Fork."""

    def __init__(self, wanted: Start) -> None:
        # in a thread of its own: the kernel kills it with the thread that started it
        begun: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=_attend, args=(wanted, begun), name="cudal1-worker", daemon=True).start()
        self._process = begun.result()
        assert self._process.stdin is not None and self._process.stdout is not None
        self.requests, self.replies = self._process.stdin.fileno(), self._process.stdout.fileno()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As of subprocess; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        if self.alive:
            kill_group(self._process.pid)

    def end(self) -> None:
        kill_group(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _attend(wanted: Start, begun: Future[subprocess.Popen[bytes]]) -> None:
    """Returns once the process has ended."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", wanted.module, *wanted.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=wanted.errors,
            cwd=wanted.folder,
            env=dict(wanted.environment),
            start_new_session=True,
            pass_fds=tuple(wanted.inherited),
        )
    except OSError as error:
        begun.set_exception(error)
        return
    begun.set_result(process)
    process.wait()


class Worker:
    """One child process; it speaks one JSON object a line."""

    def __init__(
        self,
        module: str = "cudal1_compile.judge.bench.worker",
        compiled: Path | None = None,
        read_only: bool = True,
        lock_files: LockFiles | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        """module: run with -m. compiled: a folder for Inductor's code that outlives this worker.

        read_only: it may change files in its own folder and in `compiled` only.
        lock_files: of a device that it shares with other workers.
        fork_server: whose fork it is to be, if that can be had.
        """
        self.given_up: Message = {}  # what it gave up, by name, once it has said hello
        self._scratch = ScratchFolder("worker")
        self._folder = self._scratch.path
        writable = [str(f) for f in (self._folder, compiled) if f is not None and read_only]
        self.lock_descriptors = lock_files.descriptors() if lock_files else ()
        self._errors = (self._folder / "stderr").open("wb")
        environment = worker_environment(self._folder, compiled)
        wanted = Start(
            module, writable, environment, str(self._folder), self._errors.fileno(), self.lock_descriptors
        )
        start = _Alone if fork_server is None else fork_server.start
        try:
            self._process: _Alone | Fork = start(wanted)
        except OSError as error:
            log.info("a worker imports by itself: %s", error)
            self._process = _Alone(wanted)
        self._buffer = self._unsent = b""
        self._is_stopped = False
        os.set_blocking(self._process.requests, False)  # a worker that hangs takes none

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def exit_code(self) -> int | None:
        """How it ended; None where that is not known, as of a fork server's fork."""
        return self._process.exit_code if isinstance(self._process, _Alone) else None

    def ask(self, message: Message, limit_s: float) -> Message:
        """Sends one request and waits for its reply. Raises WorkerLost; the process is dead then."""
        self.send(message)
        return self.receive(limit_s)

    def send(self, message: Message) -> None:
        """What the pipe does not take now goes while a reply is waited for."""
        self._unsent += encode(message)
        self._write()

    def receive(self, limit_s: float) -> Message:
        """The reply to the oldest request that has none. Raises WorkerLost; the process is dead then.

        The limit is without what the worker waits for others to leave the device, DEVICE_S at most.
        """
        deadline = _Deadline(limit_s)
        try:
            if not self.given_up:
                self.given_up = decode(self._read_line(deadline))["given_up"]
            while "waits" in (message := decode(self._read_line(deadline))):
                deadline.hear(bool(message["waits"]))
            return message
        except (OSError, ValueError) as error:
            self.kill()
            raise WorkerLost(f"the worker process died: {error}") from None

    def stop(self) -> None:
        """Ends the process at once; whoever waits for its answer in another thread gets WorkerLost."""
        self._is_stopped = True
        self._process.stop()

    def kill(self) -> None:
        """Ends the process and everything it started. May be called twice."""
        self._process.end()
        if self.lock_descriptors:  # not before it is gone, and its kernels with it
            let_go(self.lock_descriptors)
            self.lock_descriptors = ()
        self._errors.close()
        if self._folder.is_dir():
            text = (self._folder / "stderr").read_bytes()[-LOG_TAIL:].decode(errors="replace").strip()
            if text:
                log.debug("a worker's last words:\n%s", text)
            self._scratch.remove()

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # a process that is gone shows when it is read
            while self._unsent:
                self._unsent = self._unsent[os.write(self._process.requests, self._unsent) :]

    def _read_line(self, deadline: _Deadline) -> bytes:
        requests, replies = self._process.requests, self._process.replies
        while b"\n" not in self._buffer:
            left = deadline.left_s
            with selectors.PollSelector() as ends:  # descriptors over 1,023 too
                ends.register(replies, selectors.EVENT_READ)
                if self._unsent:
                    ends.register(requests, selectors.EVENT_WRITE)
                ready = {key.fd for key, _ in ends.select(min(left, STEP_S))}
            if self._is_stopped:
                raise OSError("it was stopped")
            if left == 0.0:
                self.kill()
                if deadline.waits:
                    raise DeviceTaken(f"other processes have had the device for {DEVICE_S:.0f} s")
                raise WorkerLate("the worker process did not answer in time and was killed")
            if requests in ready:
                self._write()
            if replies in ready:
                chunk = os.read(replies, 1 << 16)
                if not chunk:
                    raise OSError("it closed its pipe")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
