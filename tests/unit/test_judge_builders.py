"""NVRTC in child processes: the same answers as here, and a text that will not end costs one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cudal1_compile.errors import BuildError
from cudal1_compile.judge.bench import canary
from cudal1_compile.judge.sandbox.builders import Builders
from cudal1_compile.judge.sandbox.process import Worker
from cudal1_compile.judge.sandbox.wire import Message
from cudal1_compile.runtime import nvrtc
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.target import Target
from cudal1_compile.runtime.trouble import MachineTrouble
from tests.runtime_kernels import BOMB

try:
    nvrtc.library()
except BuildError as missing:
    pytest.skip(str(missing), allow_module_level=True)

KERNEL = "__global__ void k(const float* a, float* o) { o[threadIdx.x] = BODY; }\n"
RIGHT = KERNEL.replace("BODY", "-a[threadIdx.x]")


def test_builds_as_nvrtc_does_here() -> None:
    builders = Builders(1)
    assert builders.compile_cubin(RIGHT, "sm_90a", ("k",)) == nvrtc.compile_cubin(RIGHT, "sm_90a", ("k",))
    with pytest.raises(BuildError, match="nosuch"):
        builders.compile_cubin(KERNEL.replace("BODY", "nosuch"), "sm_90a", ("k",))
    assert builders.lost == 0
    builders.close()


def test_a_text_that_keeps_the_compiler_busy_costs_one_process() -> None:
    builders = Builders(1)
    builders.compile_cubin(RIGHT, "sm_90a", ("k",))  # the process has started
    builders.limit_s = 2
    with pytest.raises(BuildError, match="compiler was lost"):
        builders.compile_cubin(BOMB + KERNEL.replace("BODY", "grown(a[threadIdx.x])"), "sm_90a", ("k",))
    assert builders.lost == 1
    builders.limit_s = 20
    assert builders.compile_cubin(RIGHT, "sm_90a", ("k",)).kernels["k"].registers > 0
    builders.close()


def test_a_compiler_that_gets_no_time_says_nothing_about_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    builders = Builders(1)
    builders.compile_cubin(RIGHT, "sm_90a", ("k",))
    with monkeypatch.context() as busy, pytest.raises(TimeoutError, match="too busy"):
        busy.setattr("cudal1_compile.judge.sandbox.builders.PATIENCE", 0)
        builders.compile_cubin(RIGHT, "sm_90a", ("k",))
    assert builders.compile_cubin(RIGHT, "sm_90a", ("k",)).kernels["k"].registers > 0
    builders.close()


def test_a_compiler_that_is_killed_says_nothing_about_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    builders = Builders(1)
    builders.compile_cubin(RIGHT, "sm_90a", ("k",))
    send = Worker.send

    def kill_and_send(worker: Worker, message: Message) -> None:
        worker.stop()
        send(worker, message)

    with monkeypatch.context() as patch, pytest.raises(MachineTrouble, match="SIGKILL"):
        patch.setattr(Worker, "send", kill_and_send)
        builders.compile_cubin(RIGHT, "sm_90a", ("k",))
    assert builders.compile_cubin(RIGHT, "sm_90a", ("k",)).kernels["k"].registers > 0
    builders.close()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"])
def test_the_known_good_kernel_is_built_for_every_gpu(arch: str) -> None:
    target = Target("cuda", "test", arch, 132, 227 * 1024, 50 << 20)
    assert build(canary.PROGRAM, canary.CANDIDATE, target).kernels["canary"].local_bytes == 0


def test_more_threads_than_processes_take_turns() -> None:
    builders = Builders(1)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: builders.compile_cubin(RIGHT, "sm_90a", ("k",)), range(6)))
    assert len(found) == 6
    builders.close()


def test_a_process_that_does_not_start_is_not_held_against_the_text() -> None:
    builders = Builders(1, spawn=lambda: Worker("no_such_module_anywhere"))
    with pytest.raises(RuntimeError, match="no process for the compiler"):
        builders.compile_cubin(RIGHT, "sm_90a", ("k",))
    assert builders.lost == 0
    builders.close()
