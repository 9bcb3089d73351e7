"""Training steps as CUDA graphs, one for each shape of a batch.

A small model's step is several hundred short kernels: launched one by one they take longer than they run, the more
so where producers of data keep every core busy. The first batch of a shape runs eagerly (what compiles lazily
compiles then), the second is captured; from then on a step is a few small copies and one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]  # which every replay reads
    loss: Tensor  # which every replay writes


class StepGraphs:
    """`step(*inputs) -> loss` changes weights and optimiser in place and leaves nothing else behind."""

    def __init__(self, step: Callable[..., Tensor], device: torch.device) -> None:
        self._step, self._device = step, device
        self._captured: dict[tuple[torch.Size, ...], Captured | None] = {}
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, *inputs: Tensor) -> Tensor:
        """`inputs`: pinned, on the host. Returns the loss, in memory of its own, before the device is done."""
        shapes = tuple(x.shape for x in inputs)
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream):
            if shapes not in self._captured:
                self._captured[shapes] = None
                loss = self._step(*self._laid(inputs))
            else:
                found = self._captured[shapes] or self._capture(inputs)
                self._captured[shapes] = found
                for mine, given in zip(found.inputs, inputs, strict=True):
                    mine.copy_(given, non_blocking=True)
                found.graph.replay()
                loss = found.loss.clone()
        caller.wait_stream(self._stream)
        return loss

    def _capture(self, inputs: tuple[Tensor, ...]) -> Captured:
        laid = self._laid(inputs)
        graph = torch.cuda.CUDAGraph()
        self._stream.synchronize()
        # a thread pins memory meanwhile, which the stricter modes take for a mistake
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            loss = self._step(*laid)
        finally:
            graph.capture_end()
        return Captured(graph, laid, loss)

    def _laid(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x.to(self._device, non_blocking=True) for x in inputs)
