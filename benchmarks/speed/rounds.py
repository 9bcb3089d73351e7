"""All times of every arm, in rounds of an order drawn for each, with the L2 flushed before every timed call.

    host_us   from an idle device to an idle device: the host's work, launches and the device's work
    loop_us   the same of the call after it: the host's caches hold this arm's code, as in a loop of its calls
    gpu_us    between two CUDA events around the call, on a device that is still busy when the host queues it

For gpu_us the device first sleeps (torch.cuda._sleep), then the flush runs, then the first event is recorded: the
host queues the whole call meanwhile, and the device then runs it without waiting for the host. Whether that was so
is seen: the first event must not have been reached when the host is through. `hidden` is the share of calls where
that held. The sleep is twice what the arm's calls have taken to be queued, up to SLEEP_MAX_US. A call of more
launches than the driver's queue takes (about a thousand), or one that waits for the device itself, is not hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.coverage_measure import FLUSH_BYTES
from benchmarks.model_contenders import Contender, Step, drawn_rounds, timed_ms

CLOCKS = ("host_us", "loop_us", "gpu_us")
MIN_ROUNDS = 7
MAX_ROUNDS = 60
WARM_UP = 4  # calls: a CUDA graph's contender warms up, records, and replays
QUEUED = 2  # calls, after which it is known how long they take to be queued
SLEEP_MIN_US = 100.0
SLEEP_MAX_US = 100_000.0
CYCLES_PER_US = 2000.0  # of the device's clock at most, so that a sleep is never shorter than was asked for


@dataclass
class Times:
    """One figure a round of each arm, in microseconds; gpu_us and hidden only of a GPU."""

    host_us: dict[str, list[float]] = field(default_factory=dict)
    loop_us: dict[str, list[float]] = field(default_factory=dict)
    gpu_us: dict[str, list[float]] = field(default_factory=dict)
    hidden: dict[str, float] = field(default_factory=dict)


def time_rounds(step: Step, arms: Sequence[Contender], limit_s: float, seed: int = 0) -> Times:
    cuda = torch.cuda.is_initialized()
    flush = torch.empty(FLUSH_BYTES if cuda else 0, dtype=torch.int8, device="cuda" if cuda else "cpu")
    times = Times()
    busy = {arm.name: _Busy(step, arm, flush) for arm in arms} if cuda else {}
    for arm in arms:
        for _ in range(WARM_UP):
            step.clear()
            timed_ms(step, arm)
    for one in busy.values():
        one.learn()
    for arm in drawn_rounds(arms, MAX_ROUNDS, MIN_ROUNDS, limit_s, seed):
        for kept in (times.host_us, times.loop_us):
            step.clear()
            flush.zero_()
            kept.setdefault(arm.name, []).append(timed_ms(step, arm) * 1e3)
        if cuda:
            times.gpu_us.setdefault(arm.name, []).append(busy[arm.name].time())
    step.clear()
    times.hidden = {name: one.hidden / max(1, one.calls) for name, one in busy.items()}
    return times


@dataclass
class _Busy:
    """The clock of one arm's GPU-busy time."""

    step: Step
    arm: Contender
    flush: torch.Tensor
    sleep_us: float = SLEEP_MIN_US
    calls: int = 0
    hidden: int = 0

    def learn(self) -> None:
        for _ in range(QUEUED):
            self.time()
        self.calls = self.hidden = 0

    def time(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self.step.clear()
        torch.cuda.synchronize()
        torch.cuda._sleep(int(self.sleep_us * CYCLES_PER_US))  # type: ignore[no-untyped-call]
        self.flush.zero_()
        queueing = time.perf_counter()
        begin.record()  # type: ignore[no-untyped-call]
        self.step.run(self.arm.call)
        end.record()  # type: ignore[no-untyped-call]
        is_hidden = not begin.query()  # type: ignore[no-untyped-call]
        queued_us = (time.perf_counter() - queueing) * 1e6
        end.synchronize()  # type: ignore[no-untyped-call]
        self.calls, self.hidden = self.calls + 1, self.hidden + is_hidden
        self.sleep_us = min(SLEEP_MAX_US, max(self.sleep_us, SLEEP_MIN_US + 2 * queued_us))
        return float(begin.elapsed_time(end)) * 1e3  # type: ignore[no-untyped-call]
