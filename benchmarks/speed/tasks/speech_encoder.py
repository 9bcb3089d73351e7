"""Spectra through strided convolutions and a feed-forward layer with attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 48
FRAMES = 3000
BANDS = 80
WIDTH = 512
FREE = ("BATCH", "FRAMES")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(BANDS, WIDTH, 3, padding=1)
        self.second = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.second(F.gelu(self.first(x)))).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, BANDS, FRAMES)]


def get_init_inputs() -> list[int]:
    return []
