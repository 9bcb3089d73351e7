"""Convolution, batch norm, ReLU and max pooling."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 88
SIDE = 144
CHANNELS = 64
OUT = 160
FREE = ("BATCH", "SIDE", "CHANNELS", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, OUT, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(OUT)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
