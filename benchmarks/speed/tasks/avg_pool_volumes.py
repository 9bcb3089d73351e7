"""Average pooling of volumes."""

import torch
from torch import Tensor, nn

BATCH = 16
DEPTH = 48
SIDE = 96
CHANNELS = 32
FREE = ("BATCH", "DEPTH", "SIDE", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool3d(2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pool(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, DEPTH, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
