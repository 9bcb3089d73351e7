"""The generator in a process of its own: it says what it would say here, and goes whatever happens."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from absent_modules import WITHOUT
from generate_models import ROWS, make_checkpoint
from slow_cases import slow_but

from cudal1_cache.descriptors import try_lock
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.daemons import end_soon, start_daemon
from cudal1_compile.generate.errors import GeneratorError, GeneratorTimeout
from cudal1_compile.generate.protocol import GivesWay, WritesDesigns
from cudal1_compile.judge.bench.worker import INDUCTOR
from cudal1_compile.judge.sandbox.device_lock import DeviceLock, LockFiles
from cudal1_compile.judge.sandbox.fork_server import Fork, ForkServer
from cudal1_compile.pipeline import generator_process, generator_worker
from cudal1_compile.pipeline.generator_process import GeneratorProcess, in_own_process

SHORT = "region v1\ndims d0=4 d1=4\n"
POSITIONS = 2048


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> BundledGenerator:
    """Its replies go on to the last position: seconds, where many are asked for."""
    directory = tmp_path_factory.mktemp("model")
    make_checkpoint(directory, positions=POSITIONS, max_new=POSITIONS - 128, eos_token_id=319)
    return BundledGenerator(BundledConfig(directory, dtype=torch.float32))


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Without Inductor, which takes it seconds."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "sitecustomize.py").write_text(WITHOUT.format(names=INDUCTOR))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        made = ForkServer()
        made.begin()
    yield made
    made.close()


@pytest.fixture
def process(form: BundledGenerator, fork_server: ForkServer) -> Iterator[GeneratorProcess]:
    made = GeneratorProcess(form, "", fork_server)
    yield made
    made.leave_device()


def pid_of(process: GeneratorProcess) -> int:
    """Once it has been asked."""
    end = time.monotonic() + 20.0
    while time.monotonic() < end:
        worker = process._worker
        if worker is not None and worker.given_up and worker.alive:  # its number is read then
            assert isinstance(worker._process, Fork) and worker._process._pid is not None
            return worker._process._pid
        time.sleep(0.01)
    raise AssertionError("no process was started")


def is_gone(pid: int) -> bool:
    """Ended, or only waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Asking:
    """A call for so much that it goes on for many seconds, in another thread."""

    def __init__(self, process: GeneratorProcess, deadline: float = float("inf")) -> None:
        self._process, self._deadline = process, deadline
        self.error: BaseException | None = None
        self.thread = start_daemon(self._run, "asking")
        self.pid = pid_of(process)

    def _run(self) -> None:
        try:
            self._process.propose_until([SHORT] * 4, 64, 0, self._deadline)
        except BaseException as error:  # noqa: BLE001  looked at by the tests
            self.error = error

    def end(self) -> BaseException | None:
        assert self.thread.ended.wait(10.0)
        return self.error


@pytest.mark.parametrize("is_fork", slow_but([True], [True, False]))
def test_it_says_what_it_would_say_here(tmp_path: Path, fork_server: ForkServer, is_fork: bool) -> None:
    make_checkpoint(tmp_path, positions=1024)
    config = BundledConfig(tmp_path, dtype=torch.float32, temperature=0.9, draws=2)
    form = BundledGenerator(config)
    process = GeneratorProcess(form, "", fork_server if is_fork else None)
    assert (process.name, process.budget_tokens) == (form.name, form.budget_tokens)
    assert process.count_tokens(ROWS) == form.count_tokens(ROWS)
    assert isinstance(process, GivesWay) and isinstance(process, WritesDesigns)
    assert not isinstance(form, GivesWay), "in this process it holds no lock"
    try:
        process.warm_up()
        for seed in (0, 1):
            here = form.propose([ROWS, SHORT], 3, seed)
            assert process.propose([ROWS, SHORT], 3, seed) == here and any(here)
    finally:
        process.leave_device()


def test_only_the_bundled_one_on_a_gpu_has_a_process(form: BundledGenerator) -> None:
    other: Any = object()
    assert in_own_process(form) is form and in_own_process(other) is other
    on_a_gpu = BundledGenerator(replace(form.config, device="cuda:0"))
    assert isinstance(in_own_process(on_a_gpu), GeneratorProcess)


