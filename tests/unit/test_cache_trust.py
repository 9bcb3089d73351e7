"""Whose rows count: exchanged, forged, moved and foreign ones are not used; what a named key signed is."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cudal1_cache import (
    ACCEPTED,
    Attempt,
    CacheError,
    Entry,
    GraphPlan,
    Miss,
    RegionText,
    Store,
    Trust,
    user_trust,
)
from cudal1_cache.bundle import Postponed, unverified, verify_entries
from cudal1_cache.carry import warn_once
from cudal1_cache.codec import KINDS, TABLES, Row, canonical, to_columns
from cudal1_cache.schema import FILE_NAME
from cudal1_cache.trust import load_key, new_trust, signer

MINE, OTHERS = Trust(b"m" * 32), Trust(b"o" * 32)
KERNEL = Entry("e", "f", "t", "kernel", code="code", image=b"\x7fELF", image_arch="x", speedup=1.5)


@pytest.fixture(autouse=True)
def forget_warnings() -> None:
    warn_once.cache_clear()


def fill(directory: Path, trust: Trust) -> None:
    with Store.open(directory, trust) as store:
        store.add_regions(RegionText("f", "r", "out0 = relu(in0)"))
        store.add_regions(RegionText("g", "r", "out0 = relu(in0) of another size"))
        store.add_attempts([Attempt("g", "t", "c", "g", "m", "p", "", "", "code", ACCEPTED, "", 2.0, id="a")])
        store.put_entry(KERNEL)
        store.put_entry(Entry("n", "h", "t", "unprofitable"))
        store.put_plan(GraphPlan("g", "t", '{"f":"e"}', choice="all_kernels"))
        store.record_miss("f", "t", 3.0)


def alter(directory: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(directory / FILE_NAME) as raw:
        assert raw.execute(statement, values).rowcount == 1
    raw.close()


def is_stranger(found: Entry | None) -> bool:
    return found is not None and found.is_unverified and not found.image


# rows that are not this user's


def test_another_users_rows_are_imports_or_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, OTHERS)
    with Store.open(tmp_path, MINE) as store:
        assert store.find_entry("f", "t") is None and store.find_entry("h", "t") is None
        assert is_stranger(store.get_entry("e"))
        assert [e.entry_id for e in unverified(store)] == ["e"]
        assert store.attempts("g", "t") == [] and store.best_relatives(RegionText("f", "r", ""), "t") == []
        assert store.get_plan("g", "t") is None and store.misses("t") == [] and store.get_region("f") is None
        stats = store.stats("t")
        assert (stats.kernels, stats.unprofitable, stats.quarantined) == (0, 0, 1)
    said = [r.getMessage() for r in caplog.records if "this user's MAC" in r.getMessage()]
    assert len(said) == 5 and "`cudal1 cache verify`" in said[0]  # one for each table


def test_a_strangers_kernel_waits_for_the_judge_with_its_region(tmp_path: Path) -> None:
    fill(tmp_path, OTHERS)
    with Store.open(tmp_path, MINE) as store:
        asked: list[RegionText] = []

        def verify(region: RegionText, entry: Entry) -> Postponed:
            asked.append(region)
            return Postponed("no GPU here")

        verify_entries(store, unverified(store), verify)
        assert [r.text for r in asked] == ["out0 = relu(in0)"] and store.get_region("f") is None
        store.quarantine("e", "refused: wrong")
        found = store.get_entry("e")
        assert found is not None and found.reason == "refused: wrong" and not found.image


def test_an_import_whose_region_is_lost_waits(tmp_path: Path) -> None:
    with Store.open(tmp_path, OTHERS) as store:
        store.put_entry(KERNEL)
    with Store.open(tmp_path, MINE) as store:
        (outcome,) = verify_entries(store, unverified(store), lambda region, entry: Postponed("never asked"))
    assert isinstance(outcome.verification, Postponed) and "region's text" in outcome.verification.reason


@pytest.mark.parametrize(
    ("column", "value"),
    [("image", b"\x7fELF of another"), ("code", "other"), ("speedup", 9.0), ("numerics", "f32_split")],
)
def test_an_exchanged_column_is_not_used(tmp_path: Path, column: str, value: object) -> None:
    fill(tmp_path, MINE)
    alter(tmp_path, f"update entries set {column} = ? where entry_id = 'e'", value)
    with Store.open(tmp_path, MINE) as store:
        assert store.find_entry("f", "t") is None and is_stranger(store.get_entry("e"))


ROWS = (RegionText("f", "r", "x"), Attempt(*"ftcgmpadcsr"), KERNEL, GraphPlan("g", "t", "{}"), Miss("f", "t"))


@pytest.mark.parametrize(("row", "name"), [(row, name) for row in ROWS for name in KINDS[type(row)]])
def test_a_seal_is_over_every_column(row: Row, name: str) -> None:
    columns = to_columns(row)
    value = columns[name]
    other = b"x" if isinstance(value, bytes) else "other" if isinstance(value, str) else 7.5
    assert canonical(type(row), columns | {name: other}) != canonical(type(row), columns)


def test_a_seal_is_of_its_table() -> None:
    alike = {name: "x" for cls in TABLES for name in KINDS[cls]}
    assert len({canonical(cls, alike) for cls in TABLES}) == len(TABLES)


def test_a_seal_that_is_recomputed_without_the_key_is_none(tmp_path: Path) -> None:
    """As anybody could with the checksums that rows once had."""
    fill(tmp_path, MINE)
    forged = replace(KERNEL, code="other")
    mac = OTHERS.mac(canonical(Entry, to_columns(forged)))
    alter(tmp_path, "update entries set code = 'other', mac = ? where entry_id = 'e'", mac)
    with Store.open(tmp_path, MINE) as store:
        assert is_stranger(store.get_entry("e"))


def test_a_seal_holds_for_its_row_alone(tmp_path: Path) -> None:
    """Row swapping: one kernel's row under another's id, or lifted out of quarantine."""
    fill(tmp_path, MINE)
    with Store.open(tmp_path, MINE) as store:
        store.put_entry(replace(KERNEL, entry_id="bad", quarantined=True, reason="wrong"))
    alter(tmp_path, "update entries set quarantined = 0 where entry_id = 'bad'")
    alter(tmp_path, "update entries set entry_id = 'x' where entry_id = 'e'")
    with Store.open(tmp_path, MINE) as store:
        assert is_stranger(store.get_entry("bad")) and is_stranger(store.get_entry("x"))


@pytest.mark.parametrize("table", ["attempts", "plans", "misses"])
def test_an_altered_row_is_absent(tmp_path: Path, table: str) -> None:
    fill(tmp_path, MINE)
    column = {"attempts": "speedup", "plans": "ratio", "misses": "count"}[table]
    alter(tmp_path, f"update {table} set {column} = 77")
    with Store.open(tmp_path, MINE) as store:
        plan = store.get_plan("g", "t")
        found = {"attempts": store.attempts("g", "t"), "plans": plan, "misses": store.misses("t")}
        assert not found.pop(table) and all(found.values())


def test_a_row_written_again_is_this_users(tmp_path: Path) -> None:
    fill(tmp_path, OTHERS)
    with Store.open(tmp_path, MINE) as store:
        store.put_entry(KERNEL)
        store.record_miss("f", "t", 1.0)
        assert store.find_entry("f", "t") == KERNEL
        assert [m.count for m in store.misses("t")] == [1]


# the key


def test_the_key_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "config" / "cudal1" / "key"
    old = os.umask(0)
    try:
        key = load_key(path)
    finally:
        os.umask(old)
    assert len(key) == 32 and load_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["key"]
    assert repr(key) not in repr(user_trust(path))


def _load(path: str, barrier: Any, answers: Any) -> None:
    barrier.wait()
    answers.put(load_key(Path(path)))


def test_processes_that_make_the_key_at_once_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for i in range(8):
        barrier, answers = context.Barrier(4), context.Queue()
        place = str(tmp_path / str(i) / "key")
        workers = [context.Process(target=_load, args=(place, barrier, answers)) for _ in range(4)]
        for worker in workers:
            worker.start()
        found = {answers.get(timeout=30) for _ in workers}
        for worker in workers:
            worker.join(30)
        assert found == {load_key(Path(place))}


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:20])


def _empty(path: Path) -> None:
    path.write_text("")


def _show(path: Path) -> None:
    path.chmod(0o644)


def _open(path: Path) -> None:
    path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("damage", "says"),
    [(_cut, "is no key of 64"), (_empty, "is no key of 64"), (_show, "chmod 600"), (_open, "chmod go-w")],
)
def test_a_key_that_cannot_be_relied_upon_is_none(
    tmp_path: Path, damage: Callable[[Path], None], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config" / "key"
    mine = user_trust(path)
    fill(tmp_path / "cache", mine)
    damage(path)
    trust = user_trust(path)
    assert says in trust.fault and trust.key != mine.key
    with Store.open(tmp_path / "cache", trust) as store:
        assert store.path is None and store.get_entry("e") is None
    assert len([r for r in caplog.records if says in r.getMessage()]) == 1


def test_a_key_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "key cannot be had" in user_trust(tmp_path / "file" / "key").fault


# signatures


@pytest.fixture
def signed(tmp_path: Path) -> tuple[Path, bytes]:
    """A cache that OTHERS has signed and now only reads, and the public key."""
    place = tmp_path / "shared"
    fill(place, OTHERS)
    make, public = signer(b"s" * 32)
    with Store.open(place, OTHERS) as store:
        assert store.sign(make) == 5  # two regions, two entries, a plan
    for path in place.iterdir():
        path.chmod(0o444)
    place.chmod(0o555)
    return place, public


def test_what_a_named_key_signed_is_used(signed: tuple[Path, bytes]) -> None:
    place, public = signed
    with Store.open(place, replace(MINE, signers=(b"\x01" * 32, public))) as store:
        assert store.find_entry("f", "t") == KERNEL
        assert store.get_plan("g", "t") is not None and store.get_region("f") is not None
        found = store.find_entry("h", "t")
        assert found is not None and found.status == "unprofitable"
        assert store.attempts("g", "t") == []  # never signed


def test_what_another_key_signed_is_not(signed: tuple[Path, bytes]) -> None:
    place, _ = signed
    _, another = signer(b"t" * 32)
    for signers in ((), (another,)):
        with Store.open(place, replace(MINE, signers=signers)) as store:
            assert store.find_entry("f", "t") is None and store.get_plan("g", "t") is None
            assert is_stranger(store.get_entry("e"))


def test_a_signature_holds_for_its_row_alone(tmp_path: Path) -> None:
    fill(tmp_path, OTHERS)
    make, public = signer(b"s" * 32)
    with Store.open(tmp_path, OTHERS) as store:
        store.put_entry(replace(KERNEL, entry_id="slow", image=b"slow", speedup=1.1))
        store.sign(make)
        store.put_entry(replace(KERNEL, entry_id="later"))
    alter(tmp_path, "update entries set image = ? where entry_id = 'slow'", b"\x7fELF")
    stolen = "(select signature from entries where entry_id = 'e')"
    alter(tmp_path, f"update entries set signature = {stolen} where entry_id = 'later'")
    with Store.open(tmp_path, replace(MINE, signers=(public,))) as store:
        assert store.get_entry("e") == KERNEL
        assert is_stranger(store.get_entry("slow")) and is_stranger(store.get_entry("later"))


def test_a_row_that_is_written_again_has_lost_its_signature(tmp_path: Path) -> None:
    fill(tmp_path, OTHERS)
    make, public = signer(b"s" * 32)
    with Store.open(tmp_path, OTHERS) as store:
        store.sign(make)
        store.quarantine("e", "wrong")
    with Store.open(tmp_path, replace(MINE, signers=(public,))) as store:
        assert is_stranger(store.get_entry("e"))


def test_a_strangers_row_is_not_signed(tmp_path: Path) -> None:
    fill(tmp_path, OTHERS)
    with Store.open(tmp_path, MINE) as store:
        assert store.sign(signer(b"s" * 32)[0]) == 0


READER = """
import os, sys
from dataclasses import replace
from pathlib import Path
from cudal1_cache import Store, Trust
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
else:
    os.geteuid = lambda: 65534
