"""The speed benchmark's clocks on a device: a hidden host, a captured module, peaks, flags left as they were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.model_contenders import Contender, Step
from benchmarks.speed import flags
from benchmarks.speed.arms import capture
from benchmarks.speed.roofline import BY_CUDNN, Work, measure_peaks
from benchmarks.speed.rounds import time_rounds

pytestmark = pytest.mark.gpu

LAUNCHES = 60


class Steps(nn.Module):
    """Many launches of next to no work."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(LAUNCHES):
            x = x + 1.0
        return x


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.sum())


def test_the_host_is_hidden_from_gpu_time() -> None:
    step = Step(Steps(), (torch.zeros(256, device="cuda"),), False)
    arms = [Contender("eager", step.module), Contender("graph", capture(step))]
    times = time_rounds(step, arms, 1.0)
    assert times.hidden["eager"] > 0.9 and times.hidden["graph"] > 0.9
    middle = {n: torch.tensor(us).median().item() for n, us in times.gpu_us.items()}
    assert LAUNCHES * 0.3 < middle["eager"] < LAUNCHES * 10
    assert middle["eager"] < torch.tensor(times.host_us["eager"]).median().item()
    arms[1].call()
    assert step.module(*step.inputs).equal(torch.full((256,), float(LAUNCHES), device="cuda"))


def test_a_module_that_asks_for_a_value_is_not_captured() -> None:
    step = Step(Asks(), (torch.ones(4, device="cuda"),), False)
    with pytest.raises(RuntimeError):
        capture(step)
    assert step.module(*step.inputs).tolist() == [4.0] * 4  # the device is as it was


def test_peaks_are_a_gpus() -> None:
    work = Work(0, {f"{BY_CUDNN}float32": 1.0, "bfloat16": 1.0})
    peaks = measure_peaks(torch.device("cuda", 0), work)
    rates = peaks.flops_per_us
    assert 1e5 < peaks.bytes_per_us < 1e8 and rates.keys() == {"float32", "tf32", "bfloat16"}
    assert rates["float32"] < rates["tf32"] < rates["bfloat16"]
    assert flags.unexpected(flags.read(), strict=False) == ""
