"""A stand-in for CUDA graphs where there is no GPU: a replay computes anew into the memory of the recording."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Graph = Callable[..., Any]


class Replays:
    """The device; what is recorded is run once for its outputs."""

    is_in_capture = False

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self.order: list[str] = []

    def record(self, *runs: Graph) -> list[tuple[Callable[[], None], Any]]:
        self.recorded += 1
        return [self._record(run) for run in runs]

    def _record(self, run: Graph) -> tuple[Callable[[], None], Any]:
        state = torch.get_rng_state()
        outputs = run()
        if not torch.get_rng_state().equal(state):
            torch.set_rng_state(state)
            raise RuntimeError("random numbers are drawn")

        def replay() -> None:
            self.replayed += 1
            with torch.inference_mode(outputs[0].is_inference()):
                for held, made in zip(outputs, run(), strict=True):
                    if isinstance(held, Tensor):
                        held.copy_(made)

        return replay, outputs

    def is_capturing(self) -> bool:
        return self.is_in_capture

    def in_order(self) -> None:
        self.order.append("begin")

    def is_done(self) -> None:
        self.order.append("end")
