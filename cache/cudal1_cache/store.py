"""The store: regions, attempts, entries, graph plans and misses, for every target of this user.

`Store.open(directory, trust)` never raises for a damaged, read-only or full place (database.py says what happens
instead). Lookups raise CacheCorrupt for a row whose types are wrong and CacheBusy for a locked file; the caller
then falls back and says so. Writing the same row again replaces it.

Every row is sealed when it is written (trust.py). One that `trust` does not vouch for is a stranger's: a kernel
comes back without its image and unverified, waiting for the judge like an import; anything else is absent.
Refuted code is barred by its own table, whoever wrote that, until `unrefute`.

This module builds, verifies and measures nothing, and it reads no environment.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import sqlite_utils

from cudal1_cache.codec import PRIMARY_KEYS, TABLES, R, Row, canonical, from_columns, seals, to_columns
from cudal1_cache.database import Database
from cudal1_cache.errors import CacheCorrupt
from cudal1_cache.rows import (
    ACCEPTED,
    REFUTED,
    TIMED,
    UNVERIFIED,
    Attempt,
    Entry,
    GraphPlan,
    Miss,
    Refuted,
    RegionText,
)
from cudal1_cache.schema import FILE_NAME
from cudal1_cache.trust import Trust, new_trust
from cudal1_cache.upgrade import upgrade_row

log = logging.getLogger(__name__)

MAX_VALUES = 500  # of one query
STRANGERS = f"{UNVERIFIED}: its row carries neither this user's MAC nor a signature of a named key"
STRANGERS_ROWS = (
    "rows of %s in %s carry neither this user's MAC nor a signature of a named key and are not used; set "
    "CUDAL1_KEY_FILE to the key that they were made with, or let `cudal1 cache verify` judge the kernels"
)
SIGNED: tuple[type[Row], ...] = (RegionText, Entry, GraphPlan)  # what a reader of a signed cache gets


def digest_text(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class History:
    """Of a region on a target."""

    attempts: list[Attempt] = field(default_factory=list)  # oldest first
    entries: list[Entry] = field(default_factory=list)  # newest first, quarantined ones included
    refuted: dict[str, str] = field(default_factory=dict)  # why a code is barred, by its digest


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts over one target, or over all of them."""

    regions: int
    attempts: int
    accepted: int  # attempts that passed every gate
    kernels: int  # usable ones
    unprofitable: int
    untried: int  # decided without a candidate
    at_floor: int  # likewise, since nothing could be faster
    quarantined: int  # unverified ones too
    plans: int
    misses: int
    size_bytes: int  # of the file, 0 in memory


