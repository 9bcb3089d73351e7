"""A convolution over letters, then an LSTM in both directions to a tag for each."""

import torch
from torch import Tensor, nn

BATCH = 12
LENGTH = 80
LETTERS = 96
WIDTH = 128
TAGS = 20
FREE = ("BATCH", "LENGTH", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, TAGS)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.relu(self.conv(self.letters(ids).transpose(1, 2))).transpose(1, 2)
        y: Tensor = self.head(self.lstm(x)[0])
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randint(0, LETTERS, (BATCH, LENGTH))]


def get_init_inputs() -> list[int]:
    return []
