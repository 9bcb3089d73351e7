"""An LSTM of two layers over long batches of sequences."""

import torch
from torch import Tensor, nn

BATCH = 256
LENGTH = 256
INNER = 512
HIDDEN = 768
FREE = ("BATCH", "LENGTH", "INNER", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(INNER, HIDDEN, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lstm(x)[0]
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, INNER)]


def get_init_inputs() -> list[int]:
    return []
