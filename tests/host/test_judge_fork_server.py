"""Workers as forks of one process: they serve, are killed, reaped, leave nothing; without it they start alone."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from absent_modules import WITHOUT

from benchmarks.redteam.regions import region
from cudal1_cache.descriptors import try_lock
from cudal1_compile.judge.bench.worker import INDUCTOR, NEEDED
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.sandbox import fork_server, landlock, wire
from cudal1_compile.judge.sandbox.device_lock import LockFiles
from cudal1_compile.judge.sandbox.fork_server import Fork, ForkServer
from cudal1_compile.judge.sandbox.process import Worker, WorkerLost

ANSWER_S = 60.0
ASKS_CUDA = """
import sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            import torch
            torch.cuda._is_in_bad_fork = lambda: True

sys.meta_path.insert(0, Finder())
"""
BLOCKS = """
import os
import sys
import time

class Finder:
    own = os.getpid()

    def find_spec(self, name, path, target=None):
        while name == {name!r} and os.getpid() == self.own and not os.path.exists({file!r}):
            time.sleep(0.01)

sys.meta_path.insert(0, Finder())
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


def suite(worker: Worker, folder: Path, seed: int = 1) -> Path:
    """What a worker is asked for that needs torch and no device."""
    path = folder / f"{seed}.suite"
    reply = worker.ask(wire.suite_request(region("silu"), seed, Limits(), path), ANSWER_S)
    assert reply.get("suite") == str(path), reply
    return path


def pid_of(worker: Worker) -> int:
    fork = worker._process
    assert isinstance(fork, Fork)
    while fork._pid is None:
        fork._listen(1.0)
    return fork._pid


@pytest.fixture()
def descriptors() -> Iterator[None]:
    """More open ones than select() takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"at most {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


HOLDER = """
from cudal1_compile.judge.sandbox.isolation import give_up_privileges, take_over_pipes
def main():
    import json, os, sys, time
    from cudal1_compile.judge.sandbox.device_lock import DeviceLock
    requests, replies = take_over_pipes()
    given_up = give_up_privileges(sys.argv[1:] or None)
    os.write(replies, json.dumps({"given_up": given_up}).encode() + b"\\n")
    with DeviceLock(json.loads(os.read(requests, 1 << 16))["descriptors"]).alone():
        os.write(replies, json.dumps({"pid": os.getpid()}).encode() + b"\\n")
        time.sleep(600)  # a kernel that hangs: it hears nothing
if __name__ == "__main__":
    main()
