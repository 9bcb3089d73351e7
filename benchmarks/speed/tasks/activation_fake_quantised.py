"""Values rounded to eight bits with a scale for each channel."""

import torch
from torch import Tensor, nn

ROWS = 2304
CHANNELS = 768
FREE = ("ROWS", "CHANNELS")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(0, keepdim=True).clamp_min(1e-5) / 127.0
        return (x / scale).round().clamp(-127.0, 127.0) * scale


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, CHANNELS)]


def get_init_inputs() -> list[int]:
    return []
