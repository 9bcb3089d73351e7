"""The device lock among real processes: times are taken alone, soon, and whatever becomes of the others."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cudal1_cache.descriptors import try_lock
from cudal1_compile.judge.sandbox import device_lock as lock_module
from cudal1_compile.judge.sandbox.device_lock import Descriptors, DeviceLock, LockFiles, let_go

OTHER = """
import sys, time
from cudal1_compile.judge.sandbox.device_lock import DeviceLock
device_lock = DeviceLock((int(sys.argv[1]), int(sys.argv[2])))
def say(*words):
    print(*words, flush=True)
match sys.argv[3]:
    case "hang":
        with device_lock.shared():
            say("inside")
            time.sleep(60)
    case "work":
        with device_lock.shared():
            say("inside")
            while True:
                time.sleep(0.001)
                device_lock.give_way()
    case "time":
        for _ in range(40):
            with device_lock.alone():
                begin = time.monotonic()
                time.sleep(0.002)
                say(begin, time.monotonic())
"""


@dataclass(frozen=True)
class Other:
    """Another process of the same judge."""

    process: subprocess.Popen[str]
    descriptors: Descriptors  # its own, as its parent keeps them

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's processes find each other's locks."""
    folder = tmp_path / "runtime"
    folder.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture(params=["", "GPU-0"])
def files(request: pytest.FixtureRequest) -> LockFiles:
    """Of one judge, and of all of the user's."""
    return LockFiles(request.param)


@contextmanager
def other(files: LockFiles, what: str) -> Iterator[Other]:
    mine = files.descriptors()
    command = [sys.executable, "-c", OTHER, *map(str, mine), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=mine) as process:
        try:
            yield Other(process, mine)
        finally:
            process.kill()


