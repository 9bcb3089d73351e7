"""A product of two float32 matrices that are both read transposed."""

import torch
from torch import Tensor, nn

ROWS = 6144
INNER = 4096
COLUMNS = 5120
FREE = ("ROWS", "INNER", "COLUMNS")


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a.t() @ b.t()


def get_inputs() -> list[Tensor]:
    return [torch.randn(INNER, ROWS), torch.randn(COLUMNS, INNER) * INNER**-0.5]


def get_init_inputs() -> list[int]:
    return []
