"""Threads for the operations of one thread, the sampler's.

The step of a small model is hundreds of operations of some microseconds. Where another process wants a core too,
OpenMP's threads wait for each other at every one of them, and they wait busily: a reply of 368 tokens took 48 s of
CPU time with two threads on two busy cores, 1.8 s with one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """What this thread runs on the CPU takes at most `count` threads, what others run as many as before."""
    with _lock:
        before = torch.get_num_threads()
        torch.set_num_threads(min(count, before))
        # that was also the default of threads which have run nothing yet: another thread puts it back
        other = threading.Thread(target=torch.set_num_threads, args=(before,))
        other.start()
        other.join()
    try:
        yield
    finally:
        torch.set_num_threads(before)
