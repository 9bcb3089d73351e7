"""After a compile nothing of the generator but a workspace is on the GPU: torch holds what Inductor leaves."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cudal1_compile.generate.bundled import BundledConfig, BundledGenerator
from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.process_state import SESSION

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SLACK_BYTES = 2 * MIB  # the least that torch takes of a device at once
WORKSPACE_BYTES = 32 * MIB  # cuBLAS's, of the sampler's stream
PROMPT = "region v1\ndims d0=4096 d1=1024\nin0 f32[d0,d1]\nt0 f32[d0,d1] = relu(in0)\nout0 f32[d0,d1] = t0\n"


class Block(nn.Module):
    """Its product has a workspace of cuBLAS, which is the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(1024), nn.Linear(1024, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(nn.functional.silu(self.linear(self.norm(x))), -1)


@pytest.fixture(autouse=True)
def clean() -> None:
    """Without what earlier tests have left: compiled graphs, CUDA graphs, workspaces."""
    torch._dynamo.reset()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def held() -> tuple[int, int]:
    """Bytes that torch has of the device, and that tensors have of these."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_reserved(), torch.cuda.memory_allocated()


def excess(before: tuple[int, int]) -> int:
    """Bytes, the larger of both."""
    return max(now - then for now, then in zip(held(), before, strict=True))


def call(module: nn.Module, x: Tensor, **settings: Any) -> None:
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    with torch.no_grad():
        compiled = torch.compile(module, **settings)
        for _ in range(3):
            compiled(x)


def test_a_compile_leaves_what_plain_inductor_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are written and none is called: what their first calls compare stays in torch's cache."""
    monkeypatch.setattr(pipeline, "may_try", lambda: False)
    module, x = Block().cuda(), torch.randn(2048, 1024, device="cuda")
    call(module, x)
    plain, replies = held(), SESSION.replies
    call(module, x, backend="cudal1", options={"budget_s": 15.0, "process_budget_s": 1e6})
    assert SESSION.replies > replies, "the bundled generator was meant to be asked"
    assert excess(plain) <= WORKSPACE_BYTES + SLACK_BYTES


def test_a_generator_that_leaves_takes_all_with_it_and_comes_back() -> None:
    before = held()
    generator = BundledGenerator(BundledConfig(device="cuda"))
    assert held() == before, "nothing is there before it is asked"
    expected = generator.propose([PROMPT], 4, 0)
    assert excess(before) > WORKSPACE_BYTES + 20 * MIB
    generator.leave_device()
    assert excess(before) <= WORKSPACE_BYTES + SLACK_BYTES
    left = held()
    for _ in range(2):
        assert generator.propose([PROMPT], 4, 0) == expected
        generator.leave_device()
        assert excess(left) <= SLACK_BYTES


def test_a_full_device_is_the_generators_trouble_and_leaves_nothing_there() -> None:
    generator, before = BundledGenerator(BundledConfig(device="cuda")), held()
    total = torch.cuda.mem_get_info()[1]
    # the weights have room, what 1,024 rows need has not
    torch.cuda.set_per_process_memory_fraction((before[0] + 64 * MIB) / total)
    try:
        with pytest.raises(GeneratorError, match="the device has no room for the generator"):
            generator.propose([PROMPT] * 128, 8, 0)
        assert excess(before) <= WORKSPACE_BYTES + SLACK_BYTES
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(generator.propose([PROMPT], 2, 0)[0]) == 2
    generator.leave_device()
