"""A plain recurrent layer with tanh."""

import torch
from torch import Tensor, nn

BATCH = 16
LENGTH = 96
INNER = 128
HIDDEN = 256
FREE = ("BATCH", "LENGTH", "INNER", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(INNER, HIDDEN, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.rnn(x)[0]
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, INNER)]


def get_init_inputs() -> list[int]:
    return []
