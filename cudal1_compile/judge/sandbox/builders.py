"""NVRTC in child processes: a text that keeps the compiler busy, or eats its memory, costs a child and no caller.

    Builders(count) -> compile_cubin(source, arch, kernels) -> Compiled | BuildError, as of nvrtc.compile_cubin

A process that does not even start is no text's fault: RuntimeError. Nor is one that the machine gives no time:
TimeoutError. Whose fault it is that one was killed, or had no memory, is not known here: MachineTrouble.
Fourteen short inlined functions are enough to keep NVRTC busy for hours, and a thread cannot be killed.
"""

from __future__ import annotations

import base64
import math
import signal
import threading
from collections.abc import Callable
from functools import partial
from queue import LifoQueue

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.sandbox.process import Worker, WorkerLate, WorkerLost
from cudal1_compile.runtime.nvrtc import Compiled, KernelInfo
from cudal1_compile.runtime.trouble import MachineTrouble, tool_trouble

LIMIT_S = 10  # of CPU time, for one text; honest ones take about 2 at most
PATIENCE = 10  # times that, by the wall clock


class Builders:
    """Up to `count` processes, started as they are needed. For several threads at once."""

    def __init__(self, count: int, limit_s: int = LIMIT_S, spawn: Callable[[], Worker] | None = None) -> None:
        self.lost = 0  # processes lost to a text
        self.limit_s = limit_s
        self._spawn = spawn or partial(Worker, "cudal1_compile.judge.sandbox.build_worker")
        self._idle: LifoQueue[Worker | None] = LifoQueue()
        for _ in range(count):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._busy: set[Worker] = set()
        self._closed = False

    def compile_cubin(
        self, source: str, arch: str, kernels: tuple[str, ...], limit_s: float | None = None
    ) -> Compiled:
        """limit_s: of CPU time, by default that of all."""
        limit_s = limit_s or self.limit_s
        worker = self._idle.get()
        try:
            worker = started = self._ready(worker)
            request = {"source": source, "arch": arch, "kernels": kernels, "cpu_s": math.ceil(limit_s)}
            reply = worker.ask(request, PATIENCE * limit_s)
        except WorkerLost as lost:
            if not started.given_up:
                raise RuntimeError(f"no process for the compiler: {lost}") from None
            if self._closed:
                raise RuntimeError("the judge was closed while the compiler ran") from None
            self.lost += 1
            if isinstance(lost, WorkerLate):
                raise TimeoutError(f"the machine is too busy for the compiler: {lost}") from None
            raise _why_lost(started.exit_code) from None
        finally:
            with self._lock:
                self._busy -= {worker}
            self._idle.put(worker)
        if "error" in reply:
            raise tool_trouble(reply["error"], 1) or BuildError(reply["error"])
        found = {name: KernelInfo(**info) for name, info in reply["kernels"].items()}
        return Compiled(base64.b64decode(reply["cubin"]), found)

    def warm(self) -> None:
        """Starts one of them ahead of its first text. Raises OSError."""
        worker = self._idle.get()
        try:
            worker = self._ready(worker)
        finally:
            with self._lock:
                self._busy -= {worker}
            self._idle.put(worker)

    def stop(self) -> None:
        """Ends what is compiling, for good: whoever waits for it gets RuntimeError."""
        with self._lock:
            self._closed = True
            for worker in self._busy:
                worker.stop()

    def close(self) -> None:
        """Ends the processes; nothing may be compiling any more."""
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.kill()

    def _ready(self, worker: Worker | None) -> Worker:
        if worker is None or not worker.alive:
            worker = self._spawn()
        with self._lock:
            self._busy.add(worker)
            if self._closed:
                worker.stop()
        return worker


def _why_lost(exit_code: int | None) -> BuildError | MachineTrouble:
    """Only the end of its CPU time is surely the text's doing."""
    if exit_code == -signal.SIGXCPU:
        return BuildError("the compiler was lost over this code: its CPU time was used up; inline or unroll less")
    if exit_code is None or exit_code >= 0:
        return MachineTrouble("killed", f"exit code {exit_code}")
    return MachineTrouble("killed", signal.Signals(-exit_code).name)
