"""A linear layer with a low-rank correction beside it."""

import torch
from torch import Tensor, nn

ROWS = 1024
WIDTH = 896
RANK = 16
FREE = ("ROWS", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + 2.0 * self.up(self.down(x))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