def _is_free(files: LockFiles) -> bool:
    """Whether one could have the device alone now."""
    _, device = files.descriptors()
    try:
        fcntl.flock(device, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(device, fcntl.LOCK_UN)
    return True


def test_nobody_takes_times_beside_another(files: LockFiles) -> None:
    mine = DeviceLock(files.descriptors())
    spans = []
    with other(files, "time") as timing:
        lines = [timing.line()]  # it has begun
        for _ in range(40):
            with mine.alone():
                begin = time.monotonic()
                time.sleep(0.002)
                spans.append((begin, time.monotonic()))
        lines += [timing.line() for _ in range(39)]
    spans += [(float(b), float(e)) for b, e in map(str.split, lines)]
    spans.sort()
    assert len(spans) == 80
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_others_work_side_by_side_and_one_that_takes_times_comes_in_soon(files: LockFiles) -> None:
    mine = DeviceLock(files.descriptors())
    with other(files, "work") as first, other(files, "work") as second:
        assert [first.line(), second.line()] == ["inside\n"] * 2
        with mine.shared():
            begin = time.monotonic()
            for _ in range(20):
                with mine.alone():
                    assert not _is_free(files)
                mine.give_way()
            assert time.monotonic() - begin < 10.0  # never, where who works lets nobody in


def test_work_of_the_host_alone_leaves_the_device_to_others_until_it_needs_it(files: LockFiles) -> None:
    mine = DeviceLock(files.descriptors())
    with mine.shared():
        with mine.outside():
            assert _is_free(files)
            with mine.inside():
                assert not _is_free(files)
            assert _is_free(files)
        assert not _is_free(files)
        with pytest.raises(ValueError, match="a compiler's"), mine.outside():
            raise ValueError("a compiler's")
        assert not _is_free(files)
        with pytest.raises(ValueError, match="a measurement's"), mine.outside(), mine.inside():
            raise ValueError("a measurement's")
        assert not _is_free(files)
        with mine.alone(), mine.outside():
            assert not _is_free(files)
    assert _is_free(files)


def test_what_a_killed_process_held_is_free_once_its_parent_knows_that_it_is_gone(files: LockFiles) -> None:
    with other(files, "hang") as hanging:
        assert hanging.line() == "inside\n"
        assert not _is_free(files)
        hanging.process.kill()
        hanging.process.wait()
        assert not _is_free(files)  # the kernel alone does not let go: a device may still be busy
        let_go(hanging.descriptors)
        assert _is_free(files)


def test_a_process_and_its_parent_that_both_die_hold_nothing(files: LockFiles) -> None:
    """The same where nobody is left to let go: the kernel does."""
    parent = (
        "import subprocess, sys\nfrom cudal1_compile.judge.sandbox.device_lock import LockFiles\n"
        f"child = subprocess.Popen([sys.executable, '-c', {OTHER!r}, *sys.argv[1:3], 'hang'], "
        "pass_fds=tuple(map(int, sys.argv[1:3])), stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\nchild.kill()\nchild.wait()\nprint('gone', flush=True)\n"
        "import time\ntime.sleep(60)"
    )
    mine = files.descriptors()
    command = [sys.executable, "-c", parent, *map(str, mine)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=mine) as process:
        for file in mine:
            os.close(file)
        assert process.stdout is not None and process.stdout.readline() == "gone\n"
        assert not _is_free(files)
        process.kill()
    assert _is_free(files)


def test_work_that_raises_keeps_the_lock(files: LockFiles) -> None:
    mine = DeviceLock(files.descriptors())
    synchronized: list[bool] = []
    mine.synchronize = lambda: synchronized.append(_is_free(files))
    with mine.shared():
        pass
    assert synchronized == [False] and _is_free(files)  # let go after the device has ended
    with pytest.raises(RuntimeError), mine.shared():
        raise RuntimeError("a kernel that hangs")
    assert not _is_free(files) and synchronized == [False]
    with pytest.raises(RuntimeError), mine.shared(), mine.alone():
        raise RuntimeError("a kernel that hangs while it is timed")
    assert not _is_free(files)


def test_a_gate_that_is_shut_stays_so_until_work_gives_way(files: LockFiles) -> None:
    mine, another = DeviceLock(files.descriptors()), DeviceLock(files.descriptors())
    gate, _ = files.descriptors()
    with another.shared(), mine.shared():
        assert mine.shut() and not mine.shut()
        assert not another.shut()
        assert not try_lock(gate, fcntl.LOCK_SH)
        mine.give_way()
        assert try_lock(gate, fcntl.LOCK_SH)


def test_the_module_gives_way_for_the_process_only_while_it_is_inside(files: LockFiles) -> None:
    mine = DeviceLock(files.descriptors())
    synchronized: list[int] = []
    mine.synchronize = lambda: synchronized.append(1)
    gate, _ = files.descriptors()
    lock_module.give_way()
    with mine.shared():
        lock_module.give_way()
        assert not synchronized  # nobody waits
        with other(files, "time") as timing:
            while len(synchronized) < 3:
                time.sleep(0.001)  # work: who only ever tries the gate keeps others from it
                lock_module.give_way()
            assert timing.line()
    count = len(synchronized)
    lock_module.give_way()
    assert len(synchronized) == count


# several judges

JUDGE = """
import sys, time
from cudal1_compile.judge.sandbox.device_lock import DeviceLock, LockFiles
device_lock = DeviceLock(LockFiles("GPU-0").descriptors())
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    with device_lock.shared():
        for _ in range(3):
            time.sleep(0.0005)
            device_lock.give_way()
        with device_lock.alone():
            begin = time.monotonic()
            time.sleep(0.001)
            print(begin, time.monotonic(), flush=True)
"""


def test_two_judges_that_want_the_device_all_the_time_take_turns() -> None:
    command = [sys.executable, "-c", JUDGE]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    first, second = ([tuple(map(float, line.split())) for line in p.communicate()[0].splitlines()] for p in both)
    assert len(first) == len(second) == 100
    spans = sorted(first + second)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    for one, other in ((first, second), (second, first)):
        assert sum(begin < one[-1][0] for begin, _ in other) >= 33  # by the end of the other's hundred


def test_judges_of_one_device_share_its_lock_by_uuid() -> None:
    one, same, another = (LockFiles(device) for device in ("GPU-0", "GPU-0", "GPU-1"))
    with DeviceLock(one.descriptors()).alone():
        assert not _is_free(same) and _is_free(another)
    assert _is_free(same)


def test_the_files_are_this_users_alone_and_a_worker_cannot_write_to_them(runtime_folder: Path) -> None:
    files = LockFiles("GPU-0")
    folder = runtime_folder / "cudal1"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {p.name: p.stat().st_mode & 0o777 for p in folder.iterdir()} == {
        "GPU-0.gate": 0o600,
        "GPU-0.device": 0o600,
    }
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(files.descriptors()[0], b"x")


def _shared_by_others(folder: Path) -> None:
    (folder / "cudal1").mkdir()
    (folder / "cudal1").chmod(0o777)


@pytest.mark.parametrize("spoil", [_shared_by_others, Path.rmdir], ids=["writable", "missing"])
def test_without_a_runtime_folder_the_locks_lie_in_the_cache_and_without_both_each_process_has_its_own(
    spoil: Callable[[Path], None],
    runtime_folder: Path,
    cudal1_cache_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_module, "_within", {})
    spoil(runtime_folder)
    with DeviceLock(LockFiles("GPU-0").descriptors()).alone():
        assert not _is_free(LockFiles("GPU-0"))
    assert (cudal1_cache_dir / "locks" / "GPU-0.gate").exists() and not caplog.records
    (cudal1_cache_dir / "locks").chmod(0o777)
    mine = LockFiles("GPU-0")
    (said,) = caplog.records
    assert "others may write to" in said.getMessage() and said.levelno == logging.WARNING
    with DeviceLock(mine.descriptors()).alone():
        mine.close()
        assert not _is_free(LockFiles("GPU-0")) and _is_free(LockFiles("GPU-1"))


def test_a_fork_of_the_users_keeps_nothing_of_what_its_parent_held() -> None:
    parent = (
        "import os, time\nfrom cudal1_compile.judge.sandbox.device_lock import DeviceLock, LockFiles\n"
        "with DeviceLock(LockFiles('GPU-0').descriptors()).alone():\n"
        "    if not os.fork(): print(os.getpid(), flush=True)\n"
        "    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        try:
            assert not _is_free(LockFiles("GPU-0"))
            process.kill()
            process.wait()
            assert _is_free(LockFiles("GPU-0")) and Path(f"/proc/{fork}").exists()
        finally:
            os.kill(fork, signal.SIGKILL)


def test_who_waits_says_so_and_when_it_is_over(files: LockFiles) -> None:
    mine = DeviceLock(files.descriptors())
    told: list[bool] = []
    mine.tell = told.append
    with mine.shared(), mine.alone():
        pass
    assert told == []  # nobody else was there
    with other(files, "time") as timing:
        timing.line()
        for _ in range(20):
            with mine.alone():
                time.sleep(0.001)
        assert told and told == [True, False] * (len(told) // 2)
