"""A sampler that lies on its device only while it is wanted, in memory that is the device's again afterwards.

    sampler.use(work)      loaded where it is not there, for one thread at a time
    sampler.release()      what it holds of a GPU is given back; the next use loads it again

torch's caching allocator is the user's too. A private pool (torch.cuda.MemPool) would keep them apart, but while
one is in use the allocator answers nobody's want of memory from its cache, as in a capture: another thread of the
user's would run out of memory because of us. So loading and sampling have a stream of their own, whose blocks are
never mixed with those of another, and what is free goes back to the device once, at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

from cudal1_compile.generate.errors import no_room, wants_memory
from cudal1_compile.generate.fast_llama import FastLlama

T = TypeVar("T")


class SamplerOnDemand:
    def __init__(self, load: Callable[[], FastLlama], device: torch.device) -> None:
        self._load, self.device = load, device
        self._lock = threading.RLock()  # held by whoever samples
        self._found: FastLlama | None = None
        self._is_wanted = True

    def sampler(self) -> FastLlama:
        with self._lock:
            if self._found is None:
                self._found = self._load()
            return self._found

    def use(self, work: Callable[[], T]) -> T:
        """What `work` makes of the sampler, which stays meanwhile.

        Raises GeneratorError where the device has no room; nothing of the sampler is left there then.
        """
        try:
            with self._lock:
                self._is_wanted = True
                return self._use(work)
        finally:
            if not self._is_wanted:  # any more: released meanwhile
                self.release()

    def _use(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except RuntimeError as error:
            if not wants_memory(error):
                raise
            full = no_room(error)
        # not within the handler: the error's frames hold what was made so far
        self._drop()
        raise full

    def release(self) -> None:
        """At once, or where another thread samples, once that has ended. On a CPU nothing is given back."""
        if self.device.type == "cpu":
            return
        self._is_wanted = False
        if self._lock.acquire(blocking=False):
            try:
                if self._found is not None:
                    self._drop()
            finally:
                self._lock.release()

    def _drop(self) -> None:
        self._found = None
        give_back(self.device)


@cache
def stream_of(device: torch.device) -> torch.cuda.Stream | None:
    """One for all samplers of a GPU: each stream that multiplies brings a workspace, which stays."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def give_back(device: torch.device) -> None:
    """What torch holds of a GPU and nobody uses goes back to it.

    cuBLAS's workspaces stay, 32 MiB on an H100 for each thread's stream that multiplied: torch frees all or none,
    also one that another thread's product is using.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
