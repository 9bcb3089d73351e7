"""A residual sum and its RMS norm in bfloat16; both go on."""

import torch
from torch import Tensor, nn

ROWS = 32768
WIDTH = 4096
FREE = ("ROWS", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        total = x + skip
        wide = total.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.scale, total


def get_inputs() -> list[Tensor]:
    return [torch.randn(ROWS, WIDTH, dtype=torch.bfloat16), torch.randn(ROWS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return []
