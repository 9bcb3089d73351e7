"""Bad places: damaged files, kills, two processes, no permission, no room. Nothing is lost and nothing raises."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tmpfs import run_on_tmpfs

from cudal1_cache import Attempt, CacheBusy, CacheError, Entry, GraphPlan, RegionText, Store, Trust, new_trust
from cudal1_cache.carry import warn_once
from cudal1_cache.database import Database, _move_aside
from cudal1_cache.schema import FILE_NAME

NOBODY = 65534
TRUST = Trust(b"k" * 32)


@pytest.fixture(autouse=True)
def forget_warnings() -> None:
    warn_once.cache_clear()


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "cudal1_cache")
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("cudal1_cache")]


def attempt(number: int, who: str = "w", size: int = 2000) -> Attempt:
    return Attempt(who, "t", f"{number:064}", "g", "m", "p", "", "", f"{number}" + "x" * size, "accepted", "", 1.0)


def entry(name: str, image: bytes = b"image") -> Entry:
    return Entry(name, "f", "t", "kernel", image=image, speedup=1.5)


# damage


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 8000])
def test_damaged_file_is_kept_aside(tmp_path: Path, content: bytes, warned: Callable[[], list[str]]) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with Store.open(tmp_path, TRUST) as store:
        store.put_entry(entry("new"))
        assert store.get_entry("new") == entry_as_stored(store, "new")
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes() == content
    assert len(warned()) == 1
    assert "is damaged" in warned()[0]
    assert aside.name in warned()[0]
    with Store.open(tmp_path, TRUST) as store:
        assert store.get_entry("new") is not None


def entry_as_stored(store: Store, name: str) -> Entry:
    (found,) = [e for e in store.entries() if e.entry_id == name]
    return found


def test_damage_inside_a_file_is_met_on_use(tmp_path: Path, warned: Callable[[], list[str]]) -> None:
    with Store.open(tmp_path, TRUST) as store:
        store.add_attempts(attempt(i) for i in range(200))
    _damage_pages(tmp_path / FILE_NAME)
    with Store.open(tmp_path, TRUST) as store:
        assert store.attempts("w", "t") == []
        store.add_attempts([attempt(1)])
        assert len(store.attempts("w", "t")) == 1
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1
    assert len(warned()) == 1


def test_two_stores_that_meet_the_same_damage_move_it_once(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path, TRUST) as writer,
        Store.open(tmp_path, TRUST) as first,
        Store.open(tmp_path, TRUST) as second,
    ):
        writer.add_attempts(attempt(i) for i in range(200))
        writer.database.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        _damage_pages(tmp_path / FILE_NAME)
        assert first.attempts("w", "t") == []
        first.put_entry(entry("b"))
        for store in (second, writer):
            assert store.get_entry("b") is not None
    moved = [path.name for path in tmp_path.glob("*.damaged-*")]
    assert len([name for name in moved if not name.endswith(("-wal", "-shm"))]) == 1


def test_a_file_that_another_process_has_replaced_is_not_moved(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"new and whole")
    _move_aside(path, path.stat().st_ino + 1, "damaged when it was looked at")
    assert path.read_bytes() == b"new and whole"


def _damage_pages(path: Path) -> None:
    """All but the first, so that the schema stays whole."""
    with open(path, "r+b") as file:
        pages = path.stat().st_size // 4096
        file.seek(4096)
        file.write(b"\xa5" * 4096 * (pages - 1))


def test_a_file_without_our_tables_is_a_cache_error(tmp_path: Path) -> None:
    with Store.open(tmp_path, TRUST) as store:
        store.database.write(lambda db: db.execute("DROP TABLE entries"))
        with pytest.raises(CacheError, match="no such table: entries"):
            store.get_entry("a")


def test_torn_log_keeps_what_was_checkpointed(tmp_path: Path) -> None:
    holder = Store.open(tmp_path, TRUST)
    holder.put_entry(entry("kept"))
    holder.database.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    holder.put_entry(entry("torn"))
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / FILE_NAME).write_bytes((tmp_path / FILE_NAME).read_bytes())
    log = (tmp_path / f"{FILE_NAME}-wal").read_bytes()
    assert len(log) > 1000
    (copy / f"{FILE_NAME}-wal").write_bytes(log[: len(log) // 2])
    holder.close()
    with Store.open(copy, TRUST) as store:
        assert store.get_entry("kept") is not None
        assert store.get_entry("torn") is None


def test_a_removed_file_is_made_again(tmp_path: Path) -> None:
    with Store.open(tmp_path, TRUST) as store:
        store.put_entry(entry("a"))
        for path in tmp_path.glob(f"{FILE_NAME}*"):
            path.unlink()
        store.put_entry(entry("b"))
        assert store.get_entry("a") is None
    with Store.open(tmp_path, TRUST) as later:
        assert later.get_entry("b") is not None


# processes


def _write_many(directory: str, who: str, count: int, barrier: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    with Store.open(Path(directory), TRUST) as store:
        for i in range(count):
            store.add_attempts([attempt(i, who)])
            store.record_miss("shared", "t", float(i))
            store.put_plan(GraphPlan("g", "t", f'{{"f":"{who}{i}"}}', choice="all_kernels"))


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    names = ("a", "b", "c")
    workers = [context.Process(target=_write_many, args=(str(tmp_path), n, 60, barrier)) for n in names]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [w.exitcode for w in workers] == [0, 0, 0]
    with Store.open(tmp_path, TRUST) as store:
        assert [len(store.attempts(n, "t")) for n in names] == [60, 60, 60]
        (miss,) = store.misses("t")
        assert (miss.count, miss.value_us) == (180, 59.0)
        assert store.get_plan("g", "t") is not None


KILLED = """
import sys
from pathlib import Path
from cudal1_cache import Entry, Store, Trust
from tests_attempt import attempt
store = Store.open(Path(sys.argv[1]), Trust(b"k" * 32))
i = 0
while True:
    store.add_attempts([attempt(i, "pair", 9000), attempt(i, "pair", 9000)])
    store.put_entry(Entry("e", "f", "t", "kernel", image=str(i).encode() * 20000, speedup=1.0))
    i += 1
    if i == 5:
        print("writing", flush=True)
