"""A square bfloat16 product."""

import torch
from torch import Tensor, nn

SIDE = 8192
FREE = ("SIDE",)


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(SIDE, SIDE, dtype=torch.bfloat16),
        torch.randn(SIDE, SIDE, dtype=torch.bfloat16) * SIDE**-0.5,
    ]


def get_init_inputs() -> list[int]:
    return []
