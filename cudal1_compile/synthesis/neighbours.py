"""Regions that other processes with the same kernel cache are at work on: left to them, and their results awaited.

    take(fingerprints) -> those to work on now, leased (cudal1_cache/leases.py)
    take(those left)   -> ... waits: the others have answered | let go, or died, without an answer: to work on now

What another process has answered, or still holds when the time is over, is in `endings`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from cudal1_cache.leases import Held, Lease, Leases
from cudal1_cache.rows import Entry
from cudal1_compile.synthesis.budget import Timer
from cudal1_compile.synthesis.outcome import Ending, Unfinished, Unprofitable, Won
from cudal1_compile.synthesis.progress import Progress, Waiting

POLL_S = 0.25  # between two looks at what others do

# the entry that a region, by its fingerprint, has got since it was looked up
Found = Callable[[str], Entry | None]


class Neighbours:
    """Of one call of synthesis; what it holds is released with the block."""

    def __init__(self, leases: Leases, target: str, found: Found, timer: Timer, progress: Progress) -> None:
        self.endings: dict[str, Ending] = {}
        self._leases, self._target, self._found = leases, target, found
        self._timer, self._progress = timer, progress
        self._mine: list[Lease] = []
        self._held: dict[str, int | None] = {}  # who has it, by its number

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def take(self, wanted: Sequence[str]) -> list[str]:
        """In the order given. Waits where others have all of them; empty where none is left to work on."""
        if mine := self._take_free(wanted):
            return mine
        if self._held:
            self._progress(Waiting(len(self._held), self._timer.left_s))
        while self._held and self._timer.left_s > 0:
            time.sleep(min(POLL_S, self._timer.left_s))
            if mine := self._take_free(list(self._held)):
                return mine
        self.endings |= {f: Unfinished(_why(pid)) for f, pid in self._held.items()}
        return []

    def release(self) -> None:
        """What was taken is decided, as far as it could be."""
        while self._mine:
            self._mine.pop().release()

    def _take_free(self, wanted: Sequence[str]) -> list[str]:
        self._held = {}
        return [f for f in wanted if f not in self.endings and self._is_mine(f)]

    def _is_mine(self, fingerprint: str) -> bool:
        lease = self._leases.take(fingerprint, self._target)
        entry = self._found(fingerprint)  # now that nobody who had it can still be about to store it
        if isinstance(lease, Lease):
            self._mine.append(lease)
        if entry is not None:
            self.endings[fingerprint] = Won(entry) if entry.status == "kernel" else Unprofitable(entry)
        elif isinstance(lease, Held):
            self._held[fingerprint] = lease.pid
        return entry is None and isinstance(lease, Lease)


def _why(pid: int | None) -> str:
    who = "another thread of this process" if pid == os.getpid() else f"another process (pid {pid})"
    return f"{who} is writing its kernel"
