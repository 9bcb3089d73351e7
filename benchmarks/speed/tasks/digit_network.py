"""Two convolutions and two linear layers over small grey images."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 32
SIDE = 28
CLASSES = 10
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 5), nn.Conv2d(16, 32, 3, padding=1)
        self.hidden, self.head = nn.Linear(32 * 9, 64), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = F.adaptive_max_pool2d(torch.relu(self.second(x)), 3).flatten(1)
        y: Tensor = self.head(torch.relu(self.hidden(x)))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 1, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
