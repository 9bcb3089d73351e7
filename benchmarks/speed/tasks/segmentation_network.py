"""A small U-Net: down twice, up twice, with connections across."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 48
SIDE = 256
CLASSES = 8
FREE = ("BATCH", "SIDE")


def step(inner: int, outer: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.GroupNorm(8, outer), nn.ReLU())


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.middle, self.coarse = step(3, 32), step(32, 64), step(64, 128)
        self.up_middle = nn.ConvTranspose2d(128, 64, 2, stride=2)
        self.up_fine = nn.ConvTranspose2d(64, 32, 2, stride=2)
        self.join_middle, self.join_fine = step(128, 64), step(64, 32)
        self.head = nn.Conv2d(32, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.join_middle(torch.cat([self.up_middle(coarse), middle], 1))
        y: Tensor = self.head(self.join_fine(torch.cat([self.up_fine(middle), fine], 1)))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
