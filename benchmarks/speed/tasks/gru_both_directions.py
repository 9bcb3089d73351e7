"""A GRU in both directions, its outputs averaged over time."""

import torch
from torch import Tensor, nn

BATCH = 24
LENGTH = 64
INNER = 96
HIDDEN = 160
FREE = ("BATCH", "LENGTH", "INNER", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(INNER, HIDDEN, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.gru(x)[0]
        return y.mean(1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, INNER)]


def get_init_inputs() -> list[int]:
    return []
