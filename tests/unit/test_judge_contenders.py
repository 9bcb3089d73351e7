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
from cudal1_compile.judge.timing.baseline import either_padding
from cudal1_compile.judge.timing.contenders import aten_contender, faster, inductor_contender


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

    def baselines(*given: Any) -> list[Mock]:
        with given[-1]():
            heard.compile()
        for x in ("one", "another"):
            benchmarker.benchmark_gpu(x)
        return [Mock()]

    monkeypatch.setattr(contenders_module, "inductor_baselines", baselines)
    monkeypatch.setattr(contenders_module, "_baseline_contender", Mock())
    compiled: dict[str, Any] = {}
    for _ in range(2):  # the second time nothing is compiled
        assert inductor_contender(region("softmax"), [[]], 1, Mock(device_lock=device_lock), compiled) is not None
    assert benchmarker.benchmark_gpu is heard.measure
    measured = [
        [call.device_lock.inside(), call.device_lock.give_way(), call.measure(x)] for x in ("one", "another")
    ]
    assert heard.mock_calls == [call.device_lock.outside(), call.compile(), *measured[0], *measured[1]]


def test_of_a_padded_product_and_one_as_it_is_the_faster_one_is_taken() -> None:
    clock = Mock(measure=Mock(return_value=[[8.0] * 7, [9.0] * 6 + [1.0]]))
    assert faster(["plain", "padded"], Mock(), clock) == "plain"  # type: ignore[comparison-overlap, list-item]
    clock.measure.return_value.reverse()
    assert faster(["plain", "padded"], Mock(), clock) == "padded"  # type: ignore[comparison-overlap, list-item]


def test_a_product_that_inductor_might_pad_is_made_both_ways() -> None:
    """Where nothing is measured once, and what fails otherwise fails."""
    from torch._inductor import config
    from torch._inductor.fx_passes import pad_mm

    known = pad_mm.get_cached_should_pad
    made: list[tuple[bool, bool]] = []

    def make() -> int:
        made.append((config.shape_padding, config.force_shape_pad))
        if not config.force_shape_pad and config.shape_padding:
            try:
                pad_mm.get_cached_should_pad("a product")
            except Exception as error:
                raise RuntimeError("the backend failed") from error
        return len(made)

    assert either_padding(make) == [2, 3] and made == [(True, False), (False, False), (True, True)]
    assert pad_mm.get_cached_should_pad is known and either_padding(lambda: 4) == [4]
    with pytest.raises(ZeroDivisionError):
        either_padding(lambda: 1 // 0)
