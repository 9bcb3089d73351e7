"""Few wide bfloat16 rows by a large weight, as a linear layer without bias."""

import torch
from torch import Tensor, nn

ROWS = 2048
INNER = 5120
COLUMNS = 20480
FREE = ("ROWS", "INNER", "COLUMNS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(INNER, COLUMNS, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return []
