"""A worker of the judge whose device is this machine: `python -m tests.host_worker`, started by a DeviceBench.

Kernels are host objects in the worker's own process, so that hangs and crashes are real; so is the device lock.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

import torch

from cudal1_compile.judge.bench import session, worker
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import wire
from cudal1_compile.judge.sandbox.device_lock import DeviceLock
from cudal1_compile.judge.timing.clock import Clock, Contender
from cudal1_compile.judge.timing.floor import COPIED_BYTES, Floor
from cudal1_compile.kernel.candidate import Candidate
from cudal1_compile.runtime.build import Binary
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program


class Replayed:
    """What a CUDA graph does, one call at a time."""

    def __init__(self, call: Callable[[int], object], calls: int) -> None:
        self._call, self._calls = call, calls

    def replay(self) -> None:
        for i in range(self._calls):
            self._call(i)


class HostClock:
    """The clock's interface over a CPU and wall time."""

    device = torch.device("cpu")
    stream_handle = 0
    bytes_per_us = 1e9
    waited_s = 0.0

    def __init__(self, device_lock: DeviceLock | None = None, free_bytes: int = 1 << 30) -> None:
        self.device_lock = device_lock or DeviceLock.private()
        self._free_bytes = free_bytes

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return self._free_bytes

    def capture(self, call: Callable[[int], object], calls: int) -> Replayed:
        return Replayed(call, calls)

    def wait(self, limit_s: float) -> None:
        """Host calls have ended when they return."""
        self.device_lock.give_way()

    def rounds_for(
        self, contenders: Sequence[Contender], budget_ms: float, rng: random.Random, least: int = 7
    ) -> int:
        return 7

    def floor_us(self, least_bytes: int) -> float:
        return least_bytes / self.bytes_per_us

    def measure(self, contenders: Sequence[Contender], rounds: int, rng: random.Random) -> list[list[float]]:
        times: list[list[float]] = [[] for _ in contenders]
        for _ in range(rounds):
            for contender, row in zip(contenders, times, strict=True):
                contender.reset()
                begin = time.perf_counter()
                contender.graph.replay()
                row.append((time.perf_counter() - begin) * 1e6 / contender.calls)
        return times


_read_cubin = wire.read_entrant


def main() -> None:
    session.open_session = _open_session
    wire.read_entrant = _read_entrant
    for name in ("torch._inductor", "torch._inductor.compile_fx"):  # seconds, for what no test here compiles
        sys.modules[name] = ModuleType(name)
    worker.main()


def _open_session(index: int, limits: Limits, device_lock: DeviceLock, shared: Path) -> session.DeviceSession:
    clock = cast(Clock, HostClock(device_lock, free_bytes=1 << 40))
    found = session.DeviceSession(HOST, clock, limits)
    found.floor = HostFloor(clock, shared)
    return found


class HostFloor(Floor):
    # which tests' regions have: a CPU takes ten seconds for the gigabyte of a GPU
    copied_bytes = tuple(n for n in COPIED_BYTES if n <= 1 << 24)

    def parts(self) -> Iterator[Callable[[], object]]:
        """Nothing ahead: a CPU takes minutes for a large product."""
        return iter(())


def _read_entrant(message: wire.Message, program: Program) -> tuple[Candidate, Binary]:
    candidate, binary = _read_cubin(message, program)
    return candidate, replace(binary, target_kind="host")


if __name__ == "__main__":
    main()
