"""A pointwise convolution: a product over channels at each position."""

import torch
from torch import Tensor, nn

BATCH = 40
SIDE = 144
CHANNELS = 160
OUT = 96
FREE = ("BATCH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, OUT, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
