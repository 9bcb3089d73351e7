"""The sampler is on its device while it is used, and gone when it is released or the device is full."""

from __future__ import annotations

import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from generate_models import make_checkpoint
from synthesis_doubles import ScriptedJudge, program

from cudal1_cache import Store
from cudal1_compile.generate import on_demand
from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.on_demand import SamplerOnDemand
from cudal1_compile.synthesis import Budget, Unfinished, synthesize

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Sampler:
    """Test double."""


class Device:
    """How often a sampler was loaded on it, and how many were left whenever memory was freed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[weakref.ref[Sampler]] = []
        self.freed: list[int] = []
        monkeypatch.setattr(on_demand, "give_back", lambda device: self.freed.append(self.left()))
        self.sampler = SamplerOnDemand(self.load, torch.device("cuda"))

    def load(self) -> Any:
        made = Sampler()
        self.loaded.append(weakref.ref(made))
        return made

    def left(self) -> int:
        return sum(found() is not None for found in self.loaded)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_it_is_loaded_once_until_it_is_released(device: Device) -> None:
    device.sampler.release()
    assert (device.loaded, device.freed) == ([], []), "what was never there frees nothing of the user's"
    for times in (1, 2):
        for _ in range(2):
            assert device.sampler.use(lambda: type(device.sampler.sampler())) is Sampler
        assert len(device.loaded) == times and device.left() == 1
        device.sampler.release()
        assert device.left() == 0 and device.freed == [0] * times


def test_on_a_cpu_it_stays() -> None:
    sampler = SamplerOnDemand(Sampler, torch.device("cpu"))  # type: ignore[arg-type]
    found = sampler.sampler()
    sampler.release()
    assert sampler.sampler() is found


def test_one_that_another_thread_uses_goes_when_that_has_ended(device: Device) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def work() -> None:
        assert device.sampler.sampler() is not None
        inside.set()
        assert go_on.wait(10.0)
        assert device.left() == 1

    thread = threading.Thread(target=device.sampler.use, args=(work,))
    thread.start()
    assert inside.wait(10.0)
    device.sampler.release()  # as after a call that was abandoned
    assert device.freed == []
    go_on.set()
    thread.join(10.0)
    assert device.freed == [0] and device.left() == 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (torch.OutOfMemoryError, FULL),
        (RuntimeError, "CUDA error: out of memory"),
        (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_full_device_is_an_error_of_the_generators_and_nothing_is_left_there(
    device: Device, kind: type[Exception], said: str
) -> None:
    made: list[weakref.ref[Sampler]] = []

    def work() -> None:
        sampler, buffer = device.sampler.sampler(), Sampler()
        made.append(weakref.ref(buffer))
        assert sampler is not None and made[-1]() is not None
        raise kind(said)

    def work_as_a_capture_ends() -> None:
        try:
            work()
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    for times, ending in enumerate((work, work_as_a_capture_ends), 1):
        with pytest.raises(GeneratorError, match="the device has no room for the generator: ") as caught:
            device.sampler.use(ending)
        assert caught.value.__context__ is None and device.freed == [0] * times
        assert made[-1]() is None


def test_what_does_not_come_of_a_full_device_stays_as_it_is(device: Device) -> None:
    def work() -> None:
        device.sampler.sampler()
        raise RuntimeError("an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        device.sampler.use(work)
    assert device.freed == [] and device.left() == 1


def test_a_region_without_room_for_the_generator_stays_unfinished_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_checkpoint(tmp_path, positions=1024)
    generator = BundledGenerator(BundledConfig(tmp_path))
    freed: list[torch.device] = []
    monkeypatch.setattr(on_demand, "give_back", freed.append)

    def fail(*args: Any) -> Any:
        raise torch.OutOfMemoryError(FULL)

    monkeypatch.setattr(generator.sampler, "sample_until", fail)
    with caplog.at_level(logging.WARNING):
        outcome = synthesize(program(), generator, ScriptedJudge(), Store.memory(), Budget(seconds=20.0))
    assert isinstance(outcome.result, Unfinished)
    assert outcome.result.reason.startswith(
        "the device has no room for the generator: OutOfMemoryError: CUDA out of"
    )
    assert len(caplog.records) == len(freed) == 1
    assert generator._on_demand._found is None