"""
JUDGE = """
import sys, time
from cudal1_compile.judge.sandbox.device_lock import LockFiles
from cudal1_compile.judge.sandbox.fork_server import ForkServer
from cudal1_compile.judge.sandbox.process import Worker
fork_server = ForkServer() if sys.argv[1] == "True" else None
worker = Worker("lock_holder_for_tests", lock_files=LockFiles("GPU-0"), fork_server=fork_server)
print(worker.ask({"descriptors": worker.lock_descriptors}, 60.0)["pid"], flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("without_inductor")
@pytest.mark.parametrize("forked", [True, False])
def test_a_judge_that_is_killed_leaves_the_device_to_others(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock_holder_for_tests.py").write_text(HOLDER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = [sys.executable, "-c", JUDGE, str(forked)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout is not None
        worker = int(judge.stdout.readline())
        gate, device = LockFiles("GPU-0").descriptors()
        assert not try_lock(gate, fcntl.LOCK_EX) and not try_lock(device, fcntl.LOCK_EX)
        judge.kill()
    end = time.monotonic() + 2.0
    while not (try_lock(gate, fcntl.LOCK_EX) and try_lock(device, fcntl.LOCK_EX)):
        assert time.monotonic() < end, f"worker {worker} of a killed judge holds the device"
        time.sleep(0.01)


@pytest.mark.usefixtures("without_inductor")
@pytest.mark.parametrize("forked", [True, False])
def test_a_process_with_many_open_files_has_workers(descriptors: None, forked: bool, tmp_path: Path) -> None:
    server = ForkServer() if forked else None
    worker = Worker(fork_server=server, compiled=tmp_path)
    try:
        assert worker._process.replies > 1023
        assert suite(worker, tmp_path).is_file()
    finally:
        worker.kill()
        if server:
            server.close()


def test_forks_answer_and_give_up_what_others_do(server: ForkServer, tmp_path: Path) -> None:
    workers = [Worker(fork_server=server, compiled=tmp_path) for _ in range(2)]
    begin = time.monotonic()
    files = [suite(w, tmp_path, i) for i, w in enumerate(workers)]
    assert all(f.is_file() for f in files)
    assert workers[0].given_up["dies_with_parent"]
    assert workers[0].given_up["read_only_files"] == (landlock.version() > 0)
    one, two = (pid_of(w) for w in workers)
    assert os.getsid(one) == one != two  # so that its group can be killed
    assert Path(f"/proc/{one}/cwd").resolve() == workers[0]._folder.resolve()
    assert Path(f"/proc/{one}/stat").read_text().split()[3] == Path(f"/proc/{two}/stat").read_text().split()[3]
    for worker in workers:
        worker.kill()
        worker.kill()
        assert not worker.alive
    assert not Path(f"/proc/{one}").exists()  # not even as one that nobody has waited for
    assert time.monotonic() - begin < ANSWER_S


def test_the_server_has_one_thread_and_imports_what_there_is(server: ForkServer, tmp_path: Path) -> None:
    worker = Worker(fork_server=server, compiled=tmp_path)
    suite(worker, tmp_path)
    assert server._process is not None
    assert len(os.listdir(f"/proc/{server._process.pid}/task")) == 1
    worker.kill()
    torchs_own = [name for name in (*NEEDED, *INDUCTOR) if not name.startswith("triton")]
    assert "torch._inductor.compile_fx" in torchs_own
    assert all(importlib.util.find_spec(name) for name in torchs_own)


def test_a_fork_that_dies_is_noticed(server: ForkServer, tmp_path: Path) -> None:
    worker = Worker(fork_server=server, compiled=tmp_path)
    suite(worker, tmp_path)
    os.kill(pid_of(worker), signal.SIGKILL)
    with pytest.raises(WorkerLost):
        suite(worker, tmp_path)
    assert not worker.alive


def test_a_stop_ends_what_another_thread_waits_for(server: ForkServer, tmp_path: Path) -> None:
    worker = Worker(fork_server=server, compiled=tmp_path)
    suite(worker, tmp_path)
    worker.stop()
    with pytest.raises(WorkerLost):
        worker.receive(ANSWER_S)


def test_several_threads_may_ask_whether_a_fork_lives(server: ForkServer, tmp_path: Path) -> None:
    for _ in range(10):
        worker = Worker(fork_server=server, compiled=tmp_path)
        ended = threading.Event()

        def look(worker: Worker = worker, ended: threading.Event = ended) -> None:
            while worker.alive and not ended.is_set():
                pass

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        worker.kill()
        ended.set()
        for thread in threads:
            thread.join(10.0)
            assert not thread.is_alive()


def test_many_forks_leave_no_descriptor_and_no_process(server: ForkServer, tmp_path: Path) -> None:
    suite(first := Worker(fork_server=server, compiled=tmp_path), tmp_path)
    first.kill()
    gc.collect()  # what other tests have left open would be closed meanwhile, and hide as many
    before = set(os.listdir("/proc/self/fd"))
    numbers = []
    for i in range(5):
        worker = Worker(fork_server=server, compiled=tmp_path)
        if i % 2:
            suite(worker, tmp_path, i)
            numbers.append(pid_of(worker))
        worker.kill()
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert not any(Path(f"/proc/{n}").exists() for n in numbers)


@pytest.mark.usefixtures("without_inductor")
def test_without_a_server_workers_start_alone_and_its_forks_end_with_it(tmp_path: Path) -> None:
    own = ForkServer()
    worker = Worker(fork_server=own, compiled=tmp_path)
    suite(worker, tmp_path)
    assert own._process is not None
    own._process.kill()
    own._process.wait()
    with pytest.raises(WorkerLost):
        suite(worker, tmp_path)
    alone = Worker(fork_server=own, compiled=tmp_path)
    assert not isinstance(alone._process, Fork)
    suite(alone, tmp_path)
    alone.kill()
    own.close()


@pytest.mark.parametrize("name", [INDUCTOR[0], NEEDED[0]])
def test_forks_can_use_cuda_or_there_are_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11's Inductor asked CUDA on import, and each kernel on a GPU "faulted" in its worker."""
    text = ASKS_CUDA.format(name=name)
    text += WITHOUT.format(names=[other for other in INDUCTOR if other != name])  # seconds, for nothing
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)  # processes that this one starts have its path
    own = ForkServer()
    worker = Worker(fork_server=own, compiled=tmp_path)
    try:
        if name in INDUCTOR:
            suite(worker, tmp_path)
            pid_of(worker)
        else:
            with pytest.raises(WorkerLost):
                suite(worker, tmp_path)
            assert not isinstance(Worker(fork_server=own, compiled=tmp_path)._process, Fork)
    finally:
        worker.kill()
        own.close()


def test_workers_of_a_device_do_not_wait_for_inductor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = tmp_path / "go on"
    text = BLOCKS.format(name=INDUCTOR[0], file=str(go_on)) + WITHOUT.format(names=INDUCTOR[1:])
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own, files = ForkServer(), LockFiles()
    urgent = [Worker(fork_server=own, compiled=tmp_path, lock_files=files) for _ in range(2)]
    other = Worker(fork_server=own, compiled=tmp_path)
    urgent.append(Worker(fork_server=own, compiled=tmp_path, lock_files=files))  # not behind the other one
    try:
        for i, worker in enumerate(urgent):
            suite(worker, tmp_path, i)
        late = Worker(fork_server=own, compiled=tmp_path, lock_files=files)  # behind what is being imported
        urgent.append(late)
        assert other._process._pid is late._process._pid is None  # type: ignore[union-attr]
        go_on.touch()
        suite(other, tmp_path, 3)
        suite(late, tmp_path, 4)
    finally:
        for worker in (*urgent, other):
            worker.kill()
        own.close()
        files.close()


def test_a_fork_that_is_not_there_yet_is_given_up_and_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = tmp_path / "go on"
    text = BLOCKS.format(name=NEEDED[0], file=str(go_on)) + WITHOUT.format(names=INDUCTOR)
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    own = ForkServer()
    given_up, wanted = (Worker(fork_server=own, compiled=tmp_path) for _ in range(2))
    begin = time.monotonic()
    given_up.kill()
    assert not given_up.alive and time.monotonic() - begin < 1.0
    go_on.touch()
    assert suite(wanted, tmp_path).is_file()
    assert own._process is not None
    children = Path(f"/proc/{own._process.pid}/task/{own._process.pid}/children")
    while len(alive := [c for c in children.read_text().split() if not is_over(c)]) > 1:
        assert time.monotonic() - begin < ANSWER_S, f"one of {alive} serves nobody"
        time.sleep(0.01)
    wanted.kill()
    own.close()


def is_over(pid: str) -> bool:
    """Nobody may have waited for it yet."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_nobody_waits_for_a_server_that_still_imports(tmp_path: Path) -> None:
    own = ForkServer()
    workers = [Worker(fork_server=own, compiled=tmp_path) for _ in range(3)]
    begin = time.monotonic()
    own.give_up_young()
    for worker in workers:
        worker.kill()
        assert not worker.alive
    own.close()
    assert time.monotonic() - begin < 1.0


@pytest.fixture
def shelf() -> Iterator[None]:
    fork_server._shelf.empty()
    yield
    fork_server._shelf.empty()


@pytest.mark.usefixtures("without_inductor", "shelf")
def test_the_next_judge_gets_the_server_of_the_last_or_the_prepared_one(tmp_path: Path) -> None:
    fork_server.prepare()
    first = fork_server.take()
    assert first._process is not None and first.alive
    assert fork_server.take() is not first  # each judge has its own
    worker = Worker(fork_server=first, compiled=tmp_path)
    assert suite(worker, tmp_path).is_file()
    worker.kill()
    fork_server.keep(first)
    assert fork_server.take() is first
    fork_server.keep(first)
    fork_server.keep(other := ForkServer())  # one is enough
    assert not first.alive and fork_server.take() is other
    other.close()


@pytest.mark.usefixtures("without_inductor", "shelf")
def test_a_kept_server_ends_unused_and_a_dead_one_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "KEPT_S", 0.2)
    fork_server.prepare()
    kept = fork_server._shelf._kept
    assert kept is not None and kept._process is not None and kept._scratch is not None
    end = time.monotonic() + 10.0
    while kept.alive and time.monotonic() < end:
        time.sleep(0.02)
    assert not kept.alive and not kept._scratch.path.exists()
    monkeypatch.undo()
    fork_server.prepare()
    dead = fork_server._shelf._kept
    assert dead is not None and dead._process is not None
    dead._process.kill()
    dead._process.wait()
    assert fork_server.take() is not dead


@pytest.mark.usefixtures("without_inductor", "shelf")
def test_a_fork_of_this_process_leaves_the_server_alone() -> None:
    fork_server.prepare()
    kept = fork_server._shelf._kept
    assert kept is not None
    pid = os.fork()
    if pid == 0:
        is_other = fork_server.take() is not kept
        fork_server._shelf.empty()
        os._exit(0 if is_other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert kept.alive and fork_server.take() is kept
    kept.close()


@pytest.mark.usefixtures("shelf", "scalar")  # precompiled headers lie where Inductor was imported
def test_forks_of_an_older_server_compile_into_the_folder_of_their_judge(tmp_path: Path) -> None:
    fork_server.prepare()
    own, compiled = fork_server.take(), tmp_path / "compiled"
    compiled.mkdir()
    worker = Worker(fork_server=own, compiled=compiled)
    try:
        assert "why_not" not in worker.ask(wire.compile_request(region("silu"), "cpu"), 120.0)
        assert any((compiled / "inductor").rglob("*.py"))
    finally:
        worker.kill()
        own.close()
