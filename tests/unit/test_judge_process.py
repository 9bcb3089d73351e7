"""The worker process from outside: clean start, limits, deadlines, death."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cudal1_compile.judge.sandbox import landlock
from cudal1_compile.judge.sandbox.isolation import worker_environment
from cudal1_compile.judge.sandbox.process import DeviceTaken, Worker, WorkerLate, WorkerLost

FAKE = """
import json, os, socket, sys, time
from cudal1_compile.judge.sandbox.isolation import give_up_privileges, take_over_pipes
requests, replies = take_over_pipes()
given_up = give_up_privileges(sys.argv[1:] or None)
def refused(act):
    try:
        act()
        return ""
    except OSError as error:
        return str(error)
print("noise on standard output must not reach the protocol")
out = os.fdopen(replies, "wb")
def say(message):
    out.write(json.dumps(message).encode() + b"\\n"); out.flush()
say({"hello": 1, "given_up": given_up})
for line in os.fdopen(requests, "rb"):
    message = json.loads(line)
    match message["op"]:
        case "echo": say({"got": message, "environment": dict(os.environ), "pid": os.getpid()})
        case "write": say({"refused": refused(lambda: open(message["path"], message["mode"]))})
        case "remove": say({"refused": refused(lambda: os.remove(message["path"]))})
        case "connect": say({"refused": refused(lambda: socket.create_connection(message["to"], timeout=5))})
        case "signal": say({"refused": refused(lambda: os.kill(os.getppid(), 0))})
        case "hang": time.sleep(60)
        case "wait":  # for others to leave the device
            say({"waits": True})
            time.sleep(message["seconds"])
            say({"waits": False})
            time.sleep(message["works"])
            say({"got": message})
        case "die": os._exit(9)
        case "child":
            child = os.fork()
            if child == 0:
                time.sleep(60)
            say({"child": child})
"""


@pytest.fixture()
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worker:
    (tmp_path / "fake_worker_for_tests.py").write_text(FAKE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return Worker("fake_worker_for_tests")


def test_answers_in_a_clean_environment(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_USER", "1")
    reply = worker.ask({"op": "echo", "n": 3}, 20.0)
    assert reply["got"] == {"op": "echo", "n": 3}
    assert "SECRET_OF_THE_USER" not in reply["environment"]
    assert reply["environment"]["HOME"] != os.environ.get("HOME")
    worker.kill()
    assert not worker.alive
    worker.kill()


def test_a_hang_is_killed_at_the_deadline(worker: Worker) -> None:
    worker.ask({"op": "echo"}, 20.0)
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match="in time"):
        worker.ask({"op": "hang"}, 0.3)
    assert time.monotonic() - begin < 5.0
    assert not worker.alive


def test_what_it_waits_for_others_on_the_device_is_not_its_own_time(worker: Worker) -> None:
    worker.ask({"op": "echo"}, 20.0)
    for _ in range(2):
        assert worker.ask({"op": "wait", "seconds": 1.5, "works": 0.0}, 1.0)["got"]
    with pytest.raises(WorkerLate, match="in time"):
        worker.ask({"op": "wait", "seconds": 0.5, "works": 60.0}, 0.3)


def test_who_waits_for_others_without_end_is_given_up_and_they_are_named(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ask({"op": "echo"}, 20.0)
    monkeypatch.setattr("cudal1_compile.judge.sandbox.process.DEVICE_S", 0.5)
    with pytest.raises(DeviceTaken, match="other processes have had the device"):
        worker.ask({"op": "wait", "seconds": 60.0, "works": 0.0}, 0.3)
    assert not worker.alive


def test_it_outlives_the_thread_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_worker_for_tests.py").write_text(FAKE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    found: list[Worker] = []
    thread = threading.Thread(target=lambda: found.append(Worker("fake_worker_for_tests")))
    thread.start()
    thread.join()
    assert found[0].ask({"op": "echo"}, 20.0)["got"]
    found[0].kill()


def test_a_stop_is_heard_by_who_waits(worker: Worker) -> None:
    """Whatever becomes of the process: it may not be there yet."""
    worker.ask({"op": "echo"}, 20.0)
    worker._process.stop = lambda: None  # type: ignore[method-assign]
    threading.Timer(0.2, worker.stop).start()
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match="it was stopped"):
        worker.ask({"op": "hang"}, 20.0)
    assert time.monotonic() - begin < 2.0 and not worker.alive


def test_a_death_is_noticed_at_once(worker: Worker) -> None:
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match="died"):
        worker.ask({"op": "die"}, 20.0)
    assert time.monotonic() - begin < 15.0


def test_children_die_with_the_worker(worker: Worker) -> None:
    child = worker.ask({"op": "child"}, 20.0)["child"]
    assert Path(f"/proc/{child}").exists()
    worker.kill()
    end = time.monotonic() + 5.0
    while _running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _running(child)


LIMITED = """
import resource
from cudal1_compile.judge.sandbox.isolation import lower_limit
for limit in (1 << 20, 1 << 30, 1 << 10):
    lower_limit(resource.RLIMIT_FSIZE, limit)
    print(*resource.getrlimit(resource.RLIMIT_FSIZE))
