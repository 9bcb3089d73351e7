"""A linear layer, GELU, and the sum with what came before."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 98304
WIDTH = 1024
FREE = ("ROWS", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.layer(x))


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
