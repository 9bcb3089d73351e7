"""A strided convolution of five by five."""

import torch
from torch import Tensor, nn

BATCH = 80
SIDE = 176
CHANNELS = 64
OUT = 192
FREE = ("BATCH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, OUT, 5, stride=2, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
