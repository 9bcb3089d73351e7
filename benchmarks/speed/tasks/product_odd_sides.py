"""A product whose sides are no multiples of anything."""

import torch
from torch import Tensor, nn

ROWS = 1013
INNER = 907
COLUMNS = 1109
FREE = ("ROWS", "INNER", "COLUMNS")


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a, b)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS) * INNER**-0.5]


def get_init_inputs() -> list[int]:
    return []
