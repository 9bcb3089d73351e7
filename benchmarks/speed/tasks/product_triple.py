"""Three square products in a row."""

import torch
from torch import Tensor, nn

SIDE = 768
FREE = ("SIDE",)


class Model(nn.Module):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a @ b @ c


def get_inputs() -> list[Tensor]:
    return [torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE) * SIDE**-0.5, torch.randn(SIDE, SIDE) * SIDE**-0.5]


def get_init_inputs() -> list[int]:
    return []
