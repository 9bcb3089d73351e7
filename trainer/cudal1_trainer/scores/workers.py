"""Worker processes that may crash or hang: jobs in, outcomes out, each worker replaced when it is lost.

    for outcome in run_jobs(work, setup, jobs, workers=16, limit_s=30): ...

`work(state, job, mark)` runs in a worker with the state that `setup()` made there; `mark(word)` says what it is
about to do, so that a crash can be blamed (after a mark that begins with "waits" a longer silence is allowed). A
job ends as Finished (its result) or Lost (what was marked last and why); the caller decides whether to send it
again. Exclusive use of a device is a file lock (`Exclusive`), which the system releases when its holder dies.
Jobs and results must pickle.
"""

from __future__ import annotations

import fcntl
import logging
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

log = logging.getLogger(__name__)

MAX_FAILED_STARTS = 4
PATIENT_S = 180.0  # allowed silence of a worker that starts or waits for the device


@dataclass(frozen=True, slots=True)
class Finished:
    job: Any
    result: Any


@dataclass(frozen=True, slots=True)
class Lost:
    """The worker died, was killed for silence, or raised."""

    job: Any
    mark: str  # what was under way
    reason: str


Outcome = Finished | Lost


class Fault(RuntimeError):
    """Raised by `work` where its process can no longer be trusted, as after a fault of a CUDA context."""


class Exclusive:
    """Holds a file lock inside a with block; the lock of a process that dies is released."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def __enter__(self) -> Exclusive:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Any = None
    busy: bool = False
    mark: str = "start"
    heard: float = 0.0  # monotonic seconds of its last word


class Pool:
    """A fixed number of workers. Use as a context manager; `submit` when `idle`, then `poll` for outcomes."""

    def __init__(self, work: Callable[..., Any], setup: Callable[[], Any], workers: int, limit_s: float) -> None:
        self._work, self._setup, self._limit_s = work, setup, limit_s
        self._context = multiprocessing.get_context("spawn")
        self._failed_starts = 0
        self._workers = [self._spawn() for _ in range(workers)]

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()

    @property
    def idle(self) -> int:
        return sum(not w.busy for w in self._workers)

    def submit(self, job: Any) -> None:
        worker = next(w for w in self._workers if not w.busy)
        worker.job, worker.busy, worker.heard = job, True, time.monotonic()
        worker.pipe.send(job)

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Outcomes that arrived within `timeout_s`; replaces workers that were lost."""
        outcomes: list[Outcome] = []
        ready = wait([w.pipe for w in self._workers], timeout_s)
        for i, worker in enumerate(self._workers):
            if worker.pipe in ready:
                outcomes += self._hear(i, worker)
            elif worker.busy and time.monotonic() - worker.heard > self._patience_s(worker):
                outcomes.append(self._replace(i, f"silent for {self._patience_s(worker):.0f} s"))
        return outcomes

    def _patience_s(self, worker: _Worker) -> float:
        return PATIENT_S if worker.mark == "start" or worker.mark.startswith("waits") else self._limit_s

    def _hear(self, at: int, worker: _Worker) -> list[Outcome]:
        try:
            kind, body = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join(5)
            self._count_start(worker)
            lost = self._replace(at, f"process ended with code {worker.process.exitcode}")
            return [lost] if worker.busy else []
        worker.heard = time.monotonic()
        if kind == "mark":
            worker.mark = body
            return []
        if kind == "fault":
            return [self._replace(at, body)]
        worker.busy = False
        return [Finished(worker.job, body) if kind == "result" else Lost(worker.job, worker.mark, body)]

    def _count_start(self, worker: _Worker) -> None:
        self._failed_starts = self._failed_starts + 1 if worker.mark == "start" else 0
        if self._failed_starts == MAX_FAILED_STARTS:
            raise RuntimeError(f"{MAX_FAILED_STARTS} workers in a row ended while starting; their output says why")

    def _replace(self, at: int, reason: str) -> Lost:
        old = self._workers[at]
        old.process.kill()
        old.process.join()
        self._workers[at] = self._spawn()
        return Lost(old.job, old.mark, reason)

    def _spawn(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._work, self._setup), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)


def run_jobs(
    work: Callable[..., Any],
    setup: Callable[[], Any],
    jobs: Iterator[Any],
    workers: int,
    limit_s: float,
    deadline: float = float("inf"),
    again: Callable[[Lost], Any | None] = lambda lost: None,
) -> Iterator[Outcome]:
    """Runs jobs until they or the time (`deadline`, monotonic seconds) are over, yielding outcomes as they come.

    again: what to send in place of a lost job, or None.
    """
    retries: list[Any] = []
    open_jobs, more = 0, True
    with Pool(work, setup, workers, limit_s) as pool:
        while (more or retries or open_jobs) and time.monotonic() < deadline:
            while pool.idle and (more or retries):
                job = retries.pop() if retries else next(jobs, None)
                if job is None:
                    more = False
                    break
                pool.submit(job)
                open_jobs += 1
            for outcome in pool.poll(0.2):
                open_jobs -= 1
                if isinstance(outcome, Lost):
                    log.warning("lost at %s: %s", outcome.mark, outcome.reason.strip().splitlines()[-1])
                    retry = again(outcome)
                    if retry is not None:
                        retries.append(retry)
                yield outcome


def _serve(pipe: Connection, work: Callable[..., Any], setup: Callable[[], Any]) -> None:
    state = setup()
    pipe.send(("mark", "idle"))
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("result", work(state, job, lambda word: pipe.send(("mark", word)))))
        except Fault:
            pipe.send(("fault", traceback.format_exc()))
            return
        except BaseException:  # noqa: BLE001  a process boundary: whatever ended the job is told as text
            pipe.send(("error", traceback.format_exc()))
