"""Rows from another file, which is read only: one that cannot be written, or the one of the version before.

    seed(memory, file)                  rows as they are, into memory
    carry_over(new file, file, upgrade) every row that `upgrade` does not leave out, as this version spells it

What of such a file cannot be read is told and left out. A file with a view or trigger counts as damaged: none is
ours, and it would run with the rows.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlite_utils

log = logging.getLogger(__name__)

SEED_TABLES = ("regions", "entries", "plans", "misses", "refuted")
CARRIED_TABLES = ("regions", "attempts", "entries", "misses", "refuted")

Columns = dict[str, Any]
Upgrade = Callable[[str, Columns], Columns | None]  # table, row -> the row as it is now; None: left out


def seed(db: sqlite_utils.Database, path: Path) -> None:
    """Copies what can be read of a file that cannot be written; attempts, the bulk of it, stay out."""
    try:
        _attach_read_only(db, path)
        refuse_code(db, "old")
        for table in SEED_TABLES:
            names = ", ".join(f'"{c.name}"' for c in db.table(table).columns)
            db.execute(f'INSERT OR IGNORE INTO main."{table}" ({names}) SELECT {names} FROM old."{table}"')
    except sqlite3.DatabaseError as error:
        warn_once(f"the kernel cache {path} cannot be read either ({error}); starting empty")
    finally:
        with suppress(sqlite3.DatabaseError):
            db.execute("DETACH old")


def carry_over(db: sqlite_utils.Database, path: Path, upgrade: Upgrade) -> int:
    """Fills a new database, inside the transaction that makes its tables; returns the number of rows.

    The file itself stays as it is.
    """
    count = 0
    with closing(sqlite3.connect(":memory:", uri=True)) as connection:
        old = sqlite_utils.Database(connection, execute_plugins=False)
        try:
            old.execute("PRAGMA trusted_schema=OFF")
            _attach_read_only(old, path)
            refuse_code(old, "old")
            for table in CARRIED_TABLES:
                names = [c.name for c in db.table(table).columns]
                listed = ", ".join(f'"{name}"' for name in names)
                for columns in old.query(f'SELECT {listed} FROM old."{table}"'):
                    count += _insert(db, table, names, upgrade(table, columns))
        except sqlite3.DatabaseError as error:
            warn_once(f"of the kernel cache {path} not all can be read ({error}); the rest begins empty")
    return count


def refuse_code(db: sqlite_utils.Database, schema: str) -> None:
    """Raises what a damaged file raises where tables are views, or triggers undo what is written: none is ours."""
    found = db.execute(f"SELECT name FROM {schema}.sqlite_master WHERE type IN ('view', 'trigger')").fetchone()
    if found is not None:
        error = sqlite3.DatabaseError(f"it holds the view or trigger {found[0]!r}")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _insert(db: sqlite_utils.Database, table: str, names: list[str], columns: Columns | None) -> bool:
    if columns is None:
        return False
    listed, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" * len(names))
    try:
        db.execute(f'INSERT INTO "{table}" ({listed}) VALUES ({marks})', [columns[name] for name in names])
    except sqlite3.IntegrityError:  # of another type than the column: damaged
        return False
    return True


def _attach_read_only(db: sqlite_utils.Database, path: Path) -> None:
    """Attaches the file as `old`. Where the log's index cannot be made either, as of its last checkpoint."""
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        db.execute("ATTACH ? AS old", [uri])
        db.execute("SELECT count(*) FROM old.sqlite_master").fetchone()
    except sqlite3.OperationalError:
        with suppress(sqlite3.OperationalError):
            db.execute("DETACH old")
        db.execute("ATTACH ? AS old", [f"{uri}&immutable=1"])


@cache
def warn_once(message: str) -> None:
    log.warning(message)
