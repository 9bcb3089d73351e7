"""A group norm over a few images."""

import torch
from torch import Tensor, nn

BATCH = 6
SIDE = 28
CHANNELS = 192
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(12, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
