"""A transposed convolution over short signals, four times as long after it."""

import torch
from torch import Tensor, nn

BATCH = 6
LENGTH = 640
CHANNELS = 96
OUT = 64
FREE = ("BATCH", "LENGTH", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(CHANNELS, OUT, 8, stride=4, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
