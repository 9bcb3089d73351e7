"""When a graph's other variants may be compiled: once the model's first call is over.

    a graph is compiled -> it and every other graph have been called again, or nothing was compiled for as long as
    the last compile took -> at a call's beginning (choice.py)

A model may hold several graphs, and run one of them several times: what is compiled before its first call has
ended makes that call longer. Nobody says when it ends; that its first graph runs again does. Where calls come from
several threads nothing more is compiled: Dynamo would refuse the other threads' calls meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet


class Called(Protocol):
    calls: int
    threads: set[int]  # that called it


class FirstCalls:
    """Of all graphs of a process; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: WeakSet[Called] = WeakSet()
        self._took_s = 0.0  # the last compile
        self._ended_s = 0.0  # time.monotonic() then

    @contextmanager
    def compiling(self, before_s: float = 0.0) -> Iterator[None]:
        """Around what is compiled before a graph's first call. before_s: that it has taken by then."""
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self._ended_s = time.monotonic()
            self._took_s = before_s + self._ended_s - begun_s

    def end(self) -> None:
        """For whoever knows that they are over: no other graph is waited for, until the next compile."""
        self._took_s = 0.0

    def watch(self, graph: Called) -> None:
        with self._lock:
            self._graphs.add(graph)

    def are_over(self) -> bool:
        is_quiet = time.monotonic() - self._ended_s >= self._took_s
        with self._lock:
            if len({thread for graph in self._graphs for thread in graph.threads}) > 1:
                return False
            return is_quiet or all(graph.calls > 1 for graph in self._graphs)
