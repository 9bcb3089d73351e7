"""Convolutions in pairs, each pair pooled, and a head of two linear layers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 576
SIDE = 128
CLASSES = 50
FREE = ("BATCH", "SIDE")


def pair(inner: int, outer: int) -> list[nn.Module]:
    first, second = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
    return [first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2)]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*pair(3, 48), *pair(48, 96), *pair(96, 192))
        self.head = nn.Sequential(nn.Linear(192 * 16, 512), nn.ReLU(), nn.Linear(512, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(F.adaptive_avg_pool2d(self.features(x), 4).flatten(1))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
