"""A transposed convolution over volumes, to few channels."""

import torch
from torch import Tensor, nn

BATCH = 8
DEPTH = 28
SIDE = 56
CHANNELS = 32
OUT = 16
FREE = ("BATCH", "DEPTH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(CHANNELS, OUT, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.up(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
