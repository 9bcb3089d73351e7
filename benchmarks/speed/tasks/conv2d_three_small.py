"""A convolution of three by three over a few images."""

import torch
from torch import Tensor, nn

BATCH = 4
SIDE = 40
CHANNELS = 192
FREE = ("BATCH", "SIDE", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
