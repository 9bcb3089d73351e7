"""Many heads of queries that share one head of keys and values, in float16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
HEADS = 16
LENGTH = 384
WIDTH = 64
FREE = ("BATCH", "HEADS", "LENGTH")


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shared = [x.expand(-1, q.shape[1], -1, -1) for x in (k, v)]
        return F.scaled_dot_product_attention(q, *shared)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float16),
        torch.randn(BATCH, 1, LENGTH, WIDTH, dtype=torch.float16),
        torch.randn(BATCH, 1, LENGTH, WIDTH, dtype=torch.float16),
    ]


def get_init_inputs() -> list[int]:
    return []
