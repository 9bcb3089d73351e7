"""One SQLite file with everything that can go wrong with it: opening, transactions, damage, no room.

Flow: open -> connect (WAL, busy timeout) -> migrate; then read(run) and write(run), where `run` gets the
sqlite-utils Database inside a lock, and inside a BEGIN IMMEDIATE transaction for writes. One connection a process,
shared by its threads under the lock; a forked child opens its own.

What happens when something is wrong, each with one warning a process:
- no file, but one of the version before: its rows are carried over (carry.py);
- damaged file: moved aside to `<name>.damaged-<time>`, never deleted, and a new one is opened;
- a directory or file that others may write or another user owns, or no key of this user's: the store is in memory
  alone, nothing of it is read; but what only another user may write is read for its signed rows;
- a directory that cannot be written, a full disk, an I/O error: the store goes on in memory, seeded with what the
  file still holds (attempts left out), so that lookups go on and this process sees what it wrote;
- locked beyond the timeout: CacheBusy.

This module knows nothing of the rows' meaning.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import sqlite_utils

from cudal1_cache.carry import Upgrade, carry_over, refuse_code, seed, warn_once
from cudal1_cache.errors import CacheBusy, CacheError
from cudal1_cache.ownership import why_foreign, why_writable
from cudal1_cache.schema import OLDER_NAME, migrate

T = TypeVar("T")

BUSY_TIMEOUT_S = 10.0
_RETRIES = 3

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Database:
    """A database file, or memory where `path` is None."""

    def __init__(
        self,
        path: Path | None,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        reads_signed: bool = False,
        fault: str = "",
        upgrade: Upgrade | None = None,
    ) -> None:
        """reads_signed: whether rows may be proven by signatures. fault: why the file may not be written.

        upgrade: of rows of the version before, whose file is carried over where this one is new.
        """
        self.path = path
        self.busy_timeout_s = busy_timeout_s
        self.fault = fault  # why all is in memory
        self._reads_signed, self._upgrade = reads_signed, upgrade
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._db: sqlite_utils.Database | None = None
        self._inode: int | None = None  # of the file that the connection holds
        self._inherited: list[sqlite_utils.Database | None] = []
        self.read(lambda db: None)

    @property
    def in_memory(self) -> bool:
        return self.path is None

    def read(self, run: Callable[[sqlite_utils.Database], T]) -> T:
        """Calls `run` with the connection; it must have read everything when it returns."""
        return self._guarded(lambda: run(self._connection()))

    def write(self, run: Callable[[sqlite_utils.Database], T]) -> T:
        """Calls `run` inside one transaction, which is rolled back if it raises."""

        def transaction() -> T:
            with _immediate(self._connection()) as db:
                return run(db)

        return self._guarded(transaction)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
            self._db = None

    def _guarded(self, operation: Callable[[], T]) -> T:
        self._after_fork()
        with self._lock:
            for _ in range(_RETRIES):
                try:
                    return operation()
                except sqlite3.ProgrammingError:
                    raise  # a mistake of ours
                except sqlite3.DatabaseError as error:
                    self._recover(error)
        raise CacheError(f"{self.path}: still failing after {_RETRIES} new connections; see the warnings above")

    def _connection(self) -> sqlite_utils.Database:
        if self._db is not None and self.path is not None and _inode(self.path) != self._inode:
            self.close()  # another process has moved or removed the file; what is written to it now would be lost
        if self._db is None:
            self._db = self._open()
        return self._db

    def _open(self) -> sqlite_utils.Database:
        if self.path is None:
            return _prepare(_connect(":memory:", self.busy_timeout_s))
        try:
            # 0700: what this file holds is loaded as native code
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.fault:
                _make_file(self.path)
            places = [path for path in (self.path.parent, self.path) if path.exists()]
            if (why := _first(why_writable, places)) is not None:
                return self._open_in_memory(why, with_rows=False)
            if (why := self.fault or _first(why_foreign, places)) is not None:
                return self._open_in_memory(why, with_rows=self._reads_signed)
        except OSError as error:
            return self._open_in_memory(str(error))
        connection = _connect(str(self.path), self.busy_timeout_s)
        self._inode = _inode(self.path)
        try:
            return _prepare(connection, partial(self._carry_over, self.path))
        except BaseException:
            connection.close()
            raise

    def _after_fork(self) -> None:
        if self._pid == os.getpid():
            return
        # never closed: closing the parent's connection here would drop the locks that this process does not hold
        # and could delete the parent's write-ahead log
        self._inherited.append(None if self.in_memory else self._db)
        self._db = self._db if self.in_memory else None
        self._lock = threading.RLock()
        self._pid = os.getpid()

    def _recover(self, error: sqlite3.DatabaseError) -> None:
        """Makes the next try of an operation worthwhile, or raises."""
        code = _primary_code(error)
        if self.path is None or code not in _DAMAGED | _NO_ROOM | _LOCKED:
            raise CacheError(f"the kernel cache {self.path or 'in memory'} failed: {error}") from error
        if code in _LOCKED:
            raise CacheBusy(
                f"{self.path}: locked by another process for {self.busy_timeout_s:.0f} s ({error})"
            ) from error
        self.close()
        if code in _DAMAGED:
            try:
                _move_aside(self.path, self._inode, str(error))
                return
            except OSError as refused:
                error = sqlite3.DatabaseError(f"{error}, and it cannot be moved aside: {refused}")
        self._db = self._open_in_memory(str(error))

    def _open_in_memory(self, reason: str, with_rows: bool = True) -> sqlite_utils.Database:
        assert self.path is not None
        path, self.path, self.fault = self.path, None, reason
        what = "cannot be written" if with_rows else "is not used"
        warn_once(f"the kernel cache {path} {what} ({reason}); new kernels are kept until this process ends")
        db = _prepare(_connect(":memory:", self.busy_timeout_s))
        if with_rows and path.is_file():
            seed(db, path)
        elif with_rows:
            self._carry_over(path, db)
        return db

    def _carry_over(self, path: Path, db: sqlite_utils.Database) -> None:
        """Once: a kernel that was refuted since would come back after its file was damaged."""
        older = path.with_name(OLDER_NAME)
        if self._upgrade is None or not older.is_file() or any(path.parent.glob(f"{path.name}.damaged-*")):
            return
        if (why := why_writable(older)) is not None:
            warn_once(f"the kernel cache of an older cudal1 is not used: {why}")
            return
        count = carry_over(db, older, self._upgrade)
        if not self.in_memory:
            warn_once(f"{count} rows of {older} were carried over; delete it once no older cudal1 uses it")


def _make_file(path: Path) -> None:
    """For this user only, its log too, which gets the file's mode. Another user's directory is left alone.

    Never opened: closing it would drop the locks that this process holds on it.
    """
    if path.exists() or path.parent.stat().st_uid != os.geteuid():
        return
    with suppress(FileExistsError):
        os.mknod(path, 0o600)


def _first(why: Callable[[Path], str | None], places: Sequence[Path]) -> str | None:
    return next((found for place in places if (found := why(place)) is not None), None)


def _connect(name: str, busy_timeout_s: float) -> sqlite3.Connection:
    # isolation_level=None: transactions begin where this module says so, never implicitly
    return sqlite3.connect(name, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False, uri=True)


def _prepare(
    connection: sqlite3.Connection, fill: Callable[[sqlite_utils.Database], None] | None = None
) -> sqlite_utils.Database:
    """WAL, so that readers never wait. NORMAL survives a kill whole, and a power loss up to the last writes."""
    db = sqlite_utils.Database(connection, execute_plugins=False)
    _enable_wal(db)
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA trusted_schema=OFF")  # another user's file may be attached
    refuse_code(db, "main")
    migrate(db, fill)
    return db


def _enable_wal(db: sqlite_utils.Database) -> None:
    """SQLite answers "locked" at once, without its busy timeout, while another process makes the same change."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            db.enable_wal()
            return
        except sqlite3.OperationalError as error:
            if _primary_code(error) not in _LOCKED or time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


@contextmanager
def _immediate(db: sqlite_utils.Database) -> Iterator[sqlite_utils.Database]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.commit()
    except BaseException:
        with suppress(sqlite3.DatabaseError):  # the first error is the one to report
            db.rollback()
        raise


def _primary_code(error: sqlite3.DatabaseError) -> int:
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else int(code) & 0xFF


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _move_aside(path: Path, inode: int | None, reason: str) -> None:
    """Renames the damaged file, unless another process did so first; its log goes with it."""
    with open(path.with_name(f"{path.name}.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _inode(path) != inode:
            return
        aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    warn_once(
        f"the kernel cache {path} is damaged ({reason}); it was moved to {aside} and a new one is begun. "
        f"`sqlite3 {aside.name} .recover` may save what it held"
    )
