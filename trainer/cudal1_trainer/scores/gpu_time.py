"""GPU-busy time of several ways to compute one thing, measured side by side.

Each way (a contender) is captured in a CUDA graph of several calls, so host time is not in it. The calls rotate
over copies of all buffers, enough copies that a call does not find its data in the L2 cache left by the one
before. The graphs are replayed in interleaved rounds in shuffled order, events around each; the figure is the
median over rounds, a call. Small data stays in L2, for every contender alike, as it does inside a real model;
where it must not (`cold`), a graph uses each copy once and the caches are flushed before every replay.

The caller makes sure that nothing else uses the GPU. Nothing is checked for rightness here.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Contender = Callable[[int], None]  # runs once on the current stream, on copy number n of the buffers

MAX_COPIES = 10
MAX_CALLS = 20
TARGET_US = 300.0  # of one replay, by which the number of calls in a graph is chosen
TIMING_S = 2.0  # of all rounds of a measurement; longer ones have fewer rounds
MIN_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Busy:
    """Microseconds a call."""

    median_us: float
    low_us: float  # quartiles over rounds
    high_us: float


def copies_needed(bytes_moved: int, l2_bytes: int, free_bytes: int) -> int:
    """So many copies of all buffers that twice the L2 lies between two uses of one; at most MAX_COPIES."""
    wanted = math.ceil(2 * l2_bytes / max(bytes_moved, 1)) + 1
    room = max(1, int(free_bytes * 0.5) // max(bytes_moved, 1))
    return max(1, min(wanted, MAX_COPIES, room))


@dataclass(frozen=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    calls: int
    once_us: float  # one call by itself, launch included


def capture(contender: Contender, copies: int, stream: torch.cuda.Stream, cold: bool = False) -> Captured:
    """Warms up, estimates one call, and captures as many as take about TARGET_US. `stream`: not the default one.

    Passes on what the contender raises; the stream is out of capture mode then.
    """
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for n in range(2):
            contender(n % copies)
        once_us = _event_us(lambda: contender(0))
        calls = calls_for(once_us, copies)
        calls = min(calls, copies) if cold else calls
        graph = torch.cuda.CUDAGraph()
        # not `torch.cuda.graph`: that collects garbage and empties the cache, 50 ms and more a capture
        graph.capture_begin()
        try:
            for n in range(calls):
                contender(n % copies)
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return Captured(graph, calls, once_us)


def calls_for(once_us: float, copies: int) -> int:
    """Calls in one graph: about TARGET_US of them, a whole turn of the copies unless a call is long."""
    if once_us > 5 * TARGET_US:
        return 1
    wanted = int(TARGET_US / max(once_us, 1.0))
    return max(copies, min(MAX_CALLS, wanted), 2)


def time_graphs(
    graphs: Mapping[str, Captured], rounds: int, flush: torch.Tensor | None = None, seed: int = 0
) -> dict[str, Busy]:
    """Interleaved: every round replays each graph once, in an order of its own, after `flush` was written."""
    rng = random.Random(seed)
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
    names = list(graphs)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for name in names:
        graphs[name].graph.replay()  # the first replay uploads the graph
    torch.cuda.synchronize()
    for _ in range(rounds_for(time.monotonic() - begin, rounds)):
        rng.shuffle(names)
        for name in names:
            if flush is not None:
                flush.fill_(0)
            start, end = _event(), _event()
            start.record()
            graphs[name].graph.replay()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    found = {}
    for name, pairs in events.items():
        found[name] = _busy([s.elapsed_time(e) * 1e3 / graphs[name].calls for s, e in pairs])
    return found


def rounds_for(round_s: float, wanted: int) -> int:
    """As many as fit into TIMING_S, but at least MIN_ROUNDS of those wanted."""
    return min(wanted, max(MIN_ROUNDS, int(TIMING_S / max(round_s, 1e-6))))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _event_us(run: Callable[[], None]) -> float:
    start, end = _event(), _event()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _busy(samples_us: list[float]) -> Busy:
    ordered = sorted(samples_us)
    last = len(ordered) - 1
    return Busy(ordered[last // 2], ordered[last // 4], ordered[last - last // 4])
