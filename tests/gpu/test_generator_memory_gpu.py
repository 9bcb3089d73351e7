"""Of the generator nothing is in the user's process, and after a compile nothing on the GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cudal1_compile.generate.errors import GeneratorError
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.pipeline import compile as pipeline
from cudal1_compile.pipeline.generator_process import GeneratorProcess, in_own_process
from cudal1_compile.pipeline.process_state import SESSION

pytestmark = pytest.mark.gpu

MIB = 1 << 20
SLACK_BYTES = 2 * MIB  # the least that torch takes of a device at once
MODULE_BYTES = 128 * MIB  # of loaded kernels, this process's own; another's context takes more
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


@pytest.fixture
def generator() -> Iterator[GeneratorProcess]:
    torch.zeros(1, device="cuda")  # this process's own context comes first
    made = in_own_process(make_generator("bundled", "cuda"))
    assert isinstance(made, GeneratorProcess)
    yield made
    made.leave_device()


def held() -> tuple[int, int]:
    """Bytes that torch has of the device, and that tensors have of these."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_reserved(), torch.cuda.memory_allocated()


def excess(before: tuple[int, int]) -> int:
    """Bytes, the larger of both."""
    return max(now - then for now, then in zip(held(), before, strict=True))


def beside_torch() -> int:
    """Bytes of the device that are in use and not torch's here: contexts, modules, whatever others hold."""
    reserved, _ = held()
    free, total = torch.cuda.mem_get_info()
    return total - free - reserved


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
    plain, others, replies = held(), beside_torch(), SESSION.replies
    call(module, x, backend="cudal1", options={"budget_s": 15.0, "process_budget_s": 1e6})
    assert SESSION.replies > replies, "the bundled generator was meant to be asked"
    assert excess(plain) <= SLACK_BYTES
    assert beside_torch() - others <= MODULE_BYTES


def test_a_generator_that_leaves_takes_all_with_it_and_comes_back(generator: GeneratorProcess) -> None:
    before, others = held(), beside_torch()
    expected = generator.propose([PROMPT], 4, 0)
    assert expected[0] and beside_torch() - others > MODULE_BYTES and held() == before
    for _ in range(2):
        generator.leave_device()
        assert beside_torch() - others <= SLACK_BYTES and held() == before
        assert generator.propose([PROMPT], 4, 0) == expected


def test_a_full_device_is_the_generators_trouble_and_leaves_nothing_there(generator: GeneratorProcess) -> None:
    free, _ = torch.cuda.mem_get_info()
    models = torch.empty(free - 800 * MIB, dtype=torch.uint8, device="cuda")
    before, others = held(), beside_torch()
    with pytest.raises(GeneratorError, match="the device has no room for the generator"):
        generator.propose([PROMPT] * 128, 8, 0)
    assert held() == before and beside_torch() - others <= SLACK_BYTES
    del models
    torch.cuda.empty_cache()
    assert len(generator.propose([PROMPT], 2, 0)[0]) == 2
