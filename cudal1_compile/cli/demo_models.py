"""The demo's models: small, random weights, each with regions of its own. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Demo:
    name: str
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
    trains: bool = False  # forward and backward, else inference


class Block(nn.Module):
    """A transformer block of GPT-2's form, from transformers' own code, with attention written out."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block

        config = GPT2Config(n_embd=128, n_head=4, n_layer=1, n_positions=64)
        config._attn_implementation = "eager"
        config.resid_pdrop = config.attn_pdrop = config.embd_pdrop = 0.0
        self.block: nn.Module = GPT2Block(config, layer_idx=0)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        found = self.block(x)
        hidden: Tensor = found[0] if isinstance(found, tuple) else found
        return hidden


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(16), nn.BatchNorm2d(32)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return F.relu(self.last(self.second(x))).mean((2, 3))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(128)
        self.up, self.down = nn.Linear(128, 256), nn.Linear(256, 128)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return x + hidden


class Classifier(nn.Module):
    """Softmax and cross-entropy over a small vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 96)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(x)
        return F.cross_entropy(logits, labels) + torch.softmax(logits, -1).square().mean()


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(8, 16, 1), nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.first(x)))


def mlp() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Mlp(), (torch.randn(64, 128),)


DEMOS = (
    Demo("MLP with LayerNorm", mlp, trains=True),
    Demo("softmax and cross-entropy", lambda: (Classifier(), (torch.randn(64, 64), torch.randint(0, 96, (64,))))),
    Demo("CNN with BatchNorm", lambda: (Cnn().eval(), (torch.randn(4, 3, 16, 16),))),
    Demo("GroupNorm and SiLU", lambda: (Grouped(), (torch.randn(2, 8, 16, 16),))),
    Demo("GPT-2 block", lambda: (Block().eval(), (torch.randn(2, 32, 128),))),
)
