"""A convolution over space and one over time, as for video."""

import torch
from torch import Tensor, nn

BATCH = 12
FRAMES = 20
SIDE = 80
CHANNELS = 64
FREE = ("BATCH", "FRAMES", "SIDE", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.space = nn.Conv3d(CHANNELS, CHANNELS, (1, 3, 3), padding=(0, 1, 1))
        self.time = nn.Conv3d(CHANNELS, CHANNELS, (3, 1, 1), padding=(1, 0, 0))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.time(torch.relu(self.space(x)))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, FRAMES, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
