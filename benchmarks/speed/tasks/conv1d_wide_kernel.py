"""A one-dimensional convolution of nine taps over long signals."""

import torch
from torch import Tensor, nn

BATCH = 48
LENGTH = 24576
CHANNELS = 128
OUT = 256
FREE = ("BATCH", "LENGTH", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, OUT, 9, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
