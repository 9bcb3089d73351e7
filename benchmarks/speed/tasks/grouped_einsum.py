"""A weight of its own for each group of channels."""

import torch
from torch import Tensor, nn

GROUPS = 12
BATCH = 32768
INNER = 512
OUTER = 640
FREE = ("GROUPS", "BATCH", "INNER", "OUTER")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(GROUPS, INNER, OUTER) / 24.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bgi,gio->bgo", x, self.weight)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, GROUPS, INNER)]


def get_init_inputs() -> list[int]:
    return []
