"""Layers that mix positions, then channels, by linear layers only."""

import torch
from torch import Tensor, nn

BATCH = 192
PLACES = 256
WIDTH = 512
FREE = ("BATCH", "PLACES", "WIDTH")


class Mix(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.place_norm, self.channel_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.places = nn.Sequential(nn.Linear(PLACES, 2 * PLACES), nn.GELU(), nn.Linear(2 * PLACES, PLACES))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.place_norm(x).transpose(1, 2)).transpose(1, 2)
        y: Tensor = self.channels(self.channel_norm(x))
        return x + y


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Mix(), Mix(), Mix())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, PLACES, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
