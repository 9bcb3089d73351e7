"""A convolution, the least over channels, and a sigmoid."""

import torch
from torch import Tensor, nn

BATCH = 8
SIDE = 44
CHANNELS = 128
OUT = 160
FREE = ("BATCH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, OUT, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.conv(x).amin(1, keepdim=True))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
