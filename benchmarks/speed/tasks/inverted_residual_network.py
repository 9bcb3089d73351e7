"""Inverted residual blocks with depthwise convolutions, over channels-last images."""

import torch
from torch import Tensor, nn

BATCH = 256
SIDE = 192
CLASSES = 200
FREE = ("BATCH", "SIDE")


class Inverted(nn.Module):
    def __init__(self, width: int, ratio: int) -> None:
        super().__init__()
        wide = width * ratio
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6())
        depthwise = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, stride=4)
        narrow = nn.Conv2d(24, 48, 2, stride=2)
        self.blocks = nn.Sequential(Inverted(24, 4), narrow, Inverted(48, 4), Inverted(48, 4))
        self.head = nn.Linear(48, CLASSES)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE).contiguous(memory_format=torch.channels_last)]


def get_init_inputs() -> list[int]:
    return []