"""


def test_a_kill_in_the_middle_of_writes_corrupts_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    script = KILLED.replace("from tests_attempt import attempt", _source_of_attempt())
    for delay_s in (0.0, 0.013, 0.031, 0.057):
        child = subprocess.Popen([sys.executable, "-c", script, str(directory)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        with Store.open(directory, TRUST) as store:
            assert store.database.read(lambda db: db.execute("PRAGMA integrity_check").fetchone()) == ("ok",)
            assert len(store.attempts("pair", "t")) % 2 == 0  # a transaction is there whole or not at all
            assert store.get_entry("e") is not None
    assert list(directory.glob("*.damaged-*")) == []


def _source_of_attempt() -> str:
    import inspect

    return f"from cudal1_cache import Attempt\n{inspect.getsource(attempt)}"


def test_a_file_is_made_by_many_at_once(tmp_path: Path) -> None:
    for i in range(10):
        barrier = threading.Barrier(8)

        def make(directory: Path, barrier: threading.Barrier) -> None:
            barrier.wait()
            with Store.open(directory, TRUST) as store:
                store.record_miss("f", "t", 1.0)
                assert store.path is not None

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(make, [tmp_path / str(i)] * 8, [barrier] * 8))
        with Store.open(tmp_path / str(i), TRUST) as store:
            assert store.misses("t")[0].count == 8


def test_a_forked_child_opens_its_own_connection(tmp_path: Path) -> None:
    with Store.open(tmp_path, TRUST) as store:
        store.put_entry(entry("parent"))
        mine = store.database.read(id)
        child = os.fork()
        if child == 0:
            found = store.get_entry("parent")
            store.put_entry(entry("child"))
            os._exit(0 if found is not None and store.database.read(id) != mine else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.get_entry("child") is not None


def test_threads_share_a_store(tmp_path: Path) -> None:
    with Store.open(tmp_path, TRUST) as store, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: store.add_attempts([attempt(i)]), range(80)))
        assert len(store.attempts("w", "t")) == 80


def test_a_lock_held_too_long_is_said_so(tmp_path: Path) -> None:
    Store.open(tmp_path, TRUST).close()
    blocker = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    store = Store(Database(tmp_path / FILE_NAME, busy_timeout_s=0.05), TRUST)
    with pytest.raises(CacheBusy, match="locked by another process"):
        store.put_entry(entry("a"))
    assert store.get_entry("a") is None  # readers do not wait
    blocker.execute("ROLLBACK")
    blocker.close()
    store.put_entry(entry("a"))
    assert store.get_entry("a") is not None
    store.close()


def test_opening_waits_for_whoever_changes_the_journal(tmp_path: Path) -> None:
    blocker = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, check_same_thread=False)
    blocker.execute("CREATE TABLE other (x)")
    blocker.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, lambda: blocker.execute("ROLLBACK"))
    release.start()
    store = Store(Database(tmp_path / FILE_NAME, busy_timeout_s=0.01), TRUST)
    release.join()
    blocker.close()
    assert store.path is not None
    store.put_entry(entry("a"))
    assert store.get_entry("a") is not None


# no permission


def test_a_place_that_cannot_be_made_is_replaced_by_memory(
    tmp_path: Path, warned: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").write_text("not a directory")
    for _ in range(2):
        with Store.open(tmp_path / "file" / "cache", TRUST) as store:
            store.put_entry(entry("a"))
            assert store.get_entry("a") is not None
            assert store.path is None
    assert len(warned()) == 1
    assert "cannot be written" in warned()[0]


def test_a_database_file_that_is_a_directory(tmp_path: Path, warned: Callable[[], list[str]]) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with Store.open(tmp_path, TRUST) as store:
        store.put_entry(entry("a"))
        assert store.get_entry("a") is not None
    assert len(warned()) == 1


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory whose parents every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory
        directory.chmod(0o755)


def _as_nobody(run: Callable[[], bool]) -> None:
    """Runs in a forked child without root's power to write anywhere."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setegid(NOBODY)
                os.seteuid(NOBODY)
            code = 0 if run() else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _give_to_nobody(directory: Path) -> None:
    """Where `_as_nobody` will be one."""
    if os.getuid() == 0:
        for path in (directory, *directory.iterdir()):
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("log_left_behind", [False, True])
def test_a_read_only_directory_still_answers(open_directory: Path, log_left_behind: bool) -> None:
    writer = Store.open(open_directory, TRUST)
    writer.add_regions(RegionText("f", "r", "text"))
    writer.put_entry(entry("shipped"))
    writer.put_plan(GraphPlan("g", "t", "{}"))
    if log_left_behind:
        writer.database.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    else:
        writer.close()
    for path in open_directory.iterdir():
        path.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
    open_directory.chmod(0o555)
    _give_to_nobody(open_directory)

    def run() -> bool:
        with Store.open(open_directory, TRUST) as store:
            store.put_entry(entry("new"))
            return all(
                (
                    store.get_entry("shipped") is not None,
                    store.get_region("f") is not None,
                    store.get_plan("g", "t") is not None,
                    store.get_entry("new") is not None,
                    store.path is None,
                )
            )

    _as_nobody(run)
    writer.close()
    assert list(open_directory.glob("*.damaged-*")) == []


