"""Causal attention by torch's own operator, in bfloat16."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 3
HEADS = 24
LENGTH = 4096
WIDTH = 64
FREE = ("BATCH", "HEADS", "LENGTH")


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def get_inputs() -> list[Tensor]:
    return [
        torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs() -> list[int]:
    return []
