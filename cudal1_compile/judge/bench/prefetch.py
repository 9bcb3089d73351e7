"""What regions need, made ahead in a few processes beside the worker: Inductor's code, small case suites.

    begin(requests) -> processes fill the folder that the worker reads -> wait(program) before the worker needs it

It only saves time: what fails here, or has not begun when it is needed, the worker makes itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from queue import SimpleQueue

from cudal1_compile.judge.sandbox.process import Worker, WorkerLost
from cudal1_compile.judge.sandbox.wire import Message
from cudal1_compile.runtime.cores import usable_cores
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program

log = logging.getLogger(__name__)

COMPILERS = 12  # Inductor takes some 6 s of a core for a region
SUITE_MAKERS = 4
CORES_SHARE = 0.75  # of them: builds are short, and workers wait
LIMIT_S = 60.0  # of one region
PATIENCE_S = 2.0  # with Inductor's compile: builds have the cores first, and the worker's own takes no longer


def warm_ups() -> Iterator[Program]:
    """Regions of the commonest kinds, each of another size: none finds another's code."""
    for rows in count(64):
        yield parse_program(
            f"region v1\ndims d0={rows} d1=256\nin0 f32[d0,d1]\nt0 f32[d0,d1] = exp(in0)\n"
            "t1 f32[d0] = sum(t0) over d1\nt2 f32[d0,d1] = div(t0, t1)\nout0 f32[d0,d1] = t2\n"
        )


class Prefetch:
    """Processes start with what is asked first; close() ends them, also in the middle of a piece of work."""

    def __init__(self, spawn: Callable[[], Worker], processes: int) -> None:
        """processes: at most; fewer where there are few cores."""
        self._spawn = spawn
        self._processes = max(1, min(processes, int(CORES_SHARE * usable_cores())))
        self._pool = ThreadPoolExecutor(self._processes, "cudal1-ahead")
        self._idle: SimpleQueue[int] = SimpleQueue()
        for slot in range(self._processes):
            self._idle.put(slot)
        self._workers: dict[int, Worker] = {}
        self._asked: dict[str, Future[Message]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def begin(self, requests: Sequence[Message]) -> None:
        """Asks for these, one a program, in order; those of an earlier call that have not begun are dropped."""
        self._asked = {text: f for text, f in self._asked.items() if not f.cancel()}
        for request in requests:
            if request["program"] not in self._asked:
                self._asked[request["program"]] = self._pool.submit(self._make, request)

    def warm(self, requests: Iterable[Message]) -> None:
        """One a process: its first piece of work takes seconds longer than its next."""
        for request in islice(requests, self._processes):
            self._pool.submit(self._make, request)

    def wait(self, program: Program, limit_s: float | None = None) -> Message:
        """The reply to what has begun, else nothing: what has not is dropped, since the worker is as fast."""
        future = self._asked.get(print_program(program))
        if future is None or future.cancel():
            return {}
        try:
            return future.result(limit_s)
        except TimeoutError:
            return {}

    def then(self, program: Program, go_on: Callable[[object], None]) -> None:
        """Once it is made; at once where it was not asked for, or has not begun when it is given up."""
        future = self._asked.get(print_program(program))
        if future is None:
            go_on(None)
        else:
            future.add_done_callback(go_on)

    def done(self, program: Program) -> bool:
        """Whether nothing is to be waited for."""
        future = self._asked.get(print_program(program))
        return future is None or future.done()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers.values():
            worker.stop()
        self._pool.shutdown()
        for worker in self._workers.values():
            worker.kill()

    def _make(self, request: Message) -> Message:
        slot = self._idle.get()
        try:
            worker = self._ready(slot)
            reply = worker.ask(request, LIMIT_S) if worker else {}
        except (WorkerLost, OSError) as error:
            reply = {"why_not": str(error)}
        finally:
            self._idle.put(slot)
        if "why_not" in reply:
            log.debug("%s was not done ahead: %s", request["op"], reply["why_not"])
        return reply

    def _ready(self, slot: int) -> Worker | None:
        with self._lock:
            worker = self._workers.get(slot)
            if not self._closed and (worker is None or not worker.alive):
                worker = self._workers[slot] = self._spawn()
            return worker
