"""Mean and standard deviation over a middle axis, side by side."""

import torch
from torch import Tensor, nn

BATCH = 192
LENGTH = 1024
WIDTH = 1024
FREE = ("BATCH", "LENGTH", "WIDTH")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(1), x.std(1)], dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