def test_a_damaged_file_in_a_read_only_directory(open_directory: Path) -> None:
    (open_directory / FILE_NAME).write_bytes(b"no database" * 1000)
    open_directory.chmod(0o555)
    _give_to_nobody(open_directory)

    def run() -> bool:
        with Store.open(open_directory, TRUST) as store:
            store.put_entry(entry("new"))
            return store.get_entry("new") is not None

    _as_nobody(run)
    assert (open_directory / FILE_NAME).read_bytes() == b"no database" * 1000


@pytest.mark.parametrize("mode", [0o777, 0o775])
@pytest.mark.parametrize("name", ["", FILE_NAME])
def test_what_others_may_write_is_not_read(
    open_directory: Path, name: str, mode: int, warned: Callable[[], list[str]]
) -> None:
    """Directory or database: what lies there may be anybody's, and would be loaded as native code."""
    with Store.open(open_directory, TRUST) as store:
        store.put_entry(entry("anybody's"))
    place = open_directory / name
    before = stat.S_IMODE(place.stat().st_mode)
    place.chmod(mode)
    with Store.open(open_directory, TRUST) as store:
        assert store.get_entry("anybody's") is None
        store.put_entry(entry("new"))
        assert store.get_entry("new") is not None and store.path is None
        assert "cudal1 cache export" in store.database.fault
    assert f"others may write to {place} (mode {mode:o}): chmod go-w it" in warned()[0]
    place.chmod(before)
    with Store.open(open_directory, TRUST) as store:
        assert store.get_entry("anybody's") is not None and store.get_entry("new") is None


