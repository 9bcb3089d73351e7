"""Patches of images through two encoder layers, with the mean of positions as the result."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 256
SIDE = 224
PATCH = 16
WIDTH = 384
CLASSES = 100
FREE = ("BATCH", "SIDE")


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y: Tensor = self.mlp(self.norms[1](x))
        return x + y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH, padding=PATCH // 2)
        self.layers = nn.Sequential(Encoder(), Encoder())
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, 3, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
