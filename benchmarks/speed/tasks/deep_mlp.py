"""Six linear layers with ReLU."""

import torch
from torch import Tensor, nn

ROWS = 32768
INNER = 1536
HIDDEN = 2048
CLASSES = 256
FREE = ("ROWS", "INNER", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [INNER, HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN]
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in zip(widths, widths[1:], strict=False)]
        self.net = nn.Sequential(*layers, nn.Linear(HIDDEN, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, INNER)]


def get_init_inputs() -> list[int]:
    return []
