"""Six bfloat16 rows through a large linear layer, as when one token is made at a time."""

import torch
from torch import Tensor, nn

ROWS = 6
INNER = 7168
COLUMNS = 24576
FREE = ("ROWS", "INNER", "COLUMNS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INNER, COLUMNS, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return []
