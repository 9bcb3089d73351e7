"""x tanh(softplus(x)) in bfloat16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 98304
WIDTH = 4096
FREE = ("ROWS", "WIDTH")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return []
