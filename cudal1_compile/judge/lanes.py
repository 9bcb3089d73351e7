"""The lanes of one device as the judge's thread uses them: the first itself, each other one through a thread.

helpers(n) -> lanes for n programs beside the first, as many as the device has room for
clear_others -> the first has the device's memory to itself
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from cudal1_compile.judge.crew import Lane
from cudal1_compile.judge.process import WorkerLost

log = logging.getLogger(__name__)

T = TypeVar("T")
LANE_BYTES = 9 << 30  # that are free for each worker: few regions need more, and those are judged alone


class Lanes:
    def __init__(self, first: Lane, *others: Lane) -> None:
        self.first = first
        self._others = {lane: ThreadPoolExecutor(1, "cudal1-lane") for lane in others}
        self._room_for = 0  # of the others

    @property
    def others(self) -> list[Lane]:
        return list(self._others)

    @property
    def up(self) -> int:
        """Workers that have the device now."""
        return sum(lane.up for lane in (self.first, *self._others))

    def helpers(self, programs: int) -> list[Lane]:
        """Lanes that work beside the first: as many as the device has room for, whatever each of them may take."""
        wanted = self.others[: max(0, programs - 1)]
        if wanted and not any(lane.up for lane in self._others):
            self._room_for = self.first.free_bytes() // LANE_BYTES - 1
        return wanted[: max(0, self._room_for)]

    def beside(self, lane: Lane, work: Callable[[], T]) -> Future[T]:
        """Does it in the thread of one of the others."""
        return self._others[lane].submit(work)

    def help(self, lane: Lane, serve: Callable[[Lane], None]) -> Future[None]:
        """`serve` beside the first, which goes on without this lane where it cannot be started."""

        def work() -> None:
            try:
                lane.start()
            except WorkerLost as lost:
                log.info("the judge goes on with fewer workers: %s", lost)
            else:
                serve(lane)

        return self.beside(lane, work)

    def clear_others(self) -> bool:
        """Gives the first worker the device's memory, but for contexts; whether there were others."""
        found = any(lane.up for lane in self._others)
        for lane in self._others:
            self.beside(lane, lane.clear).result()
        return found

    def close(self) -> None:
        """After the crew is stopped."""
        for thread in self._others.values():
            thread.shutdown(cancel_futures=True)
