"""The lock of a device among the worker processes of all judges of this user.

    shared: case suites and trials, of several workers at once
    alone:  a worker that takes times; the others' work on the device has ended, and they wait

Two locks of the operating system (flock) on files of the user's, named by the device's UUID: several processes
that judge on it take turns. Where no such files can be had, those of each process do among themselves. Who
wants the device alone shuts the gate first, so that nobody comes in or back; whoever is in gives way between two
pieces of work (`give_way`), within milliseconds.

Work that raises does not let go: the device may still be busy with it. Its process ends then, and its parent,
which has the same descriptors, lets go once the process is gone, and with it its CUDA context and what ran there.
Where the parent is killed its workers are too, and the kernel lets go. Nothing is written to the files: a worker
has descriptors to read, and no path.
Each process has a context of its own, so that a fault in one leaves the others' memory and launches as they were.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cudal1_cache.descriptors import close, keep, try_lock
from cudal1_cache.ownership import check_own
from cudal1_compile.config import lock_folders

log = logging.getLogger(__name__)

Descriptors = tuple[int, int]  # of the gate and of the device's lock
FILE_MODE = stat.S_IRUSR | stat.S_IWUSR | stat.S_ISVTX  # sticky: a runtime folder may be cleared of others
_within: dict[str, Descriptors] = {}  # of devices without files: what works on them for this process alone


class LockFiles:
    """The pair of locks of a device; every process needs descriptors of its own."""

    def __init__(self, device: str = "") -> None:
        """device: its UUID (indices are each process's own); empty: for the workers of one judge alone."""
        self._files = _files_of(device) if device else _private_files()

    def descriptors(self) -> Descriptors:
        """New ones, which a child may inherit; `let_go` ends them."""
        gate, device = (keep(os.open(f"/proc/self/fd/{f}", os.O_RDONLY)) for f in self._files)
        return gate, device

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def let_go(descriptors: Descriptors) -> None:
    """Ends what a process that is gone held, also where another process has inherited the descriptors."""
    for file in descriptors:
        fcntl.flock(file, fcntl.LOCK_UN)
        close(file)


def _files_of(device: str) -> Descriptors:
    whys: list[str] = []
    for folder in lock_folders():
        try:
            return _open_files(folder, device)
        except OSError as error:
            whys.append(str(error))
    if device not in _within:
        log.warning("times may be taken beside another process's on this GPU: no lock file (%s)", "; ".join(whys))
        _within.setdefault(device, _private_files())
    gate, lock = _within[device]
    return os.dup(gate), os.dup(lock)


def _open_files(folder: Path, device: str) -> Descriptors:
    """Raises OSError where the folder cannot be had, is not this user's alone, or has no locks."""
    folder.mkdir(mode=0o700, exist_ok=True)
    check_own(folder.parent, folder)
    opened: list[int] = []
    try:
        for name in ("gate", "device"):
            flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW
            opened.append(os.open(folder / f"{device}.{name}", flags, FILE_MODE))
        if try_lock(opened[0], fcntl.LOCK_EX):
            fcntl.flock(opened[0], fcntl.LOCK_UN)
    except OSError:
        for file in opened:
            os.close(file)
        raise
    return opened[0], opened[1]


def _private_files() -> Descriptors:
    return os.memfd_create("cudal1-gate"), os.memfd_create("cudal1-device")


class DeviceLock:
    """The locks as one process sees them. For one thread."""

    def __init__(self, descriptors: Descriptors) -> None:
        self.waited_s = 0.0  # for other processes
        self.synchronize: Callable[[], None] = _nothing  # waits until this process's work on the device has ended
        self.tell: Callable[[bool], None] = _tell_nobody  # True before it waits for others, False after it
        self.keeps_s = 0.0  # that it is in before it gives way: of many short pieces each would wait for others'
        self._gate, self._device = descriptors
        self._inside = self._alone = self._shut = False
        self._entered_s = 0.0  # monotonic

    @classmethod
    def private(cls) -> DeviceLock:
        """For a process that has the device to itself."""
        return cls(LockFiles().descriptors())

    @contextmanager
    def shared(self) -> Iterator[None]:
        global _current
        self._enter()
        _current = self
        yield  # an exception keeps the lock
        _current = None
        self._leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """May be nested. Waits for pieces of work of others; new ones wait for this."""
        if self._alone:
            yield
            return
        was_inside = self._inside
        self._leave()
        self._lock(self._gate, fcntl.LOCK_EX)
        self._lock(self._device, fcntl.LOCK_EX)
        self._inside = self._alone = True
        try:
            yield
        finally:  # work that raised is still inside
            self._alone = False
            fcntl.flock(self._device, fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        if not was_inside:
            self._leave()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """For what a piece of work does on the host alone: others may have the device to themselves meanwhile."""
        if self._alone or not self._inside:
            yield
            return
        self._leave()
        try:
            yield
        finally:
            if not self._inside:
                self._enter()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """For what touches the device after all."""
        if self._inside:
            yield
            return
        self._enter()
        yield  # an exception keeps the lock
        self._leave()

    def give_way(self) -> None:
        """Lets one go first that waits to have the device alone; a microsecond where nobody does.

        To be called between pieces of work, not in a loop of its own: it touches the gate.
        """
        if self._alone or not self._inside or time.monotonic() - self._entered_s < self.keeps_s:
            return
        if self._shut or try_lock(self._gate, fcntl.LOCK_SH):
            self._shut = False
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        else:
            self._leave()
            self._enter()

    def shut(self) -> bool:
        """Shuts the gate beside work that goes on, until it gives way; False where it is shut already."""
        if self._alone or self._shut or not self._inside:
            return False
        self._shut = try_lock(self._gate, fcntl.LOCK_EX)
        return self._shut

    def _enter(self) -> None:
        self._lock(self._gate, fcntl.LOCK_SH)
        self._lock(self._device, fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._inside, self._entered_s = True, time.monotonic()

    def _leave(self) -> None:
        if self._inside:
            self.synchronize()
        for file in (self._device, self._gate):
            fcntl.flock(file, fcntl.LOCK_UN)
        self._inside = self._shut = False

    def _lock(self, file: int, how: int) -> None:
        if try_lock(file, how):
            return
        self.tell(True)
        begin = time.monotonic()
        fcntl.flock(file, how)
        self.waited_s += time.monotonic() - begin
        self.tell(False)


_current: DeviceLock | None = None  # that this process holds: case suites, of pure torch, know nothing of it


def give_way() -> None:
    """Between two pieces of a case suite's work; nothing where no device is shared."""
    if _current is not None:
        _current.give_way()


def _nothing() -> None:
    """Where no device works on its own."""


def _tell_nobody(waits: bool) -> None:
    """Where nobody has set a limit."""
