"""The tables, as numbered migrations. Each runs in one transaction together with the record that it ran.

Within one database file (its name carries FILE_VERSION) migrations only ADD columns with defaults, tables and
indexes, so that an older process can go on using a file that a newer one has opened. A change of meaning gets a
new FILE_VERSION, and with it a new file, into which upgrade.py brings the rows of the last one.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlite_utils
from sqlite_utils import Migrations

FILE_VERSION = 3  # 2: a key of the user's seals every row; 3: `unprofitable`, and the variants' names
SEAL_VERSION = 2  # of what a seal is over: rows that keep their values keep their seals
FILE_NAME = f"cudal1-v{FILE_VERSION}.sqlite3"
OLDER_NAME = f"cudal1-v{FILE_VERSION - 1}.sqlite3"

MIGRATIONS = Migrations("cudal1_cache")


@MIGRATIONS(name="0001_tables")
def create_tables(db: sqlite_utils.Database) -> None:
    _create(db, "regions", {"fingerprint": str, "relative": str, "text": str}, "fingerprint")
    _create(
        db,
        "attempts",
        {
            "id": str,
            "fingerprint": str,
            "target": str,
            "code_digest": str,
            "generator": str,
            "model": str,
            "prompt_digest": str,
            "analysis": str,
            "design": str,
            "code": str,
            "stage": str,
            "reason": str,
            "speedup": float,
            "candidate_us": float,
            "baseline_us": float,
            "proof_json": str,
            "created": float,
        },
        "id",
    )
    _create(
        db,
        "entries",
        {
            "entry_id": str,
            "fingerprint": str,
            "target": str,
            "status": str,
            "attempt_id": str,
            "code": str,
            "image": bytes,
            "image_arch": str,
            "proof_json": str,
            "speedup": float,
            "numerics": str,
            "versions_json": str,
            "quarantined": int,
            "reason": str,
            "created": float,
            "verdicts": int,
        },
        "entry_id",
    )
    plan = {"graph_key": str, "target": str, "decisions_json": str, "regions_json": str}
    _create(db, "plans", plan | {"choice": str, "ratio": float, "created": float}, ("graph_key", "target"))
    miss = {"fingerprint": str, "target": str, "value_us": float, "count": int}
    _create(db, "misses", miss, ("fingerprint", "target"))
    refuted = {"fingerprint": str, "target": str, "code_digest": str, "reason": str, "created": float}
    _create(db, "refuted", refuted, ("fingerprint", "target", "code_digest"))


@MIGRATIONS(name="0002_indexes")
def create_indexes(db: sqlite_utils.Database) -> None:
    db.table("regions").create_index(["relative"])
    db.table("attempts").create_index(["fingerprint", "target", "code_digest"])
    db.table("entries").create_index(["fingerprint", "target"])
    db.table("misses").create_index(["target", "value_us"])


def migrate(db: sqlite_utils.Database, fill: Callable[[sqlite_utils.Database], None] | None = None) -> None:
    """Brings a database up to date. Two processes may call it at once: one waits for the other.

    fill: puts rows into a new one, in the same transaction.
    """
    if not MIGRATIONS.pending(db):
        return
    # IMMEDIATE: with a deferred BEGIN both would read "pending", and the second would fail on the upgrade
    db.execute("BEGIN IMMEDIATE")
    try:
        is_new = not MIGRATIONS.applied(db)
        MIGRATIONS.apply(db)
        if is_new and fill is not None:
            fill(db)
    except BaseException:
        db.rollback()
        raise
    db.commit()


def _create(db: sqlite_utils.Database, name: str, columns: dict[str, type], pk: str | tuple[str, ...]) -> None:
    db.table(name).create({**columns, "mac": str, "signature": str}, pk=pk, strict=db.supports_strict)
