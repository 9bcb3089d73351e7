"""The cores that this process may use, which are fewer than the machine's where it was pinned (taskset, a container)."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Of the calling thread, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
