"""A convolution whose channels are weighed by their own means."""

import torch
from torch import Tensor, nn

BATCH = 4
SIDE = 36
CHANNELS = 192
SQUEEZED = 24
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.squeeze = nn.Linear(CHANNELS, SQUEEZED)
        self.excite = nn.Linear(SQUEEZED, CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        weight = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3))))))
        return y * weight[:, :, None, None]


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return []
