"""Inductor's compile of regions ahead of their measurement, in a few background processes beside the worker.

    begin(programs) -> processes fill the cache that the worker reads -> wait(program) before it is measured

It only saves time: what fails here, or has not begun when the region is measured, the worker compiles itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from cudal1_compile.judge import wire
from cudal1_compile.judge.process import Worker, WorkerLost
from cudal1_fx_passes.program import Program
from cudal1_fx_passes.text import print_program

log = logging.getLogger(__name__)

CORES_A_PROCESS = 4
MAX_PROCESSES = 4
LIMIT_S = 60.0  # of one region


def can_compile_ahead(program: Program) -> bool:
    """Not where Inductor itself measures while it compiles (the padding of products): it would need the device."""
    return not program.has_product


class Prefetch:
    """Processes start with the first region; close() ends them, also in the middle of a compile."""

    def __init__(self, device: str, spawn: Callable[[], Worker]) -> None:
        self._device, self._spawn = device, spawn
        count = max(1, min(MAX_PROCESSES, (os.cpu_count() or 1) // CORES_A_PROCESS))
        self._pool = ThreadPoolExecutor(count, "cudal1-ahead")
        self._idle: SimpleQueue[int] = SimpleQueue()
        for slot in range(count):
            self._idle.put(slot)
        self._workers: dict[int, Worker] = {}
        self._asked: dict[str, Future[None]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def begin(self, programs: Sequence[Program]) -> None:
        """Asks for these regions, in this order; those of an earlier call that have not begun are dropped."""
        self._asked = {text: f for text, f in self._asked.items() if not f.cancel()}
        for program in filter(can_compile_ahead, programs):
            text = print_program(program)
            if text not in self._asked:
                self._asked[text] = self._pool.submit(self._compile, program)

    def wait(self, program: Program) -> None:
        """Until a compile that has begun has ended; one that has not is dropped: the worker is as fast."""
        future = self._asked.get(print_program(program))
        if future is not None and not future.cancel():
            future.result()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers.values():
            worker.stop()
        self._pool.shutdown()
        for worker in self._workers.values():
            worker.kill()

    def _compile(self, program: Program) -> None:
        slot = self._idle.get()
        try:
            worker = self._ready(slot)
            reply = worker.ask(wire.compile_request(program, self._device), LIMIT_S) if worker else {}
            if "why_not" in reply:
                log.debug("a region was not compiled ahead: %s", reply["why_not"])
        except (WorkerLost, OSError) as error:
            log.debug("a region was not compiled ahead: %s", error)
        finally:
            self._idle.put(slot)

    def _ready(self, slot: int) -> Worker | None:
        with self._lock:
            worker = self._workers.get(slot)
            if not self._closed and (worker is None or not worker.alive):
                worker = self._workers[slot] = self._spawn()
            return worker
