"""Regions that other processes with the same kernel cache are at work on: left to them, and their results awaited.

    lease(fingerprint) -> whether it is this call's now, until `release` (cudal1_cache/leases.py)
    free(those left)   -> what nobody works on; waits until others have answered, or let go, or died

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
        self._mine: dict[str, Lease] = {}
        self._held: dict[str, int | None] = {}  # who has it, by its number

    def __enter__(self) -> Neighbours:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fingerprint in list(self._mine):
            self.release(fingerprint)

    def free(self, wanted: Sequence[str]) -> list[str]:
        """In the order given. Empty where none is left to work on."""
        if found := self._free(wanted):
            return found
        if self._held:
            self._progress(Waiting(len(self._held), self._timer.left_s))
        while self._held and self._timer.left_s > 0:
            time.sleep(min(POLL_S, self._timer.left_s))
            if found := self._free(list(self._held)):
                return found
        self.endings |= {f: Unfinished(_why(pid)) for f, pid in self._held.items()}
        return []

    def lease(self, fingerprint: str) -> bool:
        """For a region that this call has not. False: another has it, or has answered it."""
        lease = self._leases.take(fingerprint, self._target)
        entry = self._found(fingerprint)  # now that nobody who had it can still be about to store it
        if isinstance(lease, Lease):
            self._mine[fingerprint] = lease
        if entry is not None:
            self.endings[fingerprint] = Won(entry) if entry.status == "kernel" else Unprofitable(entry)
            self.release(fingerprint)
        elif isinstance(lease, Held):
            self._held[fingerprint] = lease.pid
        return fingerprint in self._mine

    def release(self, fingerprint: str) -> None:
        """What was taken is decided, as far as it could be now."""
        if (lease := self._mine.pop(fingerprint, None)) is not None:
            lease.release()

    def _free(self, wanted: Sequence[str]) -> list[str]:
        self._held = {}
        return [f for f in wanted if f not in self.endings and self._is_free(f)]

    def _is_free(self, fingerprint: str) -> bool:
        is_free = self.lease(fingerprint)
        self.release(fingerprint)
        return is_free


def _why(pid: int | None) -> str:
    who = "another thread of this process" if pid == os.getpid() else f"another process (pid {pid})"
    return f"{who} is writing its kernel"