"""


def test_a_limit_is_only_ever_lowered() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True)
    assert done.stdout.split() == ["1048576"] * 4 + ["1024"] * 2, done.stderr


def test_a_worker_tells_what_it_gave_up(worker: Worker) -> None:
    worker.ask({"op": "echo"}, 20.0)
    assert set(worker.given_up) == {"dies_with_parent", "no_network", "read_only_files"}
    assert worker.given_up["dies_with_parent"]
    assert worker.given_up["read_only_files"] == (landlock.version() > 0)
    worker.kill()


@pytest.mark.skipif(not landlock.version(), reason="the kernel has no Landlock")
def test_files_can_be_read_and_written_in_its_own_folder_only(worker: Worker, tmp_path: Path) -> None:
    other = tmp_path / "of the user"
    other.write_text("kept")

    def refused(op: str, path: Path | str, mode: str = "r") -> str:
        return str(worker.ask({"op": op, "path": str(path), "mode": mode}, 20.0)["refused"])

    home = Path(worker.ask({"op": "echo"}, 20.0)["environment"]["HOME"])
    assert not refused("write", home / "own", "w")
    assert not refused("remove", home / "own")
    assert not refused("write", other)
    assert not refused("write", "/dev/null", "w")
    assert not refused("write", "/proc/self/comm", "w")  # as CUDA names its threads
    assert "denied" in refused("write", other, "a")
    assert "denied" in refused("write", other, "r+")
    assert "denied" in refused("write", tmp_path / "new", "w")
    assert "denied" in refused("remove", other)
    assert other.read_text() == "kept"
    worker.kill()


def test_without_the_limit_files_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one above fails where the limit is not there."""
    (tmp_path / "fake_worker_for_tests.py").write_text(FAKE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    free = Worker("fake_worker_for_tests", read_only=False)
    assert not free.ask({"op": "write", "path": str(tmp_path / "new"), "mode": "w"}, 20.0)["refused"]
    assert not free.given_up["read_only_files"]
    free.kill()


def test_no_connection_leaves_a_worker_that_says_so(worker: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reply = worker.ask({"op": "connect", "to": server.getsockname()}, 20.0)
    assert bool(reply["refused"]) == worker.given_up["no_network"]
    worker.kill()


@pytest.mark.skipif(landlock.version() < 6, reason="the kernel's Landlock knows no signals")
def test_a_worker_cannot_signal_its_parent(worker: Worker) -> None:
    assert "not permitted" in worker.ask({"op": "signal"}, 20.0)["refused"]
    worker.kill()


ORDINARY = """
import ctypes, os
from cudal1_compile.judge.sandbox.isolation import give_up_privileges
os.setgid(12345)
os.setuid(12345)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable, as a process that was never root
if os.fork() == 0:
    os._exit(ctypes.CDLL(None).unshare(0x10000000 | 0x40000000) == 0)
possible = os.wait()[1] != 0
print(give_up_privileges()["no_network"] == possible, os.getuid())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become an ordinary user")
def test_an_ordinary_user_loses_the_network_too_where_that_is_possible(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ORDINARY], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "12345"], done.stderr


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_paths_of_a_worker_are_absolute(tmp_path: Path) -> None:
    environment = worker_environment(tmp_path)
    assert all(os.path.isabs(path) for path in environment["PYTHONPATH"].split(os.pathsep))
    assert environment["HOME"] == str(tmp_path)


def test_requests_larger_than_a_pipe_go_while_a_reply_is_waited_for(worker: Worker) -> None:
    for n in range(2):
        worker.send({"op": "echo", "n": n, "padding": "x" * (1 << 20)})
    assert [worker.receive(20.0)["got"]["n"] for _ in range(2)] == [0, 1]
    worker.send({"op": "hang"})
    worker.send({"op": "echo", "padding": "x" * (1 << 20)})
    with pytest.raises(WorkerLate, match="in time"):
        worker.receive(0.3)
    assert not worker.alive
