"""Processes side by side: places, cores, failures; none is left when the time ends or the parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks import side_by_side
from benchmarks.side_by_side import OUT_OF_TIME, Place, share_cores, start_child, stop_children
from cudal1_compile.runtime.cores import usable_cores

# it starts a process in a session of its own, as a job of coverage does, and ends it where it has to end
CHILD = """
import pathlib, subprocess, sys, time
from benchmarks.side_by_side import OUT_OF_TIME, OutOfTime, ends_with_parent
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
try:
    with ends_with_parent():
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        (folder / f"{name}.tmp").write_text(str(other.pid))
        (folder / f"{name}.tmp").rename(folder / f"{name}.pid")
        time.sleep(60)
except OutOfTime:
    other.kill()
    other.wait()
    (folder / f"{name}.told").touch()
    sys.exit(OUT_OF_TIME)
"""
PARENT = """
import sys, time
from benchmarks.side_by_side import Place, start_child
children = [start_child([sys.executable, "-c", sys.argv[2], sys.argv[1], name], Place({})) for name in "ab"]
time.sleep(60)
"""

HERE = Place({})


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _wait(found: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def _start(code: str, *words: str, place: Place = HERE) -> subprocess.Popen[bytes]:
    return start_child([sys.executable, "-c", code, *words], place)


def test_a_child_has_its_place_in_the_environment(tmp_path: Path) -> None:
    say = f"import os; open({str(tmp_path / 'said')!r}, 'w').write(os.environ['PLACE'])"
    assert _start(say, place=Place({"PLACE": "1"})).wait() == 0
    assert (tmp_path / "said").read_text() == "1"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process to cores")
def test_a_child_counts_the_cores_that_it_was_given(tmp_path: Path) -> None:
    """Also the processes that it starts: builds of a judge are threads by this number."""
    say = f"open({str(tmp_path / 'said')!r}, 'w').write(str(usable_cores()))"
    own = f"from cudal1_compile.runtime.cores import usable_cores; {say}"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {own!r}], check=True)"
    one = frozenset([max(os.sched_getaffinity(0))])
    before = usable_cores()
    assert _start(code, place=Place({}, one)).wait() == 0
    assert (tmp_path / "said").read_text() == "1"
    assert usable_cores() == before == len(os.sched_getaffinity(0))


def test_cores_are_shared_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3, 13)), raising=False)
    shares = share_cores(4)
    assert [len(s) for s in shares] == [2, 3, 2, 3] and frozenset.union(*shares) == frozenset(range(3, 13))
    assert share_cores(1) == [frozenset(range(3, 13))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert sum(map(len, share_cores(2))) == 1


def test_who_is_stopped_ends_what_it_started(tmp_path: Path) -> None:
    children = [_start(CHILD, str(tmp_path), name) for name in "ab"]
    _wait(lambda: all((tmp_path / f"{n}.pid").is_file() for n in "ab"))
    stop_children(children)
    assert [child.returncode for child in children] == [OUT_OF_TIME] * 2
    assert all((tmp_path / f"{n}.told").exists() for n in "ab")
    assert all(_gone(int((tmp_path / f"{n}.pid").read_text())) for n in "ab")


def test_a_child_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "STOP_S", 0.5)
    deaf = _start("import time; time.sleep(60)")
    stop_children([deaf])
    assert deaf.returncode == -signal.SIGKILL


def test_a_child_that_has_ended_before_its_word_came_is_stopped() -> None:
    child = _start("")
    child.wait()
    assert child.stdin is not None
    child.stdin.write(b"\n")  # it stays in the buffer
    stop_children([child])
    assert child.stdin.closed


def test_a_parent_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), CHILD])
    _wait(lambda: all((tmp_path / f"{n}.pid").is_file() for n in "ab"))
    parent.kill()
    parent.wait()
    _wait(lambda: all((tmp_path / f"{n}.told").exists() for n in "ab"), 20.0)
    assert all(_gone(int((tmp_path / f"{n}.pid").read_text())) for n in "ab")
