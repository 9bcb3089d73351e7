"""Muon: momentum whose matrices are made orthogonal before they are applied (Jordan et al., 2024).

torch.optim.Muon does the same one matrix at a time. A small model has many small matrices, so that its step took
as long as forward and backward together; here matrices of one shape go through together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic iteration; singular values end in about [0.7, 1.2]
STEPS = 5


class Muon(torch.optim.Optimizer):
    """For matrices [m, n] only. An update has the root mean square of AdamW's, so that both take one rate."""

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for p in params:
            if p.ndim != 2:
                raise ValueError(f"Muon takes matrices, got a tensor of shape {tuple(p.shape)}")
            shapes[p.shape].append(p)
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": group} for group in shapes.values()], defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            params: list[Tensor] = group["params"]
            gradient_KMN = torch.stack([p.grad for p in params if p.grad is not None])
            state = self.state[params[0]]
            if not state:
                state["momentum"] = torch.zeros_like(gradient_KMN)
            mean_KMN = state["momentum"].lerp_(gradient_KMN, 1 - group["momentum"])
            update_KMN = orthogonal(gradient_KMN.lerp(mean_KMN, group["momentum"]))
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            rate = group["lr"] * 0.2 * max(params[0].shape) ** 0.5
            torch._foreach_add_(params, list(update_KMN.to(params[0].dtype).unbind()), alpha=-rate)


def orthogonal(x_KMN: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly, in bfloat16."""
    a, b, c = COEFFICIENTS
    wide = x_KMN.shape[1] <= x_KMN.shape[2]
    x = (x_KMN if wide else x_KMN.mT).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x if wide else x.mT