@pytest.mark.parametrize("name", ["", FILE_NAME])
def test_what_another_user_owns_is_not_read(
    open_directory: Path, name: str, warned: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(open_directory, TRUST) as store:
        store.put_entry(entry("another's"))
    _own(open_directory / name, monkeypatch)
    with Store.open(open_directory, TRUST) as store:
        assert store.get_entry("another's") is None and store.path is None
    (said,) = warned()
    assert f"{open_directory / name} belongs to user" in said and "set CUDAL1_CACHE_DIR to one of yours" in said


def _own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a path another user's."""
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY)


def test_the_database_is_this_users_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with Store.open(tmp_path / "cache", TRUST) as store:
            store.put_entry(entry("a"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache").iterdir()}
    finally:
        os.umask(old)
    assert set(modes) == {FILE_NAME, f"{FILE_NAME}-wal", f"{FILE_NAME}-shm"} and set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_without_a_key_nothing_is_loaded_and_nothing_written(
    tmp_path: Path, warned: Callable[[], list[str]]
) -> None:
    with Store.open(tmp_path, TRUST) as store:
        store.put_entry(entry("mine"))
    with Store.open(tmp_path, new_trust(fault="no key: disk full")) as store:
        assert store.get_entry("mine") is None and store.path is None
        store.put_entry(entry("new"))
    assert len(warned()) == 1 and "is not used (no key: disk full)" in warned()[0]
    with Store.open(tmp_path, TRUST) as store:
        assert store.get_entry("mine") is not None and store.get_entry("new") is None


# no room


def test_a_full_disk_keeps_lookups_and_new_rows(tmp_path: Path, warned: Callable[[], list[str]]) -> None:
    store = Store.open(tmp_path, TRUST)
    store.put_entry(entry("before"))
    _limit_to_present_size(store)
    _fill_until_full(store)
    assert store.path is None
    assert store.get_entry("before") is not None
    assert store.get_entry("beyond") is not None
    assert len(warned()) == 1
    assert "full" in warned()[0]
    store.close()
    with Store.open(tmp_path, TRUST) as later:  # once there is room again, all that was on disk is there
        assert later.get_entry("before") is not None
        later.put_entry(entry("after"))
        assert later.path is not None


def _limit_to_present_size(store: Store) -> None:
    pages = store.database.read(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    store.database.read(lambda db: db.execute(f"PRAGMA max_page_count={pages + 2}").fetchall())


def _fill_until_full(store: Store) -> None:
    store.put_entry(entry("beyond", b"x" * 100_000))


def test_a_full_file_system(tmp_path: Path) -> None:
    """A real one, where this user may mount a tmpfs in a namespace of its own."""
    done = run_on_tmpfs(tmp_path, "400k", FULL_TMPFS, str(tmp_path))
    assert done.stderr.count("cannot be written") == 1
    assert done.stdout.split() == ["memory", "True", "True"]


FULL_TMPFS = """
import sys
from pathlib import Path
from cudal1_cache import Entry, Store, Trust
store = Store.open(Path(sys.argv[1]), Trust(b"k" * 32))
for i in range(40):
    store.put_entry(Entry(str(i), "f", "t", "kernel", image=b"x" * 20000))
found = [store.get_entry(name) is not None for name in ("0", "39")]
print("file" if store.path else "memory", *found)
"""
