"""A causal depthwise filter of four taps over sequences, then a SiLU."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
LENGTH = 768
CHANNELS = 320
FREE = ("BATCH", "LENGTH", "CHANNELS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 4, padding=3, groups=CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.conv(x)[..., : x.shape[-1]])


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, LENGTH)]


def get_init_inputs() -> list[int]:
    return []
