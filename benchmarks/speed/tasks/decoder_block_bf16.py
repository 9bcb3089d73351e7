"""A transformer's decoder block in bfloat16: causal attention and a feed-forward layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 12
LENGTH = 2048
HEADS = 16
HEAD_WIDTH = 96
FREE = ("BATCH", "LENGTH", "HEAD_WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width, half = HEADS * HEAD_WIDTH, torch.bfloat16
        self.attention_norm = nn.LayerNorm(width, dtype=half)
        self.mlp_norm = nn.LayerNorm(width, dtype=half)
        self.qkv = nn.Linear(width, 3 * width, dtype=half)
        self.out = nn.Linear(width, width, dtype=half)
        self.up = nn.Linear(width, 4 * width, dtype=half)
        self.down = nn.Linear(4 * width, width, dtype=half)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (p.unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y: Tensor = self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return x + y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, HEADS * HEAD_WIDTH, dtype=torch.bfloat16)]


def get_init_inputs() -> list[int]:
    return []
