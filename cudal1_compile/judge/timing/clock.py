"""The GPU clock: device-busy time of contenders, interleaved in random order, caches flushed before each call.

    Contender (a captured CUDA graph of `calls` calls) x rounds -> microseconds a call, round by round

Every contender of a measurement runs in the same form, a graph, so that gaps between a host's launches count for
none of them. Twice the L2 cache is written before each timed replay; the host queues the replay while the
device still flushes. A time below the physical floor (bytes that must move over measured bandwidth) is not
believed, nor one below that of an empty launch. What the times mean is decided in speedup.py.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from cudal1_compile.judge.checks.trial import TrialStopped, wants_memory
from cudal1_compile.judge.sandbox.device_lock import DeviceLock

MIN_ROUNDS = 7
MAX_ROUNDS = 400
SMALL_US = 30.0  # baselines shorter than this are timed as several calls in one graph
MAX_CALLS = 10
FLOOR_SHARE = 0.45  # of the time at measured copy bandwidth; a causal mask lets a kernel skip half its reads
LAUNCH_US = 0.3  # a third of what one node of a graph takes
L2_FACTOR = 4.0  # data that fits into L2 may move this much faster
SPIN_S = 2e-3  # short waits are not worth a sleep
POLL_S = 50e-6
BESIDE_S = 0.05  # a kernel that takes longer gets the device to itself, and its limit from then on


class Graph(Protocol):
    """Captured work that can be started again."""

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Contender:
    """`reset` runs before the flush of each round, outside the timed part."""

    name: str
    graph: Graph
    calls: int
    reset: Callable[[], None]


class Clock:
    """One device's stream, flush buffer and bandwidth. Make one for a process.

    Where other processes use the device too, whatever is timed is timed alone.
    """

    def __init__(self, device: torch.device, l2_bytes: int, device_lock: DeviceLock | None = None) -> None:
        self.device = device
        self.device_lock = device_lock or DeviceLock.private()
        self.device_lock.synchronize = partial(torch.cuda.synchronize, device)
        self.l2_bytes = l2_bytes
        # not the default stream: a candidate may not lean on its ordering
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._flush = torch.empty(max(2 * l2_bytes, 32 << 20) // 4, dtype=torch.int32, device=device)
        # one memory pool for all graphs: they never run at once. The first graph keeps it alive.
        self._pool = torch.cuda.graph_pool_handle()
        self._keeper = self.capture(lambda _: self._flush[:1].zero_(), 1)
        with self.device_lock.alone():
            self.bytes_per_us = self._bandwidth()
        self.waited_s = 0.0  # in `wait`, since the clock was made

    @property
    def stream_handle(self) -> int:
        """The raw stream, as a launcher takes it."""
        return int(self.stream.cuda_stream)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within it torch's own work runs on the clock's stream too."""
        with torch.cuda.stream(self.stream):
            yield

    def free_bytes(self) -> int:
        """Device memory that this process could still use."""
        free, _ = torch.cuda.mem_get_info(self.device)
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free + idle)

    def capture(self, call: Callable[[int], object], calls: int) -> Graph:
        """A graph of call(0) ... call(calls - 1) on the clock's stream. Call it once beforehand to warm up."""
        graph = torch.cuda.CUDAGraph()
        self.stream.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self._pool)
            try:
                for i in range(calls):
                    call(i)
            finally:
                graph.capture_end()
        return graph

    def wait(self, limit_s: float) -> None:
        """Waits for the stream; TrialStopped after `limit_s` and on a fault, RuntimeError on a full device."""
        begin = time.monotonic()
        end = begin + limit_s
        try:
            while not self.stream.query():
                now = time.monotonic()
                if now - begin > BESIDE_S and self.device_lock.shut():
                    end = now + limit_s
                if now > end and not self.stream.query():  # not merely this process slept
                    raise TrialStopped(f"the kernel did not end within {limit_s:.1f} s")
                if now - begin > SPIN_S:
                    time.sleep(POLL_S)
            self.stream.synchronize()
            self.device_lock.give_way()
        except RuntimeError as error:
            if wants_memory(error):
                raise
            raise TrialStopped(f"the kernel faulted: {str(error).splitlines()[0]}") from None
        finally:
            self.waited_s += time.monotonic() - begin

    def measure(
        self, contenders: Sequence[Contender], rounds: int, rng: random.Random, limit_s: float = 10.0
    ) -> list[list[float]]:
        """Microseconds a call of each contender, one number a round; the order within a round is random."""
        pairs = [[_events() for _ in range(rounds)] for _ in contenders]
        with self.device_lock.alone(), torch.cuda.stream(self.stream):
            for i in range(rounds):
                for k in rng.sample(range(len(contenders)), len(contenders)):
                    begin, end = pairs[k][i]
                    contenders[k].reset()
                    self._flush.fill_(i)
                    begin.record(self.stream)
                    contenders[k].graph.replay()
                    end.record(self.stream)
            self.wait(limit_s)
        return [
            [begin.elapsed_time(end) * 1000.0 / contender.calls for begin, end in row]
            for contender, row in zip(contenders, pairs, strict=True)
        ]

    def rounds_for(
        self, contenders: Sequence[Contender], budget_ms: float, rng: random.Random, least: int = MIN_ROUNDS
    ) -> int:
        """How many rounds fit into a time budget, from trial rounds, which also warm up: three, or a slow one."""
        begin = time.monotonic()
        self.measure(contenders, 1, rng)
        round_ms = (time.monotonic() - begin) * 1000.0
        if round_ms * least < budget_ms:
            begin = time.monotonic()
            self.measure(contenders, 2, rng)
            round_ms = (time.monotonic() - begin) * 1000.0 / 2
        return int(min(MAX_ROUNDS, max(least, budget_ms / round_ms)))

    def floor_us(self, least_bytes: int) -> float:
        """The shortest believable time of one call that moves so many bytes."""
        # writes may still lie in L2 when a call ends, and calls of one graph find each other's data there
        rate = self.bytes_per_us * (L2_FACTOR if least_bytes < 2 * self.l2_bytes else 1.0)
        return max(LAUNCH_US, FLOOR_SHARE * least_bytes / rate)

    def _bandwidth(self) -> float:
        """Bytes a microsecond of a large copy, reads and writes counted; the best of five."""
        size = 256 << 20
        source = torch.zeros(size // 4, dtype=torch.int32, device=self.device)
        target = torch.empty_like(source)
        best = 0.0
        with torch.cuda.stream(self.stream):
            for _ in range(5):
                begin, end = _events()
                begin.record(self.stream)
                target.copy_(source)
                end.record(self.stream)
                self.stream.synchronize()
                best = max(best, 2 * size / (begin.elapsed_time(end) * 1000.0))
        return best


def calls_per_graph(baseline_us: float) -> int:
    """How many calls one timed graph holds, so that launch overhead does not rule short ones."""
    if baseline_us >= SMALL_US:
        return 1
    return max(1, min(MAX_CALLS, int(SMALL_US / max(baseline_us, 1.0)) + 1))


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return begin, end
