"""The arms of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock, call

import pytest
import torch

from benchmarks.redteam.regions import region
from cudal1_compile.judge.timing import variants as arms
from cudal1_compile.judge.timing.variants import aten_arm, inductor_arm


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
    found = aten_arm(program, [inputs, inputs], clock, least_us)
    assert found is not None
    assert found.arm.calls == calls
    assert clock.measure.call_count == measured


def test_what_inductor_measures_waits_for_a_turn_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.benchmarking import benchmarker

    heard = Mock()
    turns = heard.turns
    turns.inside.return_value = turns.outside.return_value = nullcontext()
    monkeypatch.setattr(benchmarker, "benchmark_gpu", heard.measure)

    def baseline(*given: Any) -> Mock:
        with given[-1]():
            heard.compile()
            benchmarker.benchmark_gpu("a padding")
        benchmarker.benchmark_gpu("a configuration")
        return Mock()

    monkeypatch.setattr(arms, "inductor_baseline", baseline)
    monkeypatch.setattr(arms, "_baseline_arm", Mock())
    assert inductor_arm(region("softmax"), [[]], 1, Mock(turns=turns)) is not None
    assert benchmarker.benchmark_gpu is heard.measure
    measured = [
        [call.turns.inside(), call.turns.give_way(), call.measure(x)] for x in ("a padding", "a configuration")
    ]
    assert heard.mock_calls == [call.turns.outside(), call.compile(), *measured[0], *measured[1]]
