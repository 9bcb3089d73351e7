"""A selective state-space layer: a gated linear recurrence as a loop over time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 4
LENGTH = 48
WIDTH = 128
STATES = 16
FREE = ("BATCH", "LENGTH", "WIDTH")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(WIDTH, 2 * WIDTH)
        self.select = nn.Linear(WIDTH, 2 * STATES + 1)
        self.rates = nn.Parameter(torch.linspace(0.5, 4.0, STATES))
        self.outward = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.inward(x).chunk(2, dim=-1)
        b, c, size = self.select(u).split((STATES, STATES, 1), dim=-1)
        step = F.softplus(size)
        decay = torch.exp(-step * self.rates)
        state = u.new_zeros(u.shape[0], u.shape[2], STATES)
        ys = []
        for t in range(u.shape[1]):
            state = state * decay[:, t, None] + u[:, t, :, None] * (step[:, t] * b[:, t])[:, None]
            ys.append((state * c[:, t, None]).sum(-1))
        y: Tensor = self.outward(torch.stack(ys, dim=1) * F.silu(gate))
        return y


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, WIDTH)]


def get_init_inputs() -> list[int]:
    return []
