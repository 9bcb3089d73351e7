"""A large float32 matrix by a vector."""

import torch
from torch import Tensor, nn

ROWS = 24576
COLUMNS = 16384
FREE = ("ROWS", "COLUMNS")


class Model(nn.Module):
    def forward(self, a: Tensor, x: Tensor) -> Tensor:
        return torch.mv(a, x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS) * COLUMNS**-0.5]


def get_init_inputs() -> list[int]:
    return []
