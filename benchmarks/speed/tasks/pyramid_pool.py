"""Images averaged to grids of four sizes, side by side."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 8
SIDE = 30
CHANNELS = 256
FREE = ("BATCH", "SIDE", "CHANNELS")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        grids = [F.adaptive_avg_pool2d(x, size).flatten(2) for size in (1, 2, 3, 6)]
        return torch.cat(grids, dim=2)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
