"""Log-sum-exp over two axes at once."""

import torch
from torch import Tensor, nn

BATCH = 64
HEIGHT = 96
WIDTH = 144
FREE = ("BATCH", "HEIGHT", "WIDTH")


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(x * 3.0, dim=(1, 2))


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, HEIGHT, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
