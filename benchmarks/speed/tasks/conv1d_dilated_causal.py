"""A dilated convolution that sees the past only."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
LENGTH = 1024
CHANNELS = 160
FREE = ("BATCH", "LENGTH", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 5, dilation=4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.pad(x, (16, 0)))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
