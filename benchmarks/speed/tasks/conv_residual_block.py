"""Two convolutions with norms and a way around them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
SIDE = 96
CHANNELS = 128
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.norm = nn.GroupNorm(8, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(F.silu(self.norm(self.first(x))))
        return x + y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
