"""A gated feed-forward layer in bfloat16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 12288
WIDTH = 3072
HIDDEN = 8192
FREE = ("ROWS", "WIDTH", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        half = torch.bfloat16
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False, dtype=half)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False, dtype=half)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False, dtype=half)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return []
