"""A convolution over volumes, softplus, and the mean of each channel."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 12
DEPTH = 32
SIDE = 80
CHANNELS = 32
OUT = 64
FREE = ("BATCH", "DEPTH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(CHANNELS, OUT, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(self.conv(x)).mean((2, 3, 4))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
