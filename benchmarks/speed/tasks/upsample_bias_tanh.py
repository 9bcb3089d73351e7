"""A transposed convolution, a bias of its own, tanh and a scale."""

import torch
from torch import Tensor, nn

BATCH = 64
SIDE = 80
CHANNELS = 160
OUT = 96
FREE = ("BATCH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(CHANNELS, OUT, 4, stride=2, padding=1, bias=False)
        self.bias = nn.Parameter(torch.zeros(OUT, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.up(x) + self.bias) * 1.5


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
