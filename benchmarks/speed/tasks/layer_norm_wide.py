"""A layer norm over wide rows."""

import torch
from torch import Tensor, nn

ROWS = 49152
WIDTH = 5120
FREE = ("ROWS", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
