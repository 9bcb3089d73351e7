"""Embeddings of words and positions, summed and normed."""

import torch
from torch import Tensor, nn

BATCH = 6
LENGTH = 256
WORDS = 2000
WIDTH = 512
FREE = ("BATCH", "LENGTH", "WORDS", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        y: Tensor = self.norm(self.words(ids) + self.places(places))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, WORDS, (BATCH, LENGTH))]


def get_init_inputs() -> list[int]:
    return []
