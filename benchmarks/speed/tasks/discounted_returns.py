"""Rewards summed from the end under a mask, as returns of episodes."""

import torch
from torch import Tensor, nn

ROWS = 16384
LENGTH = 8192
FREE = ("ROWS", "LENGTH")


class Model(nn.Module):
    def forward(self, reward: Tensor, alive: Tensor) -> Tensor:
        masked = torch.where(alive > 0.1, reward, torch.zeros_like(reward))
        return masked.flip(1).cumsum(1).flip(1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, LENGTH), torch.rand(ROWS, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
