"""A gated recurrent unit written out as a loop over time."""

import torch
from torch import Tensor, nn

BATCH = 32
LENGTH = 40
INNER = 96
HIDDEN = 192
FREE = ("BATCH", "LENGTH", "INNER", "HIDDEN")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(INNER, 3 * HIDDEN)
        self.gates = nn.Linear(HIDDEN, 2 * HIDDEN, bias=False)
        self.candidate = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ahead = self.inward(x)
        state = x.new_zeros(x.shape[0], HIDDEN)
        for t in range(x.shape[1]):
            reset, update, new = ahead[:, t].chunk(3, dim=-1)
            from_reset, from_update = self.gates(state).chunk(2, dim=-1)
            update = torch.sigmoid(update + from_update)
            fresh = torch.tanh(new + self.candidate(torch.sigmoid(reset + from_reset) * state))
            state = update * state + (1.0 - update) * fresh
        return state


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, LENGTH, INNER)]


def get_init_inputs() -> list[int]:
    return []
