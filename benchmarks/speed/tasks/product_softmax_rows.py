"""A linear layer and the softmax of what it gives."""

import torch
from torch import Tensor, nn

ROWS = 65536
WIDTH = 768
CLASSES = 2048
FREE = ("ROWS", "WIDTH", "CLASSES")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.layer(x), dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
