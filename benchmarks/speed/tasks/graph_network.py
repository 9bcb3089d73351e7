"""Two layers over a dense graph: neighbours' features are averaged, then mapped."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NODES = 1024
FEATURES = 256
HIDDEN = 320
CLASSES = 12
FREE = ("NODES", "FEATURES", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        degree = edges.sum(1, keepdim=True).clamp_min(1.0)
        x = torch.relu(self.first(edges @ x / degree))
        y: Tensor = self.second(edges @ x / degree)
        return F.log_softmax(y, dim=1)


def get_inputs() -> list[Tensor]:
    return [torch.randn(NODES, FEATURES), torch.rand(NODES, NODES).round()]


def get_init_inputs() -> list[int]:
    return []
