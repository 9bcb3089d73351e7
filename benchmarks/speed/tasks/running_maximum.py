"""Running maxima, and how far each element is below its own."""

import torch
from torch import Tensor, nn

ROWS = 2048
LENGTH = 512
FREE = ("ROWS", "LENGTH")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        peaks = torch.cummax(x, dim=1).values
        return peaks - x


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
