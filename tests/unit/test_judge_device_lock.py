"""The device lock among real processes: times are taken alone, soon, and whatever becomes of the others."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

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


@pytest.fixture()
def files() -> LockFiles:
    return LockFiles()


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
        assert not lock_module._try(gate, fcntl.LOCK_SH)
        mine.give_way()
        assert lock_module._try(gate, fcntl.LOCK_SH)


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
