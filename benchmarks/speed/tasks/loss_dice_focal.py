"""A focal loss and a dice loss of masks, together."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 48
SIDE = 1024
FREE = ("BATCH", "SIDE")


class Model(nn.Module):
    def forward(self, logits: Tensor, mask: Tensor) -> Tensor:
        chance = torch.sigmoid(logits)
        entropy = F.binary_cross_entropy_with_logits(logits, mask, reduction="none")
        focal = (entropy * (chance - mask).square()).mean()
        both = 2.0 * (chance * mask).sum((1, 2)) + 1.0
        return focal + (1.0 - both / (chance.sum((1, 2)) + mask.sum((1, 2)) + 1.0)).mean()


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, SIDE, SIDE), torch.rand(BATCH, SIDE, SIDE).round()]


def get_init_inputs() -> list[int]:
    return []
