"""The same layers for every point of a cloud, and the greatest of each feature."""

import torch
from torch import Tensor, nn

CLOUDS = 16
POINTS = 1024
CLASSES = 40
FREE = ("CLOUDS", "POINTS")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inner, outer in ((3, 64), (64, 128), (128, 256)):
            layers += [nn.Linear(inner, outer), nn.LayerNorm(outer), nn.ReLU()]
        self.points = nn.Sequential(*layers)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.points(x).amax(1))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(CLOUDS, POINTS, 3)]


def get_init_inputs() -> list[int]:
    return []
