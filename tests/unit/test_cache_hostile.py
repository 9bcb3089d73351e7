"""Files that a stranger made: bundles that are bombs, databases whose tables are programs."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cudal1_cache import BundleError, Entry, RegionText, Store, Trust
from cudal1_cache import bundle as bundles
from cudal1_cache.bundle import read_bundle
from cudal1_cache.carry import warn_once
from cudal1_cache.schema import FILE_NAME

MINE = Trust(b"m" * 32)
REGION = RegionText("f", "r", "out0 = relu(in0)")
KERNEL = Entry("e", "f", "t", "kernel", code="code", image=b"\x7fELF", image_arch="x", speedup=1.5)


@pytest.fixture(autouse=True)
def forget_warnings() -> None:
    warn_once.cache_clear()


# bundles


def write(path: Path, **changed: Any) -> Path:
    """A bundle of one kernel with some of its fields changed; its sha256 is right."""
    entry = {k: v for k, v in asdict(KERNEL).items() if k not in bundles._LEFT_OUT} | changed
    body = json.dumps({"regions": [asdict(REGION)], "entries": [entry]}).encode()
    head = {"format": "cudal1-bundle", "version": 1, "sha256": hashlib.sha256(body).hexdigest()}
    path.write_bytes(json.dumps(head).encode() + b"\n" + body)
    return path


def test_the_bundle_of_these_tests_is_read(tmp_path: Path) -> None:
    assert [e.entry_id for e in read_bundle(write(tmp_path / "b")).entries] == ["e"]


@pytest.mark.parametrize(
    "changed",
    [
        {"versions_json": "["},
        {"versions_json": "[" * 100_000},
        {"versions_json": "[]"},
        {"proof_json": "9" * 5000},
        {"proof_json": "\ud800"},
        {"created": 10**400},
        {"created": float("nan")},
        {"created": -1.0},
        {"speedup": 10**400},
        {"speedup": "2"},
        {"code": [[]]},
        {"quarantined": "no"},
        {"status": "unprofitable"},
        {"entry_id": "x' or 1=1 --"},
        {"entry_id": "\u0435"},  # a letter that looks like e
        {"target": "\u202et"},
        {"fingerprint": "g"},
        {"verdicts": 3},
        {"image": "AAAA"},
    ],
)
def test_a_field_that_no_kernel_has_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(BundleError):
        read_bundle(write(tmp_path / "b", **changed))


@pytest.mark.parametrize(
    "data", [b"[" * (4 << 20), b'{"a":' * (1 << 20), b"9" * (4 << 20), b"\n" * (4 << 20), b"\xff\xfe"]
)
def test_a_bomb_is_refused_at_once(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "b"
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(BundleError):
        read_bundle(path)
    assert time.process_time() - start < 0.5


def test_a_bundle_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BYTES", 1 << 20)
    with pytest.raises(BundleError, match="over 1 MB"):
        read_bundle(Path("/dev/zero"))


# databases


def fill(directory: Path) -> None:
    with Store.open(directory, MINE) as store:
        store.add_regions(REGION)
        store.put_entry(KERNEL)


HOSTILE = {
    "a refutation that undoes itself": "create trigger x after insert on refuted begin delete from refuted; end",
    "a kernel that comes back": "create trigger x after update on entries begin select 1; end",
    "nothing is refuted": "drop table refuted; create view refuted as select '' as fingerprint, '' as target, "
    "'' as code_digest, '' as reason, 0.0 as created, '' as mac, '' as signature where 0",
    "misses without end": "drop table misses; create view misses as with recursive c(x) as (select 1 union all "
    "select x + 1 from c) select 'f' || x as fingerprint, 't' as target, 1.0 as value_us, 1 as count, '' as mac, "
    "'' as signature from c",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_database_that_computes_is_put_aside(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.executescript(HOSTILE[name])
    raw.close()
    with Store.open(tmp_path, MINE) as store:
        assert store.get_entry("e") is None and store.misses("t") == []
        store.put_entry(KERNEL)
        store.refute("e", "wrong")
        assert store.why_refuted("f", "t", "code") == "wrong"
    assert "holds the view or trigger" in caplog.text
    assert len(list(tmp_path.glob("*.damaged-*"))) >= 1


def test_another_users_database_that_computes_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.executescript(HOSTILE["misses without end"])
    raw.close()
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    with Store.open(tmp_path, Trust(MINE.key, (b"\x01" * 32,))) as store:
        assert store.path is None and store.misses("t") == [] and store.entries() == []
    assert "holds the view or trigger" in caplog.text and "starting empty" in caplog.text
