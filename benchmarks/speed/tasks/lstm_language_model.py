"""Words through an embedding and an LSTM to logits of the next word."""

import torch
from torch import Tensor, nn

BATCH = 48
LENGTH = 96
WORDS = 16000
WIDTH = 512
FREE = ("BATCH", "LENGTH", "WORDS", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.lstm(self.words(ids))[0])
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, WORDS, (BATCH, LENGTH))]


def get_init_inputs() -> list[int]:
    return []
