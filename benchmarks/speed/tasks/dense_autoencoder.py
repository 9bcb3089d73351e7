"""Rows through a narrow middle and back, and how far they are from themselves."""

import torch
from torch import Tensor, nn

ROWS = 1536
WIDTH = 784
HIDDEN = 512
CODE = 32
FREE = ("ROWS", "WIDTH", "HIDDEN", "CODE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, CODE))
        self.decode = nn.Sequential(nn.Linear(CODE, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, WIDTH), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y: Tensor = self.decode(self.encode(x))
        return y, (y - x).square().mean(1)


def get_inputs() -> list[Tensor]:
    return [torch.rand(ROWS, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
