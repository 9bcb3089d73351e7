"""Residual convolutions at low resolution, then pixels shuffled to twice the side."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 24
SIDE = 288
WIDTH = 48
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, WIDTH, 5, padding=2)
        self.layers = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(4))
        self.outward = nn.Conv2d(WIDTH, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inward(x)
        for layer in self.layers:
            y = y + 0.2 * F.leaky_relu(layer(y), 0.1)
        return F.pixel_shuffle(self.outward(y), 2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
