"""NVRTC in child processes: a text that keeps the compiler busy, or eats its memory, costs a child and no caller.

    Builders(count) -> compile_cubin(source, arch, kernels) -> Compiled | BuildError, as of nvrtc.compile_cubin

A process that does not even start is no text's fault: RuntimeError. Nor is one that the machine gives no time:
TimeoutError.
Fourteen short inlined functions are enough to keep NVRTC busy for hours, and a thread cannot be killed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from queue import LifoQueue

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.process import Worker, WorkerLate, WorkerLost
from cudal1_compile.runtime.nvrtc import Compiled, KernelInfo

LIMIT_S = 20  # of CPU time, for one text; usual ones take 0.1 s
PATIENCE = 10  # times that, by the wall clock


class Builders:
    """Up to `count` processes, started as they are needed. For several threads at once."""

    def __init__(self, count: int, limit_s: int = LIMIT_S, spawn: Callable[[], Worker] | None = None) -> None:
        self.lost = 0  # processes lost to a text
        self._limit_s = limit_s
        self._spawn = spawn or partial(Worker, "cudal1_compile.judge.build_worker")
        self._idle: LifoQueue[Worker | None] = LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def compile_cubin(self, source: str, arch: str, kernels: tuple[str, ...]) -> Compiled:
        worker = self._idle.get()
        try:
            if worker is None or not worker.alive:
                worker = self._spawn()
            started = worker
            request = {"source": source, "arch": arch, "kernels": kernels, "cpu_s": self._limit_s}
            reply = worker.ask(request, PATIENCE * self._limit_s)
        except WorkerLost as lost:
            if not started.given_up:
                raise RuntimeError(f"no process for the compiler: {lost}") from None
            self.lost += 1
            if isinstance(lost, WorkerLate):
                raise TimeoutError(f"the machine is too busy for the compiler: {lost}") from None
            raise BuildError(f"the compiler was lost over this code, inline or unroll less: {lost}") from None
        finally:
            self._idle.put(worker)
        if "error" in reply:
            raise BuildError(reply["error"])
        found = {name: KernelInfo(**info) for name, info in reply["kernels"].items()}
        return Compiled(base64.b64decode(reply["cubin"]), found)

    def close(self) -> None:
        """Ends the processes; nothing may be compiling any more."""
        while not self._idle.empty():
            if (worker := self._idle.get()) is not None:
                worker.kill()
