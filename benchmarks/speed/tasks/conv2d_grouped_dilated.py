"""A dilated convolution in four groups, of unequal height and width."""

import torch
from torch import Tensor, nn

BATCH = 4
HEIGHT = 36
WIDTH = 52
CHANNELS = 96
FREE = ("BATCH", "HEIGHT", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, (3, 5), padding=(2, 4), dilation=2, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
