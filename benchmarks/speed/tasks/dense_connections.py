"""Convolutions of which each sees the results of all before it."""

import torch
from torch import Tensor, nn

BATCH = 6
SIDE = 48
START = 32
GROWTH = 24
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [START + GROWTH * i for i in range(4)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in widths)
        self.convs = nn.ModuleList(nn.Conv2d(w, GROWTH, 3, padding=1) for w in widths)

    def forward(self, x: Tensor) -> Tensor:
        seen = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            seen = torch.cat([seen, conv(torch.relu(norm(seen)))], dim=1)
        return seen


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, START, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
