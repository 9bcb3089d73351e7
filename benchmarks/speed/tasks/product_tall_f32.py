"""A tall float32 matrix by a narrow one."""

import torch
from torch import Tensor, nn

ROWS = 262144
INNER = 1024
COLUMNS = 512
FREE = ("ROWS", "INNER", "COLUMNS")


class Model(nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS) * INNER**-0.5]


def get_init_inputs() -> list[int]:
    return []
