"""A square float32 product."""

import torch
from torch import Tensor, nn

SIDE = 5120
FREE = ("SIDE",)


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE) * SIDE**-0.5]


def get_init_inputs() -> list[int]:
    return []
