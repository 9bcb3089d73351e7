"""The slots of one device and their threads: each slot has one, in which alone it is used.

begin(slot, serve) -> serve(slot) in the slot's thread
helpers(), admit(free_bytes) -> slots beside the first, as many as the device has room for
clear_others(slot) -> it has the device's memory to itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cudal1_compile.judge.bench.worker_pool import Slot

SLOT_BYTES = 9 << 30  # that are free for each worker: few regions need more, and those are judged alone


class Slots:
    def __init__(self, first: Slot, *others: Slot) -> None:
        self.first, self.others = first, others
        self.all = (first, *others)
        self._threads = {slot: ThreadPoolExecutor(1, "cudal1-slot") for slot in self.all}
        self._admitted: Sequence[Slot] = ()  # of the others

    @property
    def up(self) -> int:
        """Workers that have the device now."""
        return sum(slot.up for slot in self.all)

    def helpers(self) -> Sequence[Slot]:
        """Slots that work beside the first: as many as the device has room for, whatever each of them may take.

        In the first slot's thread, with nothing in hand.
        """
        if self.others and not any(slot.up for slot in self.others):
            self.admit(self.first.free_bytes())
        return self._admitted

    def admit(self, free_bytes: int) -> Sequence[Slot]:
        self._admitted = self.others[: max(0, free_bytes // SLOT_BYTES - 1)]
        return self._admitted

    def begin(self, slot: Slot, serve: Callable[[Slot], None]) -> None:
        """In the slot's own thread, behind what it does."""
        self._threads[slot].submit(serve, slot)

    def clear_others(self, slot: Slot) -> bool:
        """Gives its worker the device's memory, but for contexts; whether there were others.

        The others' workers have nothing in hand meanwhile.
        """
        others = [other for other in self.all if other is not slot and other.up]
        for other in others:
            other.clear()
        return bool(others)

    def close(self) -> None:
        """After the pool is stopped."""
        for thread in self._threads.values():
            thread.shutdown()
