"""Folders in the temporary directory that last no longer than the process that made them.

    with Scratch("run").use() as folder: ...      or .path, and .remove() when it is done

The warden removes them when this process is killed. What is left where that one was killed too, the next process
sweeps up: a folder of this user's whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from cudal1_compile.runtime import warden

PREFIX = "cudal1-held-"  # and a kind: no name that a user would give to what is kept
TRIES = 3


class ScratchFolder:
    """One folder, locked by this process."""

    def __init__(self, kind: str) -> None:
        """kind: a word in its name. Raises OSError."""
        _sweep_once(tempfile.gettempdir())
        self._owner = os.getpid()
        self.path, self._lock = _make(kind)
        warden.watch(str(self.path))

    def remove(self) -> None:
        """With all that it holds. May be called twice; does nothing in a fork of the process that made it."""
        if self._owner == os.getpid() and self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            warden.release(str(self.path))
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def use(self) -> Iterator[Path]:
        """Removes it at the end."""
        try:
            yield self.path
        finally:
            self.remove()


def sweep(directory: str) -> None:
    """Removes what processes left that are gone."""
    for path in Path(directory).glob(f"{PREFIX}*"):
        with suppress(OSError):  # its process is there, or another sweeps
            _remove_left(path)


@lru_cache(maxsize=8)
def _sweep_once(directory: str) -> None:
    sweep(directory)


def _remove_left(path: Path) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _make(kind: str) -> tuple[Path, int]:
    """The folder and the descriptor that holds its lock. Another process may sweep it up before it is locked."""
    for _ in range(TRIES):
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-"))
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            if _is_locked(lock) and path.is_dir():
                return path, lock
            os.close(lock)
    raise OSError(f"another process removes {tempfile.gettempdir()}/{PREFIX}* while they are made: end it")


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: no process sweeps there either
        pass
    return True
