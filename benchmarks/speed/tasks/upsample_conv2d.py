"""A transposed convolution that doubles height and width."""

import torch
from torch import Tensor, nn

BATCH = 56
SIDE = 96
CHANNELS = 128
OUT = 96
FREE = ("BATCH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(CHANNELS, OUT, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
