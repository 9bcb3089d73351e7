"""A batch of float32 products."""

import torch
from torch import Tensor, nn

BATCH = 96
SIDE = 1024
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.bmm(a, b)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SIDE, SIDE), torch.randn(BATCH, SIDE, SIDE) * SIDE**-0.5]


def get_init_inputs() -> list[int]:
    return []
