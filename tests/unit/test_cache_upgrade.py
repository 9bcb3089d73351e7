"""A file of version 2, as it was written then, goes on working: its rows are found in the new one."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cudal1_cache import Store, Trust
from cudal1_cache.carry import warn_once
from cudal1_cache.schema import FILE_NAME, OLDER_NAME
from cudal1_cache.trust import signer

KEY = b"k" * 32
TRUST = Trust(KEY)

# what version 2 made, its indexes left out
OLD_TABLES = """
create table regions (fingerprint text primary key, relative text, text text, mac text, signature text) strict;
create table attempts (
    id text primary key, fingerprint text, target text, code_digest text, generator text, model text,
    prompt_digest text, analysis text, design text, code text, stage text, reason text, speedup real,
    candidate_us real, baseline_us real, proof_json text, created real, mac text, signature text
) strict;
create table entries (
    entry_id text primary key, fingerprint text, target text, status text, attempt_id text, code text, image blob,
    image_arch text, proof_json text, speedup real, numerics text, versions_json text, quarantined integer,
    reason text, created real, verdicts integer, mac text, signature text
) strict;
create table plans (
    graph_key text, target text, decisions_json text, regions_json text, choice text, ratio real, created real,
    mac text, signature text, primary key (graph_key, target)
) strict;
create table misses (
    fingerprint text, target text, value_us real, count integer, mac text, signature text,
    primary key (fingerprint, target)
) strict;
create table refuted (
    fingerprint text, target text, code_digest text, reason text, created real, mac text, signature text,
    primary key (fingerprint, target, code_digest)
) strict;
"""


@pytest.fixture(autouse=True)
def forget_warnings() -> None:
    warn_once.cache_clear()


def sealed_text(table: str, row: dict[str, Any]) -> bytes:
    """What version 2 sealed."""
    plain = {k: hashlib.sha256(v).hexdigest() if isinstance(v, bytes) else v for k, v in row.items()}
    return json.dumps(["cudal1 cache 2", table, plain], sort_keys=True, separators=(",", ":")).encode("ascii")


def entry(name: str, fingerprint: str, status: str = "kernel", image: bytes = b"\x7fELF") -> dict[str, Any]:
    texts = {"attempt_id": "", "code": f"code of {name}", "image_arch": "x", "proof_json": "{}", "numerics": ""}
    numbers = {"speedup": 1.5, "quarantined": 0, "created": 1.0, "verdicts": 3}
    named = {"entry_id": name, "fingerprint": fingerprint, "target": "t", "status": status}
    return named | texts | numbers | {"image": image, "versions_json": "{}", "reason": "8 tried"}


def old_file(
    directory: Path,
    rows: list[tuple[str, dict[str, Any]]],
    key: bytes = KEY,
    sign: Callable[[bytes], bytes] | None = None,
) -> Path:
    path = directory / OLDER_NAME
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode=wal")
    db.executescript(OLD_TABLES)
    for table, row in rows:
        text = sealed_text(table, row)
        seals = [hmac.digest(key, text, "sha256").hex(), sign(text).hex() if sign else ""]
        columns, marks = ", ".join([*row, "mac", "signature"]), ", ".join("?" * (len(row) + 2))
        db.execute(f"insert into {table} ({columns}) values ({marks})", [*row.values(), *seals])
    db.commit()
    db.close()
    path.chmod(0o600)
    return path


REGION = ("regions", {"fingerprint": "f", "relative": "r", "text": "out0 = relu(in0)"})
MISS = ("misses", {"fingerprint": "m", "target": "t", "value_us": 2.0, "count": 3})
ALL = [REGION, ("entries", entry("kernel", "f")), ("entries", entry("tried", "g", "no_win", b"")), MISS]


def test_an_old_files_kernels_and_verdicts_are_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    older = old_file(tmp_path, ALL)
    before = older.read_bytes()
    for _ in range(2):
        with Store.open(tmp_path, TRUST) as store:
            found = store.find_entry("f", "t")
            assert found is not None and (found.entry_id, found.image) == ("kernel", b"\x7fELF")
            tried = store.find_entry("g", "t")
            assert tried is not None and (tried.status, tried.verdicts, tried.reason) == (
                "unprofitable",
                3,
                "8 tried",
            )
            assert store.get_region("f") is not None and store.misses("t")[0].count == 3
            assert store.stats().unprofitable == 1 and store.path == tmp_path / FILE_NAME
    assert [r.getMessage() for r in caplog.records] == [
        f"4 rows of {older} were carried over; delete it once no older cudal1 uses it"
    ]
    assert older.read_bytes() == before, "an older process goes on using it"


def test_what_an_older_process_adds_later_stays_there(tmp_path: Path) -> None:
    old_file(tmp_path, ALL)
    Store.open(tmp_path, TRUST).close()
    (tmp_path / OLDER_NAME).unlink()
    old_file(tmp_path, [("entries", entry("later", "f"))])
    with Store.open(tmp_path, TRUST) as store:
        assert store.get_entry("later") is None and store.get_entry("kernel") is not None


def test_a_strangers_rows_stay_refused(tmp_path: Path) -> None:
    old_file(tmp_path, ALL, key=b"o" * 32)
    with Store.open(tmp_path, TRUST) as store:
        (found,) = store.entries()
        assert found.is_unverified and (found.entry_id, found.image) == ("kernel", b"")
        assert store.get_region("f") is None and store.misses("t") == []
        assert store.stats().unprofitable == 0


def test_a_row_that_was_changed_is_not_sealed_anew(tmp_path: Path) -> None:
    older = old_file(tmp_path, ALL)
    with sqlite3.connect(older) as db:
        db.execute("update entries set reason = 'of a stranger' where entry_id = 'tried'")
    with Store.open(tmp_path, TRUST) as store:
        assert store.get_entry("tried") is None and store.get_entry("kernel") is not None


def test_signed_kernels_stay_signed(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    sign, public = signer(b"s" * 32)
    old_file(tmp_path, ALL, key=b"o" * 32, sign=sign)
    with Store.open(tmp_path, Trust(KEY, signers=(public,))) as store:
        found = store.find_entry("f", "t")
        assert found is not None and found.image == b"\x7fELF" and not found.quarantined
        assert store.find_entry("g", "t") is None, "its new words bear nobody's signature"


def test_refuted_code_stays_out(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"code of kernel").hexdigest()
    bar = {"fingerprint": "f", "target": "t", "code_digest": digest, "reason": "NaN at 3", "created": 1.0}
    old_file(tmp_path, [*ALL, ("refuted", bar)])
    with Store.open(tmp_path, TRUST) as store:
        assert store.why_refuted("f", "t", "code of kernel") == "NaN at 3"


def test_nothing_comes_back_after_damage(tmp_path: Path) -> None:
    """Else a kernel that was refuted since would."""
    old_file(tmp_path, ALL)
    Store.open(tmp_path, TRUST).close()
    (tmp_path / FILE_NAME).write_bytes(b"this is no database" * 100)
    with Store.open(tmp_path, TRUST) as store:
        assert store.path is not None and store.get_entry("kernel") is None


@pytest.mark.parametrize("content", [b"", b"kernels of last year" * 100])
def test_an_old_file_that_is_damaged_leaves_the_new_one_empty(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / OLDER_NAME).write_bytes(content)
    (tmp_path / OLDER_NAME).chmod(0o600)
    with Store.open(tmp_path, TRUST) as store:
        assert store.path is not None and store.entries() == []
    assert "not all can be read" in caplog.text


def test_a_damaged_row_is_left_out_and_a_view_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old_file(tmp_path, ALL)
    with sqlite3.connect(tmp_path / OLDER_NAME) as db:
        db.execute("alter table misses rename to strict_misses")
        db.execute("create table misses as select * from strict_misses")
        db.execute("update misses set value_us = 'much'")
    with Store.open(tmp_path, TRUST) as store:
        assert store.misses("t") == [] and store.get_entry("kernel") is not None
    (tmp_path / FILE_NAME).unlink()
    with sqlite3.connect(tmp_path / OLDER_NAME) as db:
        db.execute("create view rows as select * from regions")
    with Store.open(tmp_path, TRUST) as store:
        assert store.entries() == [] and "it holds the view or trigger 'rows'" in caplog.text


def test_an_old_file_that_others_may_write_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old_file(tmp_path, ALL).chmod(0o666)
    with Store.open(tmp_path, TRUST) as store:
        assert store.entries() == [] and store.path is not None
    assert "of an older cudal1 is not used: others may write to" in caplog.text


def test_where_nothing_can_be_written_the_old_rows_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As root every place can be written, so the new file's name is taken by a folder."""
    old_file(tmp_path, ALL)
    (tmp_path / FILE_NAME).mkdir()
    with Store.open(tmp_path, TRUST) as store:
        assert store.path is None and store.get_entry("kernel") is not None
    assert "delete it" not in caplog.text
    assert os.listdir(tmp_path / FILE_NAME) == []
