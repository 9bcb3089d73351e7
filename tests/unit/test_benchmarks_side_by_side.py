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
from benchmarks.side_by_side import OutOfTime, Place, ends_at, run_side_by_side, share_cores
from cudal1_compile.runtime.cores import usable_cores

# it starts a process in a session of its own, as a run of the ablation does, and ends it where it has to end
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
from benchmarks.side_by_side import Place, run_side_by_side
names = iter(["a", "b"])
run_side_by_side(lambda: next(names, None), lambda name: [sys.executable, "-c", sys.argv[2], sys.argv[1], name],
                 [Place({}), Place({})], time.monotonic() + 60, lambda: None)
"""


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _wait(found: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def _run(lines: dict[str, str], places: list[Place], end_s: float = 60.0) -> tuple[list[str], int]:
    """`lines`: code by name, in order. (failed, how many children ended)."""
    names, ended = iter(lines), list[int]()
    failed = run_side_by_side(
        lambda: next(names, None),
        lambda name: [sys.executable, "-c", lines[name]],
        places,
        time.monotonic() + end_s,
        lambda: ended.append(1),
    )
    return failed, len(ended)


def test_each_place_has_one_child_at_a_time_with_its_environment(tmp_path: Path) -> None:
    code = f"""
import os, time
begin = time.monotonic()
time.sleep(0.3)
open({str(tmp_path / "said")!r}, "a").write(f"{{os.environ['PLACE']}} {{begin}} {{time.monotonic()}}\\n")
"""
    assert _run(dict.fromkeys("abcd", code), [Place({"PLACE": "0"}), Place({"PLACE": "1"})]) == ([], 4)
    spans: dict[str, list[tuple[float, float]]] = {"0": [], "1": []}
    for line in (tmp_path / "said").read_text().splitlines():
        place, begin, end = line.split()
        spans[place].append((float(begin), float(end)))
    assert min(map(len, spans.values())) >= 1 and sum(map(len, spans.values())) == 4
    for found in spans.values():
        assert all(before[1] < after[0] for before, after in zip(sorted(found), sorted(found)[1:], strict=False))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process to cores")
def test_a_child_counts_the_cores_that_it_was_given(tmp_path: Path) -> None:
    """Also the processes that it starts: builds of a judge are threads by this number."""
    say = f"open({str(tmp_path / 'said')!r}, 'w').write(str(usable_cores()))"
    own = f"from cudal1_compile.runtime.cores import usable_cores; {say}"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {own!r}], check=True)"
    one = frozenset([max(os.sched_getaffinity(0))])
    before = usable_cores()
    assert _run({"a": code}, [Place({}, one)]) == ([], 1)
    assert (tmp_path / "said").read_text() == "1"
    assert usable_cores() == before == len(os.sched_getaffinity(0))


def test_cores_are_shared_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3, 13)), raising=False)
    shares = share_cores(4)
    assert [len(s) for s in shares] == [2, 3, 2, 3] and frozenset.union(*shares) == frozenset(range(3, 13))
    assert share_cores(1) == [frozenset(range(3, 13))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert sum(map(len, share_cores(2))) == 1


def test_after_a_failure_those_that_run_come_to_their_end_and_no_more_begin(tmp_path: Path) -> None:
    slow = f"import time; time.sleep(1.5); open({str(tmp_path / 'slow')!r}, 'w')"
    lines = {"bad": "raise SystemExit(3)", "slow": slow, "later": f"open({str(tmp_path / 'later')!r}, 'w')"}
    assert _run(lines, [Place({}), Place({})]) == (["bad ended with code 3"], 2)
    assert (tmp_path / "slow").exists() and not (tmp_path / "later").exists()


def test_out_of_time_is_no_failure() -> None:
    assert _run({"a": "raise SystemExit(75)"}, [Place({})]) == ([], 1)


def test_at_the_end_children_end_what_they_started(tmp_path: Path) -> None:
    end, names = time.monotonic() + 60, iter("ab")

    def pick() -> str | None:
        if (name := next(names, None)) is None:  # both have been started
            _wait(lambda: all((tmp_path / f"{n}.pid").is_file() for n in "ab"))
            os.kill(os.getpid(), signal.SIGALRM)
        return name

    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with pytest.raises(OutOfTime), ends_at(end):
        run_side_by_side(pick, lambda n: [*command, n], [Place({})] * 3, end, lambda: None)
    assert time.monotonic() < end
    assert all((tmp_path / f"{n}.told").exists() for n in "ab")
    assert all(_gone(int((tmp_path / f"{n}.pid").read_text())) for n in "ab")


def test_a_child_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "STOP_S", 0.5)
    begin = time.monotonic()
    assert _run({"deaf": "import time; time.sleep(60)"}, [Place({})], end_s=0.5) == ([], 0)
    assert time.monotonic() - begin < 30


def test_a_child_that_has_ended_before_its_word_came_is_stopped() -> None:
    child = side_by_side.start_child([sys.executable, "-c", ""], Place({}))
    child.wait()
    assert child.stdin is not None
    child.stdin.write(b"\n")  # it stays in the buffer
    side_by_side.stop_children([child])
    assert child.stdin.closed


def test_a_parent_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), CHILD])
    _wait(lambda: all((tmp_path / f"{n}.pid").is_file() for n in "ab"))
    parent.kill()
    parent.wait()
    _wait(lambda: all((tmp_path / f"{n}.told").exists() for n in "ab"), 20.0)
    assert all(_gone(int((tmp_path / f"{n}.pid").read_text())) for n in "ab")
