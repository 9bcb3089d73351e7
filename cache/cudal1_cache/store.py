"""The store: regions, attempts, entries, graph plans and misses, for every target of this user.

`Store.open(directory)` never raises for a damaged, read-only or full place (database.py says what happens
instead). Lookups raise CacheCorrupt for a row that does not pass its checksum and CacheBusy for a locked file; the
caller then falls back and says so. Writing the same row again replaces it.

This module builds, verifies and measures nothing, and it reads no environment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlite_utils

from cudal1_cache.codec import PRIMARY_KEYS, TABLES, R, Row, from_columns, to_columns
from cudal1_cache.database import Database
from cudal1_cache.errors import CacheCorrupt
from cudal1_cache.rows import ACCEPTED, REFUTED, Attempt, Entry, GraphPlan, Miss, Region
from cudal1_cache.schema import FILE_NAME

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts over one target, or over all of them."""

    regions: int
    attempts: int
    accepted: int  # attempts that passed every gate
    kernels: int  # usable ones
    no_wins: int
    untried: int  # decided without a candidate
    quarantined: int
    plans: int
    misses: int
    size_bytes: int  # of the file, 0 in memory


class Store:
    """All lookups and writes; safe to share between threads and to use from several processes."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, directory: Path) -> Store:
        """Opens or makes the store in a directory."""
        return cls(Database(Path(directory) / FILE_NAME))

    @classmethod
    def memory(cls) -> Store:
        """A store that ends with this process."""
        return cls(Database(None))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    @property
    def path(self) -> Path | None:
        """The file, or None where the store lives in memory."""
        return self.database.path

    # regions

    def add_region(self, region: Region) -> None:
        self._put([region])

    def get_region(self, fingerprint: str) -> Region | None:
        """None where it is not there, or damaged, which is told: who has the text may add it again."""
        return _first(self._select(Region, _by_key(Region), [fingerprint], whole=True))

    # attempts

    def add_attempts(self, attempts: Iterable[Attempt]) -> None:
        """All of them, or none if one cannot be written."""
        self._put(list(attempts))

    def attempts(self, fingerprint: str, target: str) -> list[Attempt]:
        """Every attempt for a region on a target, oldest first."""
        return self._select(
            Attempt, "where fingerprint = ? and target = ? order by created, id", [fingerprint, target]
        )

    def best_relatives(self, region: Region, target: str, limit: int = 8) -> list[Attempt]:
        """Accepted attempts for regions that differ from `region` in sizes only, fastest first, each code once."""
        where = (
            "where fingerprint in (select fingerprint from regions where relative = ? and fingerprint <> ?)"
            " and target = ? and stage = ? and speedup is not null order by speedup desc, id"
        )
        values = [region.relative, region.fingerprint, target, ACCEPTED]

        def run(db: sqlite_utils.Database) -> list[Attempt]:
            found: dict[str, Attempt] = {}
            for attempt in _iterate(db, Attempt, where, values):
                found.setdefault(attempt.code_digest, attempt)
                if len(found) >= limit:
                    break
            return list(found.values())

        return self.database.read(run)

    # entries

    def put_entry(self, entry: Entry) -> None:
        """A refuted entry stays what it is, whoever proves it again."""

        def run(db: sqlite_utils.Database) -> None:
            where = "entry_id = ? and quarantined and substr(reason, 1, ?) = ?"  # the row itself may be damaged
            if not db.table(TABLES[Entry]).count_where(where, [entry.entry_id, len(REFUTED), REFUTED]):
                _upsert(db, entry)

        self.database.write(run)

    def get_entry(self, entry_id: str) -> Entry | None:
        return self._get(Entry, (entry_id,))

    def find_entry(
        self,
        fingerprint: str,
        target: str,
        numerics: Collection[str] | None = None,
        prefer: Callable[[Entry], bool] = lambda entry: True,
    ) -> Entry | None:
        """The fastest usable kernel whose numerics label is in `numerics`; else the latest other entry; else None.

        `numerics=None` takes every label. A kernel that is not preferred comes after all that are.
        """
        found = self.entries(fingerprint, target)
        usable = [e for e in found if not e.quarantined]
        kernels = [e for e in usable if e.status == "kernel" and (numerics is None or e.numerics in numerics)]
        if kernels:
            return max(kernels, key=lambda e: (prefer(e), e.speedup or 0.0, e.created, e.entry_id))
        others = [e for e in usable if e.status != "kernel"]
        return max(others, key=lambda e: (e.created, e.entry_id), default=None)

    def entries(self, fingerprint: str | None = None, target: str | None = None) -> list[Entry]:
        """Entries, quarantined ones included, newest first. Damaged ones are left out: others stay in use."""
        wanted = {"fingerprint": fingerprint, "target": target}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = f"where {' and '.join(f'{name} = ?' for name in given)} " if given else ""
        return self._select(Entry, f"{where}order by created desc, entry_id", list(given.values()), whole=True)

    def match_entries(self, prefix: str) -> list[Entry]:
        """Entries whose id starts with `prefix`, for people who type the first digits."""
        return self._select(Entry, "where substr(entry_id, 1, ?) = ? order by entry_id", [len(prefix), prefix])

    def quarantine(self, entry_id: str, reason: str) -> None:
        """Takes an entry out of use and keeps it for inspection. Raises KeyError where there is none."""

        def run(db: sqlite_utils.Database) -> None:
            found = _read(db, Entry, _by_key(Entry), (entry_id,))
            if not found:
                raise KeyError(f"no entry {entry_id}")
            _upsert(db, replace(found[0], quarantined=True, reason=reason))

        self.database.write(run)

    def refute(self, entry_id: str, reason: str) -> None:
        """Quarantines for good, and takes back the acceptance of the same code. Raises KeyError for no entry.

        The attempts then count as refused, so that the code is neither stored again nor shown as an exemplar.
        """

        def run(db: sqlite_utils.Database) -> None:
            for entry in _read(db, Entry, _by_key(Entry), (entry_id,)):
                _upsert(db, replace(entry, quarantined=True, reason=f"{REFUTED}: {reason}"))
                same = [entry.fingerprint, entry.target, entry.code, ACCEPTED]
                where = "where fingerprint = ? and target = ? and code = ? and stage = ?"
                for attempt in _read(db, Attempt, where, same):
                    _upsert(db, replace(attempt, stage="verify", reason=reason, speedup=None))
                return
            raise KeyError(f"no entry {entry_id}")

        self.database.write(run)

    # graph plans

    def put_plan(self, plan: GraphPlan) -> None:
        self._put([plan])

    def get_plan(self, graph_key: str, target: str) -> GraphPlan | None:
        return self._get(GraphPlan, (graph_key, target))

    # misses

    def record_miss(self, fingerprint: str, target: str, value_us: float) -> None:
        """Counts a region that was wanted and not found; keeps the highest value seen."""

        def run(db: sqlite_utils.Database) -> None:
            found = _read(db, Miss, _by_key(Miss), (fingerprint, target))
            old = found[0] if found else Miss(fingerprint, target, value_us, 0)
            _upsert(db, replace(old, value_us=max(old.value_us, value_us), count=old.count + 1))

        self.database.write(run)

    def misses(self, target: str, limit: int | None = None) -> list[Miss]:
        """What is worth most first: a call's time times how often it was wanted."""
        where = "where target = ? order by value_us * count desc, fingerprint limit ?"
        return self._select(Miss, where, [target, -1 if limit is None else limit])

    def clear_miss(self, fingerprint: str, target: str) -> None:
        """After synthesis has answered it, with a kernel or with no win."""
        self.database.write(
            lambda db: db.table(TABLES[Miss]).delete_where("fingerprint = ? and target = ?", [fingerprint, target])
        )

    # whole store

    def targets(self) -> list[str]:
        """Targets that own attempts, entries or misses."""
        sql = "select target from attempts union select target from entries union select target from misses"
        return self.database.read(lambda db: sorted(row["target"] for row in db.query(sql)))

    def stats(self, target: str | None = None) -> Stats:
        where, values = ("target = ?", [target]) if target is not None else ("1", [])

        def run(db: sqlite_utils.Database) -> Stats:
            def count(cls: type[Row], condition: str = "1") -> int:
                return db.table(TABLES[cls]).count_where(f"{where} and {condition}", values)

            return Stats(
                regions=db.table(TABLES[Region]).count,
                attempts=count(Attempt),
                accepted=count(Attempt, f"stage = '{ACCEPTED}'"),
                kernels=count(Entry, "status = 'kernel' and not quarantined"),
                no_wins=count(Entry, "status = 'no_win' and not quarantined"),
                untried=count(Entry, "status = 'untried' and not quarantined"),
                quarantined=count(Entry, "quarantined"),
                plans=count(GraphPlan),
                misses=count(Miss),
                size_bytes=self.path.stat().st_size if self.path else 0,
            )

        return self.database.read(run)

    def _put(self, rows: Sequence[Row]) -> None:
        def run(db: sqlite_utils.Database) -> None:
            for row in rows:
                _upsert(db, row)

        self.database.write(run)

    def _get(self, cls: type[R], key: tuple[str, ...]) -> R | None:
        return _first(self._select(cls, _by_key(cls), list(key)))

    def _select(self, cls: type[R], where: str, values: Sequence[Any], whole: bool = False) -> list[R]:
        """`whole`: without damaged rows, which are told."""
        return self.database.read(lambda db: list(_iterate(db, cls, where, values, whole)))


def _read(db: sqlite_utils.Database, cls: type[R], where: str, values: Sequence[Any]) -> list[R]:
    return list(_iterate(db, cls, where, values))


def _iterate(
    db: sqlite_utils.Database, cls: type[R], where: str, values: Sequence[Any], whole: bool = False
) -> Iterator[R]:
    for row in db.query(f"select * from {TABLES[cls]} {where}", values):
        try:
            yield from_columns(cls, row)
        except CacheCorrupt as error:
            if not whole:
                raise
            log.warning("a damaged row is not used: %s", error)


def _upsert(db: sqlite_utils.Database, row: Row) -> None:
    db.table(TABLES[type(row)]).insert(to_columns(row), replace=True)


def _by_key(cls: type[Row]) -> str:
    return f"where {' and '.join(f'{name} = ?' for name in PRIMARY_KEYS[cls])}"


def _first(rows: list[R]) -> R | None:
    return rows[0] if rows else None
