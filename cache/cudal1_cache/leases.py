"""Who works on a region: a locked file for each, whose lock ends with its process, whatever ends that.

    Leases(directory).take(fingerprint, target) -> Lease, to be released | Held(pid)

Locks are the kernel's (flock), through a network file system the server's. The number in a file is for people. A
file goes when its lease is released; what a killed process leaves is taken over, or swept up after a day. Where
there are no locks, or no place, everybody gets every lease: work is done twice then, and never wrongly.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cudal1_cache.carry import warn_once
from cudal1_cache.descriptors import close, keep, try_lock
from cudal1_cache.keys import digest

FOLDER = "leases"  # beside the database
KEPT_S = 24 * 3600.0  # that a file without a process may lie


@dataclass(frozen=True, slots=True)
class LeaseKey:
    fingerprint: str
    target: str


@dataclass(frozen=True, slots=True)
class Held:
    """By another process, or by another call in this one."""

    pid: int | None  # as far as it has said


class Lease:
    """This call's, until it is released."""

    def __init__(self, path: Path | None = None, descriptor: int = -1) -> None:
        """Without a path: where there are no locks."""
        self._path, self._descriptor = path, descriptor

    def release(self) -> None:
        """May be called twice."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()  # before its lock: the next one makes a file of its own
            close(self._descriptor)
            self._path = None


class Leases:
    """Of one kernel cache."""

    def __init__(self, directory: Path | None) -> None:
        """directory: of the cache; None: one that no other process sees."""
        self._folder = None if directory is None else directory / FOLDER
        if self._folder is not None:
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                _sweep(self._folder)
            except OSError as error:
                self._go_without(error)

    def take(self, fingerprint: str, target: str) -> Lease | Held:
        """Never waits."""
        if self._folder is None:
            return Lease()
        try:
            return _take(self._folder / digest(LeaseKey(fingerprint, target)))
        except OSError as error:
            self._go_without(error)
            return Lease()

    def _go_without(self, error: OSError) -> None:
        warn_once(f"other processes may write the same kernels as this one: {self._folder} has no locks ({error})")
        self._folder = None


def _take(path: Path) -> Lease | Held:
    """Raises OSError where there are no locks."""
    while True:
        descriptor = keep(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        try:
            if not try_lock(descriptor, fcntl.LOCK_EX):
                found = Held(_read_pid(descriptor))
                close(descriptor)
                return found
        except OSError:
            close(descriptor)
            raise
        if _is_at(path, descriptor):
            with suppress(OSError):  # a full disk: nobody learns who holds it
                os.pwrite(descriptor, b"%-20d" % os.getpid(), 0)  # over what a dead one wrote
            return Lease(path, descriptor)
        close(descriptor)  # it was released, and removed, before it was locked


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read_pid(descriptor: int) -> int | None:
    said = os.pread(descriptor, 20, 0).strip()
    return int(said) if said.isdigit() else None


def _sweep(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):  # released meanwhile, or no lease
            if time.time() - path.stat().st_mtime > KEPT_S and isinstance(left := _take(path), Lease):
                left.release()
