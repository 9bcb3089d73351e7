"""The first convolution of an image network, seven by seven, in channels-last memory."""

import torch
from torch import Tensor, nn

BATCH = 224
SIDE = 208
OUT = 48
FREE = ("BATCH", "SIDE", "OUT")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, OUT, 7, stride=2, padding=3).to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)]


def get_init_inputs() -> list[int]:
    return []
