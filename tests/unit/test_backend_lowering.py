"""The operation `cudal1::fused` under fake tensors: what it keeps of a use, and for how long."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from cudal1_compile.inductor import fused_lowering
from cudal1_compile.inductor.fused_lowering import FUSED, FusedCall, remember_shapes


class Double(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x * 2,)


def use(entry_id: str, columns: int) -> FusedCall:
    with FakeTensorMode():
        x, out = torch.empty(4, columns), torch.empty_strided((4, columns), (1, 4))
    call = FusedCall(entry_id, "", (), (), (x,), (out,), fx.symbolic_trace(Double()))
    remember_shapes(call)
    return call


def kept() -> int:
    gc.collect()
    return sum(map(len, fused_lowering._calls.values()))


def test_a_use_is_kept_as_long_as_its_node() -> None:
    before = kept()
    uses = [use("long", columns) for columns in range(1, 20)]
    assert kept() == before + len(uses)
    uses.clear()
    assert kept() == before
    last = use("last", 1)
    assert len(fused_lowering._calls) <= before + 1, "names without a use are forgotten too"
    assert last.name in fused_lowering._calls


def test_uses_with_other_operands_have_other_names() -> None:
    """Of one kernel: a symbolic size that only one of them is given is none of its tensors."""
    plain = use("sized", 5)
    graph = fx.Graph()
    x, size = graph.placeholder("x0"), graph.placeholder("x1")
    size.meta["val"] = 3
    graph.output((graph.call_function(torch.mul, (x, 2)),))
    sized = replace(plain, subgraph=fx.GraphModule(torch.nn.Module(), graph))
    assert plain.name != sized.name


@pytest.mark.parametrize("gone", [0, 1])
def test_of_two_uses_with_one_name_either_may_end_first(gone: int) -> None:
    uses = [use("twice", 3), use("twice", 3)]
    (name,) = {call.name for call in uses}
    del uses[gone]
    gc.collect()
    with FakeTensorMode():
        (made,) = FUSED(name, [torch.empty(4, 3)], [])
    assert made.shape == (4, 3) and made.stride() == (1, 4)
    torch.testing.assert_close(FUSED(name, [torch.ones(4, 3)], [])[0], torch.full((4, 3), 2.0))
