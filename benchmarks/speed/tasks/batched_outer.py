"""Outer products of vectors, summed over a short axis."""

import torch
from torch import Tensor, nn

BATCH = 256
LENGTH = 12
SIDE = 64
FREE = ("BATCH", "LENGTH", "SIDE")


class Model(nn.Module):
    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bli,blj->bij", u, v)


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, SIDE), torch.randn(BATCH, LENGTH, SIDE)]


def get_init_inputs() -> list[int]:
    return []
