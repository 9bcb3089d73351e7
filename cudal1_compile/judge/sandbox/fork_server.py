"""Worker processes as forks of one process, the fork server, that has imported what they all need.

    ForkServer() -> start(...) -> Fork: descriptors, alive, stop, end
    prepare, take, keep: this process's fork server between two judges, who each have it alone

To import torch and Inductor takes 3 to 13 s of a core, a fork milliseconds, and a judge has up to 17 workers. The
fork server has one thread, no CUDA context and no secret, and runs nothing but `start`; its other side is
fork_server_process.py. It starts with the first fork that is asked for, or ahead of it, and what is asked of it
waits until it is up; who shares a device does not wait for Inductor.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait

from cudal1_compile.judge.sandbox.isolation import worker_environment
from cudal1_compile.runtime.scratch import ScratchFolder

POLL_S = 0.05  # that one thread may keep others from hearing
KEPT_S = 60.0  # that a fork server without a judge waits for the next


@dataclass(frozen=True, slots=True)
class Start:
    """What a process is started with. errors, inherited: descriptors, the latter under the same numbers."""

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    errors: int
    inherited: Sequence[int]


def kill_group(pid: int) -> None:
    """A process that leads a session, and everything that it started there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Fork:
    """A worker's process, as its starter sees it."""

    def __init__(self, fork_server: ForkServer, requests: int, replies: int, life: int) -> None:
        """Descriptors: to write to, to read from, and one that ends with the process, its number first."""
        self.requests, self.replies = requests, replies
        self._fork_server, self._life = fork_server, life
        self._said = b""
        self._gone = False
        self._lock = threading.Lock()  # of what is heard: several threads may ask

    @property
    def alive(self) -> bool:
        """Also while it waits for the fork server."""
        self._listen(0.0)
        return not self._gone

    def stop(self) -> None:
        """Ends it and everything that it started, without waiting for that."""
        if self.alive and self._pid is not None:
            kill_group(self._pid)

    def end(self) -> None:
        """`stop`, and it is gone then, with its CUDA context. May be called twice."""
        if self._life < 0:
            return
        self._listen(0.0)
        if self._pid is not None:
            kill_group(self._pid)  # not reaped yet, so the number is still its own
            self._fork_server.reap(self._pid)
            while not self._gone:
                self._listen(POLL_S)
        with self._lock:  # where it is still to come: it finds nobody to serve then
            for descriptor in (self.requests, self.replies, self._life):
                os.close(descriptor)
            self._life, self._gone = -1, True

    @property
    def _pid(self) -> int | None:
        return int(self._said) if self._said.endswith(b"\n") else None

    def _listen(self, limit_s: float) -> None:
        with self._lock:
            if not self._gone and wait([self._life], limit_s):
                said = os.read(self._life, 64)
                self._said += said
                self._gone = not said


class ForkServer:
    """For several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scratch: ScratchFolder | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None

    @property
    def alive(self) -> bool:
        """Also before it has begun."""
        return self._process is None or self._process.poll() is None

    def begin(self) -> None:
        """Lets it import now. It goes with the thread that calls this. Raises OSError."""
        with self._lock:
            if self._ours is None:
                self._ours = self._begin()

    def start(self, wanted: Start) -> Fork:
        """A fork that runs `main` of the module. Raises OSError where there is no fork server."""
        (requests, ours_in), (ours_out, replies), (life, theirs) = os.pipe(), os.pipe(), os.pipe()
        try:
            self._send(asdict(wanted), [requests, replies, wanted.errors, theirs, *wanted.inherited])
        except OSError:
            for descriptor in (ours_in, ours_out, life):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (requests, replies, theirs):
                os.close(descriptor)
        return Fork(self, ours_in, ours_out, life)

    def reap(self, pid: int) -> None:
        """Returns once a fork that was killed is gone; its number may be another process's from then on."""
        done, theirs = os.pipe()
        try:
            with contextlib.suppress(OSError):  # the fork server is gone, and somebody else reaps its forks
                self._send({"reap": pid}, [theirs])
        finally:
            os.close(theirs)
        os.read(done, 1)
        os.close(done)

    def give_up_young(self) -> None:
        """Ends it while it still imports, so that nobody has to wait for the forks that it was asked for."""
        with self._lock:
            if self._ours is not None and not wait([self._ours], 0.0):
                self._kill()

    def close(self) -> None:
        """After its forks have ended."""
        with self._lock:
            self._kill()

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int]) -> None:
        with self._lock:
            if self._ours is None:
                self._ours = self._begin()
            socket.send_fds(self._ours, [json.dumps(message).encode()], descriptors)

    def _begin(self) -> socket.socket:
        if self._scratch is not None:
            raise OSError("the fork server has ended")
        self._scratch = ScratchFolder("fork-server")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cudal1_compile.judge.bench.fork_server_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self._scratch.path,
                env=dict(worker_environment(self._scratch.path)),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        return ours

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._ours is not None:
            self._ours.close()
        if self._scratch is not None:
            self._scratch.remove()


class _Shelf:
    """At most one fork server, in the process that put it there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: ForkServer | None = None
        self._owner = 0
        self._timer: threading.Timer | None = None

    def prepare(self) -> ForkServer:
        """A judge will be there soon, and take it: it imports meanwhile."""
        fork_server = self.take()
        with contextlib.suppress(OSError):  # the judge will say so
            fork_server.begin()
        self.keep(fork_server)
        return fork_server

    def take(self) -> ForkServer:
        """The one that is kept, or a new one. Whoever takes it gives it to `keep`, or closes it."""
        with self._lock:
            return self._clear() or ForkServer()

    def keep(self, fork_server: ForkServer) -> None:
        """For the next judge of this process; after its forks have ended."""
        if not fork_server.alive:
            fork_server.close()
            return
        with self._lock:
            if (other := self._clear()) is not None:
                other.close()
            self._kept, self._owner = fork_server, os.getpid()
            self._timer = threading.Timer(KEPT_S, self.empty)
            self._timer.daemon = True
            self._timer.start()

    def empty(self) -> None:
        if self._owner != os.getpid():  # a fork, in which another thread's lock may be held for ever
            return
        with self._lock:
            if (found := self._clear()) is not None:
                found.close()

    def _clear(self) -> ForkServer | None:
        """What was there, if it is this process's and alive."""
        found, self._kept = self._kept, None
        if self._timer is not None:
            self._timer.cancel()
        if found is None or self._owner != os.getpid():  # a fork's parent goes on with it
            return None
        if not found.alive:
            found.close()
            return None
        return found


_shelf = _Shelf()
atexit.register(_shelf.empty)
prepare, take, keep = _shelf.prepare, _shelf.take, _shelf.keep
