"""The arms of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch

from cudal1_compile.judge.arms import aten_arm
from cudal1_compile.judge.audit.regions import region


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