class Store:
    """All lookups and writes; safe to share between threads and to use from several processes."""

    def __init__(self, database: Database, trust: Trust, digest_code: Callable[[str], str] = digest_text) -> None:
        """digest_code: equal for codes that are the same kernel, however they are spelled."""
        self.database, self.trust, self.digest_code = database, trust, digest_code
        self._said: set[type[Row]] = set()  # of which strangers' rows were met

    @classmethod
    def open(cls, directory: Path, trust: Trust, digest_code: Callable[[str], str] = digest_text) -> Store:
        """Opens or makes the store in a directory. Without the user's key it is in memory."""
        path = Path(directory) / FILE_NAME
        upgrade = partial(upgrade_row, trust)
        database = Database(path, reads_signed=bool(trust.signers), fault=trust.fault, upgrade=upgrade)
        return cls(database, trust, digest_code)

    @classmethod
    def memory(cls, digest_code: Callable[[str], str] = digest_text) -> Store:
        """A store that ends with this process."""
        return cls(Database(None), new_trust(), digest_code)

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

    def add_regions(self, *regions: RegionText) -> None:
        self._put(regions)

    def get_region(self, fingerprint: str, proven: bool = True) -> RegionText | None:
        """None where it is not there, or damaged, which is told: who has the text may add it again.

        proven=False: also a stranger's text, of which only a judge can tell whether it is that region's.
        """
        return _first(self._select(RegionText, _by_key(RegionText), [fingerprint], whole=True, texts=not proven))

    # attempts

    def add_attempts(self, attempts: Iterable[Attempt]) -> None:
        """All of them, or none if one cannot be written."""
        self._put(list(attempts))

    def attempts(self, fingerprint: str, target: str) -> list[Attempt]:
        """Every attempt for a region on a target, oldest first."""
        return self._select(
            Attempt, "where fingerprint = ? and target = ? order by created, id", [fingerprint, target]
        )

    def histories(self, fingerprints: Sequence[str], target: str) -> dict[str, History]:
        """Of each region: what has been tried for it, what it ended in, and which codes are barred."""
        found = {fingerprint: History() for fingerprint in fingerprints}

        def run(db: sqlite_utils.Database) -> None:
            for begin in range(0, len(fingerprints), MAX_VALUES):
                some = fingerprints[begin : begin + MAX_VALUES]
                where = f"where target = ? and fingerprint in ({', '.join('?' * len(some))})"
                values = [target, *some]
                for attempt in self._rows(db, Attempt, f"{where} order by created, id", values):
                    found[attempt.fingerprint].attempts.append(attempt)
                for entry in self._rows(db, Entry, f"{where} order by created desc, entry_id", values, whole=True):
                    found[entry.fingerprint].entries.append(entry)
                for row in db.query(f"select fingerprint, code_digest, reason from refuted {where}", values):
                    found[row["fingerprint"]].refuted[row["code_digest"]] = str(row["reason"])

        self.database.read(run)
        return found

    def best_relatives(self, region: RegionText, target: str, limit: int = 8) -> list[Attempt]:
        """Accepted and timed attempts for other sizes of a region, fastest first, each code once."""
        where = (
            "where fingerprint in (select fingerprint from regions where relative = ? and fingerprint <> ?)"
            " and target = ? and stage in (?, ?) and speedup is not null order by speedup desc, id"
        )
        values = [region.relative, region.fingerprint, target, ACCEPTED, TIMED]

        def run(db: sqlite_utils.Database) -> list[Attempt]:
            found: dict[str, Attempt] = {}
            for attempt in self._rows(db, Attempt, where, values):
                found.setdefault(attempt.code_digest, attempt)
                if len(found) >= limit:
                    break
            return list(found.values())

        return self.database.read(run)

    # entries

    def put_entry(self, entry: Entry) -> None:
        """A kernel of refuted code is stored as such, whoever has proven it again."""

        def run(db: sqlite_utils.Database) -> None:
            why = self._why_refuted(db, entry)
            self._upsert(db, entry if why is None else _barred(entry, why))

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
            self._upsert(db, replace(self._entry(db, entry_id), quarantined=True, reason=reason))

        self.database.write(run)

    # refuted code

    def refute(self, entry_id: str, reason: str) -> None:
        """Bars an entry's code, in any spelling, until `unrefute`. Raises KeyError for no entry.

        Its attempts then count as refused, so that the code is neither judged again nor shown as an exemplar.
        """

        def run(db: sqlite_utils.Database) -> None:
            entry = self._entry(db, entry_id)
            digest = self.digest_code(entry.code)
            self._upsert(db, Refuted(entry.fingerprint, entry.target, digest, reason))
            for other in self._same_code(db, Entry, entry):
                self._upsert(db, _barred(other, reason))
            for attempt in self._same_code(db, Attempt, entry):
                self._upsert(db, replace(attempt, stage="verify", reason=reason, speedup=None))

        self.database.write(run)

    def why_refuted(self, fingerprint: str, target: str, code: str) -> str | None:
        """Why this code, in any spelling, is barred for a region and target; None where it is not."""
        wanted = Entry("", fingerprint, target, "kernel", code=code)
        return self.database.read(lambda db: self._why_refuted(db, wanted))

    def unrefute(self, entry_id: str) -> int:
        """Lifts the bar from an entry's code; its entries, whose number comes back, wait for the judge.

        Raises KeyError where there is no such entry, or its code is not barred.
        """

        def run(db: sqlite_utils.Database) -> int:
            entry = self._entry(db, entry_id)
            if self._why_refuted(db, entry) is None:
                raise KeyError(f"the code of entry {entry_id} is not refuted")
            key = (entry.fingerprint, entry.target, self.digest_code(entry.code))
            db.table(TABLES[Refuted]).delete(key)
            found = self._same_code(db, Entry, entry)
            for other in found:
                waits = replace(other, quarantined=True, reason=f"{UNVERIFIED}: its refutation was lifted")
                self._upsert(db, waits)
            return len(found)

        return self.database.write(run)

    def _why_refuted(self, db: sqlite_utils.Database, entry: Entry) -> str | None:
        """No MAC is asked for: a bar that a stranger set costs a kernel, one that he lifts a wrong result."""
        if entry.status != "kernel":
            return None
        where = "select reason from refuted where fingerprint = ? and target = ? and code_digest = ?"
        values = [entry.fingerprint, entry.target, self.digest_code(entry.code)]
        return next((str(row["reason"]) for row in db.query(where, values)), None)

    def _same_code(self, db: sqlite_utils.Database, cls: type[R], entry: Entry) -> list[R]:
        """Attempts or kernels of an entry's region and target whose code is the same kernel."""
        digest, where = self.digest_code(entry.code), "where fingerprint = ? and target = ?"
        found: list[Any] = list(self._rows(db, cls, where, [entry.fingerprint, entry.target], whole=True))
        return [x for x in found if x.code and self.digest_code(x.code) == digest]

    # graph plans

    def put_plan(self, plan: GraphPlan) -> None:
        self._put([plan])

    def get_plan(self, graph_key: str, target: str) -> GraphPlan | None:
        return self._get(GraphPlan, (graph_key, target))

    # misses

    def record_miss(self, fingerprint: str, target: str, value_us: float) -> None:
        """Counts a region that was wanted and not found; keeps the highest value seen."""

        def run(db: sqlite_utils.Database) -> None:
            found = _first(list(self._rows(db, Miss, _by_key(Miss), (fingerprint, target))))
            old = found or Miss(fingerprint, target, value_us, 0)
            self._upsert(db, replace(old, value_us=max(old.value_us, value_us), count=old.count + 1))

        self.database.write(run)

    def misses(self, target: str, limit: int | None = None) -> list[Miss]:
        """What is worth most first: a call's time times how often it was wanted."""
        where = "where target = ? order by value_us * count desc, fingerprint limit ?"
        return self._select(Miss, where, [target, -1 if limit is None else limit])

    def clear_miss(self, fingerprint: str, target: str) -> None:
        """After synthesis has answered it, with a kernel or without."""
        self.database.write(
            lambda db: db.table(TABLES[Miss]).delete_where("fingerprint = ? and target = ?", [fingerprint, target])
        )

    # whole store

    def targets(self) -> list[str]:
        """Targets that own attempts, entries or misses."""
        sql = "select target from attempts union select target from entries union select target from misses"
        return self.database.read(lambda db: sorted(row["target"] for row in db.query(sql)))

    def sign(self, sign: Callable[[bytes], bytes]) -> int:
        """Signs every region, entry and plan of this user's, each with its table and key; returns their number."""

        def run(db: sqlite_utils.Database) -> int:
            return sum(self._sign(db, cls, columns, sign) for cls in SIGNED for columns in _all(db, cls))

        count = self.database.write(run)
        # into the file itself: who may only read it cannot read its log
        self.database.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        return count

    def _sign(
        self, db: sqlite_utils.Database, cls: type[Row], columns: dict[str, Any], sign: Callable[[bytes], bytes]
    ) -> bool:
        text, (mac, _) = canonical(cls, columns), seals(cls, columns)
        if not self.trust.is_own(text, mac):
            return False
        key = tuple(columns[name] for name in PRIMARY_KEYS[cls])
        db.table(TABLES[cls]).update(key, {"signature": sign(text).hex()})
        return True

    def stats(self, target: str | None = None) -> Stats:
        """Attempts, plans and misses are counted as rows, whoever wrote them."""
        entries = self.entries(target=target)
        usable = [e.status for e in entries if not e.quarantined]
        where, values = ("target = ?", [target]) if target is not None else ("1", [])

        def run(db: sqlite_utils.Database) -> Stats:
            def count(cls: type[Row], condition: str = "1") -> int:
                return db.table(TABLES[cls]).count_where(f"{where} and {condition}", values)

            return Stats(
                regions=db.table(TABLES[RegionText]).count,
                attempts=count(Attempt),
                accepted=count(Attempt, f"stage = '{ACCEPTED}'"),
                kernels=usable.count("kernel"),
                unprofitable=usable.count("unprofitable"),
                untried=usable.count("untried"),
                at_floor=usable.count("at_floor"),
                quarantined=len(entries) - len(usable),
                plans=count(GraphPlan),
                misses=count(Miss),
                size_bytes=self.path.stat().st_size if self.path else 0,
            )

        return self.database.read(run)

    def _put(self, rows: Sequence[Row]) -> None:
        """Of one kind."""

        def run(db: sqlite_utils.Database) -> None:
            self._upsert(db, *rows)

        self.database.write(run)

    def _upsert(self, db: sqlite_utils.Database, *rows: Row) -> None:
        if rows:
            db.table(TABLES[type(rows[0])]).insert_all(map(self._sealed, rows), replace=True)

    def _sealed(self, row: Row) -> dict[str, Any]:
        columns = to_columns(row)
        return columns | {"mac": self.trust.mac(canonical(type(row), columns)), "signature": ""}

    def _get(self, cls: type[R], key: tuple[str, ...]) -> R | None:
        return _first(self._select(cls, _by_key(cls), list(key)))

    def _entry(self, db: sqlite_utils.Database, entry_id: str) -> Entry:
        found = _first(list(self._rows(db, Entry, _by_key(Entry), (entry_id,))))
        if found is None:
            raise KeyError(f"no entry {entry_id}")
        return found

    def _select(
        self, cls: type[R], where: str, values: Sequence[Any], whole: bool = False, texts: bool = False
    ) -> list[R]:
        """`whole`: without damaged rows, which are told. `texts`: with strangers' regions."""
        return self.database.read(lambda db: list(self._rows(db, cls, where, values, whole, texts)))

    def _rows(
        self,
        db: sqlite_utils.Database,
        cls: type[R],
        where: str,
        values: Sequence[Any],
        whole: bool = False,
        texts: bool = False,
    ) -> Iterator[R]:
        for columns in db.query(f"select * from {TABLES[cls]} {where}", values):
            try:
                row = from_columns(cls, columns)
                is_ours = self.trust.vouches_for(canonical(cls, columns), *seals(cls, columns))
            except CacheCorrupt as error:
                if not whole:
                    raise
                log.warning("a damaged row is not used: %s", error)
                continue
            if is_ours or texts and cls is RegionText:
                yield row
                continue
            self._say_strangers(cls)
            if isinstance(row, Entry) and row.status == "kernel":
                yield replace(row, image=b"", image_arch="", quarantined=True, reason=STRANGERS)

    def _say_strangers(self, cls: type[Row]) -> None:
        if cls not in self._said:
            self._said.add(cls)
            log.warning(STRANGERS_ROWS, TABLES[cls], self.path or "memory")


def _barred(entry: Entry, reason: str) -> Entry:
    return replace(entry, quarantined=True, reason=f"{REFUTED}: {reason}")


def _all(db: sqlite_utils.Database, cls: type[Row]) -> list[dict[str, Any]]:
    return list(db.query(f"select * from {TABLES[cls]}"))


def _by_key(cls: type[Row]) -> str:
    return f"where {' and '.join(f'{name} = ?' for name in PRIMARY_KEYS[cls])}"


def _first(rows: list[R]) -> R | None:
    return rows[0] if rows else None