def test_its_errors_are_raised_here_and_the_next_call_has_another_process(process: GeneratorProcess) -> None:
    process.warm_up()
    first = pid_of(process)
    with pytest.raises(GeneratorError, match="a prompt of .* tokens leaves room for -"):
        process.propose(["x " * 2 * POSITIONS], 1, 0)
    assert is_gone(first)
    assert len(process.propose([SHORT], 1, 0)) == 1 and pid_of(process) != first


FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of")
CUT_OFF = RuntimeError("CUDA error: operation failed due to a previous error during capture")
CUT_OFF.__context__ = FULL
NO_ROOM = "the device has no room for the generator: "


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, f"{NO_ROOM}OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (RuntimeError("CUDA error: out of memory"), f"{NO_ROOM}RuntimeError: CUDA error: out of memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), f"{NO_ROOM}RuntimeError: CUBLAS_STATUS_ALLOC_FAILED"),
        (CUT_OFF, f"{NO_ROOM}RuntimeError: {CUT_OFF}"),
        (RuntimeError("an illegal access"), "RuntimeError: an illegal access"),
    ],
)
def test_a_full_device_and_faults_are_told_in_words_and_end_it(
    form: BundledGenerator, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail(*args: object) -> Any:
        raise error

    monkeypatch.setattr(BundledGenerator, "propose_until", fail)
    start = generator_worker.start_request(form.config, LockFiles().descriptors())
    propose = {"op": "propose", "prompts": [SHORT], "n": 1, "seed": 0, "deadline": 1e9}
    lines = [json.dumps(message).encode() for message in (start, propose, propose)]
    assert list(generator_worker._replies(lines)) == [{}, {"error": said}]


def test_what_needs_no_sampling_does_not_wait_for_the_warm_up(
    form: BundledGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    warming, may_end = threading.Event(), threading.Event()

    def warm_up(generator: BundledGenerator) -> None:
        with generator._lock:
            warming.set()
            may_end.wait(20.0)
            raise FULL

    monkeypatch.setattr(BundledGenerator, "warm_up", warm_up)
    start = generator_worker.start_request(replace(form.config, prior_first=True), LockFiles().descriptors())
    propose = {"op": "propose", "n": 2, "seed": 0, "deadline": 1e9}
    first = propose | {"prompts": ["target sm_90a\n" + ROWS]}
    sampled = propose | {"prompts": [SHORT], "deadline": time.monotonic() + 0.5}
    lines = [json.dumps(message).encode() for message in (start, {"op": "warm_up"}, first, sampled)]
    replies = generator_worker._replies(lines)
    assert [next(replies), next(replies)] == [{}, {}]
    assert warming.wait(10.0) and not may_end.is_set()
    assert len(next(replies)["replies"][0]) == 2
    may_end.set()
    assert "replies" in next(replies), "a warm-up that failed is no error of what follows"


def test_it_ends_in_time_by_itself(process: GeneratorProcess) -> None:
    process.warm_up()
    first, begin = pid_of(process), time.monotonic()
    found = process.propose_until([SHORT] * 4, 256, 0, begin + 0.5)
    assert len(found) == 4 and sum(map(len, found)) < 4 * 256, "what was cut off is left out"
    assert 0.5 <= time.monotonic() - begin < 0.5 + generator_process.GRACE_S
    assert pid_of(process) == first


def test_one_that_is_late_is_killed(process: GeneratorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_process, "GRACE_S", 0.2)
    process.warm_up()
    os.kill(first := pid_of(process), signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(GeneratorTimeout, match="the time for this call is over"):
        process.propose_until([SHORT], 1, 0, begin + 0.3)
    assert is_gone(first) and time.monotonic() - begin < 2.0
    process.warm_up()
    second = pid_of(process)
    with pytest.raises(GeneratorTimeout):
        process.propose_until([SHORT], 1, 0, time.monotonic() - 1.0)
    assert pid_of(process) == second, "a call without time costs no process"


def test_killed_in_the_middle_it_is_an_error_and_the_next_call_works(process: GeneratorProcess) -> None:
    asking = Asking(process)
    os.kill(asking.pid, signal.SIGKILL)
    assert isinstance(error := asking.end(), GeneratorError) and "has no process any more" in str(error)
    assert len(process.propose([SHORT], 1, 0)) == 1
    os.kill(second := pid_of(process), signal.SIGKILL)  # between two calls: nobody hears of it
    while not is_gone(second):
        time.sleep(0.01)
    assert len(process.propose([SHORT], 1, 0)) == 1


def test_it_leaves_the_device_at_once_also_while_another_thread_asks(process: GeneratorProcess) -> None:
    asking = Asking(process)
    begin = time.monotonic()
    process.leave_device()
    assert is_gone(asking.pid) and time.monotonic() - begin < 1.0
    assert isinstance(asking.end(), GeneratorError)
    process.warm_up()
    assert process._worker is None, "a thread that warms it up comes too late"
    assert len(process.propose([SHORT], 1, 0)) == 1 and pid_of(process) != asking.pid


@pytest.mark.parametrize("ends", [True, False])
def test_nobody_waits_for_a_fork_server_that_still_imports(form: BundledGenerator, ends: bool) -> None:
    """Whether the judge, whose it is too, has ended it or not."""
    young = ForkServer()
    process = GeneratorProcess(form, "", young)
    thread = start_daemon(lambda: pytest.raises(GeneratorError, process.warm_up), "warm-up")
    while process._worker is None:
        time.sleep(0.01)
    begin = time.monotonic()
    if ends:
        young.give_up_young()
    process.leave_device()
    assert thread.ended.wait(1.0) and time.monotonic() - begin < 1.0
    young.close()


def test_an_interrupt_of_who_asks_ends_it(process: GeneratorProcess) -> None:
    asking = Asking(process)
    end_soon(asking.thread)
    assert isinstance(asking.end(), SystemExit) and is_gone(asking.pid)


OWNER = """
import sys, threading
from pathlib import Path
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.pipeline.generator_process import GeneratorProcess
process = GeneratorProcess(BundledGenerator(BundledConfig(Path(sys.argv[1]))), "")
thread = threading.Thread(target=process.warm_up)
thread.start()
thread.join()
print(process._worker._process._process.pid, process._worker._folder, flush=True)
process.propose(["region v1"] * 4, 64, 0)
"""


def test_it_dies_with_its_parent_not_with_the_thread_that_started_it(form: BundledGenerator) -> None:
    command = [sys.executable, "-c", OWNER, str(form.config.directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        time.sleep(0.2)
        assert not is_gone(int(pid)) and owner.poll() is None
        owner.kill()
    end = time.monotonic() + 5.0
    while not is_gone(int(pid)) or Path(folder).exists():
        assert time.monotonic() < end, "it outlived its parent, or its folder did"
        time.sleep(0.01)


def test_who_takes_times_has_the_device_between_two_steps(
    form: BundledGenerator, fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = GeneratorProcess(form, "GPU-0", fork_server)
    files = LockFiles("GPU-0")
    looking, timing = files.descriptors(), DeviceLock(files.descriptors())
    asking = Asking(process)
    try:
        end = time.monotonic() + 10.0
        while try_lock(looking[1], fcntl.LOCK_EX):
            fcntl.flock(looking[1], fcntl.LOCK_UN)
            assert time.monotonic() < end, "it never held the device"
            time.sleep(0.001)
        for _ in range(20):
            with timing.alone():
                time.sleep(0.001)
        assert timing.waited_s < 10.0 and not asking.thread.ended.is_set()
    finally:
        process.leave_device()
    with timing.alone():
        assert timing.waited_s < 14.0, "what it held goes with it"
    files.close()


def test_several_threads_may_ask(process: GeneratorProcess, form: BundledGenerator) -> None:
    found: dict[int, Any] = {}

    def ask(seed: int) -> None:
        found[seed] = process.propose_until([ROWS], 1, seed, time.monotonic() + 60.0)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found == {seed: form.propose([ROWS], 1, seed) for seed in range(3)}
