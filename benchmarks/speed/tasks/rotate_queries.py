"""Queries and keys rotated by their positions."""

import torch
from torch import Tensor, nn

BATCH = 12
HEADS = 24
LENGTH = 4096
WIDTH = 64
FREE = ("BATCH", "HEADS", "LENGTH")


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = angles.cos(), angles.sin()
        return rotate(q, cos, sin), rotate(k, cos, sin)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, LENGTH, WIDTH),
        torch.randn(BATCH, HEADS, LENGTH, WIDTH),
        torch.randn(LENGTH, WIDTH // 2),
    ]


def get_init_inputs() -> list[int]:
    return []
