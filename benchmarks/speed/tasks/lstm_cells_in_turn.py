"""One LSTM cell that reads its own output, as a forecast is rolled out."""

import torch
from torch import Tensor, nn

BATCH = 48
STEPS = 32
WIDTH = 128
FREE = ("BATCH", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden, memory = torch.zeros_like(x), torch.zeros_like(x)
        rolled = []
        for _ in range(STEPS):
            hidden, memory = self.cell(x, (hidden, memory))
            x = self.out(hidden)
            rolled.append(x)
        return torch.stack(rolled, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
