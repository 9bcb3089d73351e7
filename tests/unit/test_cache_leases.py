"""Leases among real processes: one holder, whatever becomes of it; and none where there are no locks."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cudal1_cache import leases as lease_module
from cudal1_cache.carry import warn_once
from cudal1_cache.leases import Held, Lease, Leases

HOLDER = """
import os, sys, time
from pathlib import Path
from cudal1_cache.leases import Lease, Leases
found = Leases(Path(sys.argv[1])).take("region", "gpu")
if sys.argv[2:] == ["fork"] and not os.fork():
    print(os.getpid(), flush=True)  # by the fork: before it runs it has its copies
elif not sys.argv[2:]:
    print(type(found).__name__, flush=True)
time.sleep(60)
"""
# each holds the region now and then, and says so to all by a file that nobody else may have made
RIVAL = """
import os, sys
from pathlib import Path
from cudal1_cache.leases import Lease, Leases
leases, mark = Leases(Path(sys.argv[1])), Path(sys.argv[1], "mark")
got = 0
while got < 300:
    lease = leases.take("region", "gpu")
    if isinstance(lease, Lease):
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        mark.unlink()
        lease.release()
        got += 1
"""


@contextmanager
def holder(folder: Path, *how: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-c", HOLDER, str(folder), *how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def files(folder: Path) -> list[Path]:
    return list((folder / lease_module.FOLDER).iterdir())


def test_one_holds_a_region_and_another_one_learns_who(tmp_path: Path) -> None:
    mine, another = Leases(tmp_path), Leases(tmp_path)
    lease = mine.take("region", "gpu")
    assert isinstance(lease, Lease)
    assert another.take("region", "gpu") == Held(os.getpid())
    others = [another.take("region", "host"), another.take("other", "gpu")]
    assert all(isinstance(other, Lease) for other in others)
    assert len(files(tmp_path)) == 3
    lease.release()
    again = another.take("region", "gpu")
    lease.release()  # not the other one's
    assert isinstance(again, Lease) and isinstance(mine.take("region", "gpu"), Held)
    for other in (again, *others):
        assert isinstance(other, Lease)
        other.release()
    assert files(tmp_path) == []


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, said):
        assert said == "Lease"
        assert Leases(tmp_path).take("region", "gpu") == Held(process.pid)
        process.kill()
        process.wait()
        assert isinstance(Leases(tmp_path).take("region", "gpu"), Lease)


def test_a_fork_of_a_killed_process_holds_nothing_either(tmp_path: Path) -> None:
    with holder(tmp_path, "fork") as (process, fork):
        try:
            assert isinstance(Leases(tmp_path).take("region", "gpu"), Held)
            process.kill()
            process.wait()
            assert isinstance(Leases(tmp_path).take("region", "gpu"), Lease)
            os.kill(int(fork), 0)
        finally:
            os.kill(int(fork), signal.SIGKILL)


def test_there_are_never_two_holders_while_files_come_and_go(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RIVAL, str(tmp_path)]
    rivals = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [rival.communicate(timeout=120)[1] for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0, 0, 0], said
    assert files(tmp_path) == []


def test_what_killed_processes_left_is_swept_up_after_a_day(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        (path,) = files(tmp_path)
        long_ago = time.time() - 2 * lease_module.KEPT_S
        os.utime(path, (long_ago, long_ago))
        Leases(tmp_path)
        assert files(tmp_path) == [path]  # somebody holds it
        process.kill()
        process.wait()
        Leases(tmp_path)
        assert files(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EACCES])
def test_without_locks_everybody_works_and_one_line_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(number, os.strerror(number))

    warn_once.cache_clear()
    monkeypatch.setattr(lease_module, "try_lock", refuse)
    leases = Leases(tmp_path)
    found = [leases.take(name, "gpu") for name in ("a", "b", "a")]
    assert all(isinstance(lease, Lease) for lease in found)
    for lease in found:
        assert isinstance(lease, Lease)
        lease.release()
    (said,) = caplog.records
    assert "other processes may write the same kernels" in said.getMessage() and said.levelno == logging.WARNING


def test_a_cache_in_memory_has_no_neighbours(caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(Leases(None).take("region", "gpu"), Lease)
    assert not caplog.records
