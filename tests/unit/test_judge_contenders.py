"""What is timed side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from benchmarks.redteam.regions import region
from cudal1_compile.judge.timing import contenders as contenders_module
from cudal1_compile.judge.timing.contenders import aten_contender, inductor_contender


@pytest.mark.parametrize(("least_us", "measured", "calls"), [(40.0, 0, 1), (3.0, 1, 4)])
def test_aten_is_measured_for_its_graph_only_where_its_bytes_do_not_say_that_it_is_long(
    least_us: float, measured: int, calls: int
) -> None:
    def capture(call: Callable[[int], object], count: int) -> Mock:
        for i in range(count):
            call(i)
        return Mock()

    clock = Mock(device=torch.device("cpu"), capture=capture, measure=Mock(return_value=[[8.0] * 5]))
    program = region("softmax")
    inputs = [torch.ones([program.axis[a].size for a in i.axes]) for i in program.inputs]
    found = aten_contender(program, [inputs, inputs], clock, least_us)
    assert found is not None
    assert found.contender.calls == calls
    assert clock.measure.call_count == measured


def test_what_inductor_measures_waits_for_the_lock_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.benchmarking import benchmarker

    heard = Mock()
    device_lock = heard.device_lock
    device_lock.inside.return_value = device_lock.outside.return_value = nullcontext()
    monkeypatch.setattr(benchmarker, "benchmark_gpu", heard.measure)

    def baseline(*given: Any) -> Mock:
        with given[-1]():
            heard.compile()
            benchmarker.benchmark_gpu("a padding")
        benchmarker.benchmark_gpu("a configuration")
        return Mock()

    monkeypatch.setattr(contenders_module, "inductor_baseline", baseline)
    monkeypatch.setattr(contenders_module, "_baseline_contender", Mock())
    compiled: dict[str, Any] = {}
    for _ in range(2):  # the second time nothing is compiled
        assert inductor_contender(region("softmax"), [[]], 1, Mock(device_lock=device_lock), compiled) is not None
    assert benchmarker.benchmark_gpu is heard.measure
    measured = [
        [call.device_lock.inside(), call.device_lock.give_way(), call.measure(x)]
        for x in ("a padding", "a configuration")
    ]
    assert heard.mock_calls == [call.device_lock.outside(), call.compile(), *measured[0], *measured[1]]
