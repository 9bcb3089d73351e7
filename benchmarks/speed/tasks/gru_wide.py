"""A GRU over many sequences, of which the last state is read by a linear layer."""

import torch
from torch import Tensor, nn

BATCH = 768
LENGTH = 128
INNER = 256
HIDDEN = 640
CLASSES = 64
FREE = ("BATCH", "LENGTH", "INNER", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(INNER, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.gru(x)[0][-1])
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(LENGTH, BATCH, INNER)]


def get_init_inputs() -> list[int]:
    return []
