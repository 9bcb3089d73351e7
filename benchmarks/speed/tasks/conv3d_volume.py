"""A convolution over volumes."""

import torch
from torch import Tensor, nn

BATCH = 10
DEPTH = 40
SIDE = 72
CHANNELS = 48
OUT = 64
FREE = ("BATCH", "DEPTH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(CHANNELS, OUT, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
