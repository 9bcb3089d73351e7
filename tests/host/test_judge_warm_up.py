"""A fork's first compile finds done what Inductor does once a process; the device is not asked for it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cudal1_compile.judge.bench import fork_server_process, warm_up
from tests.first_compiles import check_first_compiles

KINDS = ("softmax", "matmul", "argmax", "running_sum", "convolution")
REGISTERS = """
import torch
from cudal1_compile.judge.bench import warm_up
torch.cuda.is_available = lambda: True
warm_up.attempt(warm_up._register_patterns)
from torch._inductor.fx_passes import fuse_attention, pad_mm
for init in (pad_mm._pad_mm_init, fuse_attention._sfdp_init):
    before = init.cache_info()
    assert before.currsize == 1, before
    init(torch.device("cuda", 0))
    assert init.cache_info().hits == before.hits + 1
assert not torch.cuda.is_initialized() and not torch.cuda._is_in_bad_fork()
"""


@pytest.mark.usefixtures("scalar")
def test_a_first_compile_imports_nothing_and_registers_no_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # patterns are registered for the device that there is
    assert check_first_compiles(KINDS, "cpu", tmp_path, monkeypatch) == [0, 0, 0, 0]


def test_patterns_for_a_gpu_are_registered_without_it() -> None:
    done = subprocess.run([sys.executable, "-c", REGISTERS], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_a_step_that_asks_cuda_is_refused_and_nothing_remembers_an_answer() -> None:
    before, answers = torch.cuda._lazy_init, []

    def step() -> None:
        answers.append(FakeTensorMode().avoid_device_init)
        try:
            torch.cuda.get_device_capability()
        except Exception:  # noqa: BLE001  as torch does where it wants to know whether there is a device
            answers.append("no device")

    warm_up.attempt(step)
    assert answers == [True]
    assert torch.cuda._lazy_init is before


def test_tritons_driver_is_made_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made, driver = object(), Mock(spec=["set_active"])
    nvidia = SimpleNamespace(driver=lambda: made)
    monkeypatch.setitem(sys.modules, "triton.backends", SimpleNamespace(backends={"nvidia": nvidia}))
    monkeypatch.setitem(sys.modules, "triton.runtime.driver", SimpleNamespace(driver=driver))
    for is_there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        warm_up._build_driver()
        assert driver.set_active.call_args_list == [call(made)] * is_there


@pytest.mark.parametrize(("status", "asked"), [(None, False), (3, False), (100, False), (0, True)])
def test_cuda_has_been_asked_once_its_driver_is_initialised(
    status: int | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, mode: int) -> SimpleNamespace:
        assert name == "libcuda.so.1" and mode & os.RTLD_NOLOAD
        if status is None:
            raise OSError("not loaded")
        return SimpleNamespace(cuDeviceGetCount=lambda _: status)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert fork_server_process._is_cuda_initialised() is asked
