"""Sum and greatest element of each column."""

import torch
from torch import Tensor, nn

ROWS = 65536
COLUMNS = 4096
FREE = ("ROWS", "COLUMNS")


class Model(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(0), x.amax(0)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs() -> list[int]:
    return []
