"""A depthwise convolution of five by five."""

import torch
from torch import Tensor, nn

BATCH = 44
SIDE = 112
CHANNELS = 288
FREE = ("BATCH", "SIDE", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 5, padding=2, groups=CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