trust = Trust(b"m" * 32, tuple(map(bytes.fromhex, sys.argv[2:])))
with Store.open(Path(sys.argv[1]), trust) as store:
    entry = store.find_entry("f", "t")
    store.record_miss("f", "t", 1.0)
    print(entry and entry.entry_id, store.path, len(store.misses("t")))
"""


def test_another_users_read_only_cache(signed: tuple[Path, bytes], tmp_path: Path) -> None:
    """Read by nobody with the right key, with another, with none."""
    place, public = signed
    for path in (place, *place.parents):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    answers = []
    for keys in ([public.hex()], [signer(b"t" * 32)[1].hex()], []):
        command = [sys.executable, "-c", READER, str(place), *keys]
        answers.append(subprocess.run(command, env=environment, capture_output=True, text=True))
    assert [a.stdout.split() for a in answers] == [["e", "None", "1"], *[["None", "None", "1"]] * 2]
    assert f"belongs to user {os.getuid()}, this is user 65534" in answers[2].stderr


def test_signatures_without_the_package(
    signed: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, public = signed
    for name in ("cryptography.exceptions", "cryptography.hazmat.primitives.asymmetric.ed25519"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(CacheError, match="cudal1\\[signing\\]"):
        signer(b"s" * 32)
    with Store.open(place, replace(MINE, signers=(public,))) as store:
        assert store.find_entry("f", "t") is None
    assert "no signature can be checked" in caplog.text


def test_what_is_no_public_key_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trust = user_trust(tmp_path / "key", ["xyz", "00", "ab" * 32])
    assert trust.signers == (b"\xab" * 32,) and not trust.fault
    assert "'xyz' is no public key of 64 hex digits" in caplog.text


# refuted code


def spelled(code: str) -> str:
    """Equal for codes that differ in blanks."""
    return "".join(code.split())


def test_refuted_code_is_barred_in_any_spelling_and_under_any_id() -> None:
    with Store.memory(spelled) as store:
        store.put_entry(KERNEL)
        store.put_entry(replace(KERNEL, entry_id="twin", code="co de"))
        store.add_attempts([Attempt("f", "t", "c", "g", "m", "p", "", "", "c ode", ACCEPTED, "", 2.0)])
        store.refute("e", "out0[3] is 7")
        store.put_entry(replace(KERNEL, entry_id="later", code="c o d e"))
        store.put_entry(replace(KERNEL, entry_id="honest", code="other"))
        assert {e.entry_id for e in store.entries() if not e.quarantined} == {"honest"}
        assert {e.reason for e in store.entries() if e.quarantined} == {"refuted: out0[3] is 7"}
        assert [a.stage for a in store.attempts("f", "t")] == ["verify"]
        assert store.why_refuted("f", "t", "cod e") == "out0[3] is 7"
        assert store.why_refuted("f", "another", "code") is None and store.why_refuted("f2", "t", "code") is None


def test_only_the_command_lifts_a_refutation() -> None:
    with Store.memory(spelled) as store:
        store.put_entry(KERNEL)
        store.put_entry(replace(KERNEL, entry_id="twin", code="co de"))
        with pytest.raises(KeyError, match="is not refuted"):
            store.unrefute("e")
        store.refute("e", "wrong")
        assert store.unrefute("twin") == 2
        assert {e.entry_id for e in unverified(store)} == {"e", "twin"}
        store.put_entry(KERNEL)  # the judge accepted it anew
        assert store.find_entry("f", "t") == KERNEL
        with pytest.raises(KeyError, match="nobody"):
            store.unrefute("nobody")


def test_a_refutation_outlives_its_rows_and_the_key(tmp_path: Path) -> None:
    """An altered, removed or foreign row cannot lift it."""
    fill(tmp_path, MINE)
    with Store.open(tmp_path, MINE) as store:
        store.refute("e", "wrong")
    alter(tmp_path, "update entries set quarantined = 0, reason = '' where entry_id = 'e'")
    alter(tmp_path, "update refuted set mac = 'none'")
    with Store.open(tmp_path, OTHERS) as store:
        assert is_stranger(store.get_entry("e"))
        store.put_entry(KERNEL)
        assert store.find_entry("f", "t") is None
    alter(tmp_path, "delete from entries where entry_id = 'e'")
    with Store.open(tmp_path, MINE) as store:
        store.put_entry(KERNEL)
        found = store.get_entry("e")
        assert found is not None and found.reason == "refuted: wrong"


def test_a_memory_store_has_a_key_of_its_own() -> None:
    assert new_trust().key != new_trust().key
