"""A convolution over one small volume."""

import torch
from torch import Tensor, nn

BATCH = 2
DEPTH = 12
SIDE = 20
CHANNELS = 96
FREE = ("BATCH", "DEPTH", "SIDE", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
