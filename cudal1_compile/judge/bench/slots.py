"""The lanes of one device and their threads: each lane has one, in which alone it is used.

begin(lane, serve) -> serve(lane) in the lane's thread
helpers() -> lanes beside the first, as many as the device has room for
clear_others(lane) -> it has the device's memory to itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cudal1_compile.judge.bench.worker_pool import Lane

LANE_BYTES = 9 << 30  # that are free for each worker: few regions need more, and those are judged alone


class Lanes:
    def __init__(self, first: Lane, *others: Lane) -> None:
        self.first, self.others = first, others
        self.all = (first, *others)
        self._threads = {lane: ThreadPoolExecutor(1, "cudal1-lane") for lane in self.all}
        self._room_for = 0  # of the others

    @property
    def up(self) -> int:
        """Workers that have the device now."""
        return sum(lane.up for lane in self.all)

    def helpers(self) -> Sequence[Lane]:
        """Lanes that work beside the first: as many as the device has room for, whatever each of them may take.

        In the first lane's thread, with nothing in hand.
        """
        if self.others and not any(lane.up for lane in self.others):
            self._room_for = self.first.free_bytes() // LANE_BYTES - 1
        return self.others[: max(0, self._room_for)]

    def begin(self, lane: Lane, serve: Callable[[Lane], None]) -> None:
        """In the lane's own thread, behind what it does."""
        self._threads[lane].submit(serve, lane)

    def clear_others(self, lane: Lane) -> bool:
        """Gives its worker the device's memory, but for contexts; whether there were others.

        The others' workers have nothing in hand meanwhile.
        """
        others = [other for other in self.all if other is not lane and other.up]
        for other in others:
            other.clear()
        return bool(others)

    def close(self) -> None:
        """After the crew is stopped."""
        for thread in self._threads.values():
            thread.shutdown()
