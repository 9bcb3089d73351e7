"""Descriptors whose locks (flock) end with this process: its forks close their copies.

A lock is held until the last copy of its descriptor is closed. A user's forks (loaders of data, pools) would keep
what a killed process held, for as long as they live.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

_kept: set[int] = set()


def keep(descriptor: int) -> int:
    """From now on no fork has it; `close` ends it."""
    _kept.add(descriptor)
    return descriptor


def close(descriptor: int) -> None:
    _kept.discard(descriptor)
    os.close(descriptor)


def try_lock(descriptor: int, how: int) -> bool:
    """Whether it could be locked at once. Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_copies() -> None:
    for descriptor in _kept:
        with suppress(OSError):
            os.close(descriptor)
    _kept.clear()


os.register_at_fork(after_in_child=_close_copies)
