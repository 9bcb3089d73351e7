"""A softmax of scores below the diagonal."""

import torch
from torch import Tensor, nn

HEADS = 12
LENGTH = 256
FREE = ("HEADS", "LENGTH")


class Model(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=scores.device).triu(1)
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(HEADS, LENGTH, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
