"""How many cores this process may use: fewer than there are where it was pinned (taskset, containers)."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Of the calling thread, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
