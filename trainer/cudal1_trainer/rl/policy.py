"""The policy's loss over sampled replies, and log-probabilities of their tokens.

    likelihood   -sum(A * logp)                                stage 2: A is 1 for a reply that is kept, else 0
    clipped      -sum(min(A * r, A * clip(r, 1 +- e))) + b * KL     stage 3: r = p / p when it was sampled

KL is against the checkpoint that the stage began with, by half the square of each token's difference of
log-probabilities: on policy its gradient is the KL's own, and it grows with the difference. With its exponential
one token of 180,000, 13 nats away (code was sampled at a tenth of the temperature, which makes ten nats of one),
made a gradient a million times the usual one, clipped or not the next twenty steps' only direction (measured). For
the same reason nothing is learnt from a ratio over MOST_RATIO, which only a negative advantage leaves unclipped.
Sums are over the tokens of a whole batch of replies and divided by their number: the tokens of a short reply weigh
no more than others. Legend: B rows, T padded length, N tokens of replies in the order of `targets` (loader.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cudal1_trainer.data.loader import Batch, Row, make_batch, padded_length, targets

MOST_RATIO = 4.0


@dataclass(slots=True)
class Rollout:
    """One reply: its row of ids, and the log-probabilities of the reply's tokens."""

    ids: list[int]  # prompt and reply
    prompt: int  # ids of the prompt
    text: str
    behaviour: Tensor = field(default_factory=lambda: torch.empty(0))  # of the policy that sampled it
    reference: Tensor = field(default_factory=lambda: torch.empty(0))  # of the stage's first checkpoint

    @property
    def tokens(self) -> int:
        """Of the reply."""
        return len(self.ids) - self.prompt


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward: some rollouts as padded rows, on their device."""

    rollouts: Sequence[Rollout]
    tokens_BT: Tensor
    places_N: Tensor
    ids_N: Tensor


@dataclass(frozen=True, slots=True)
class Objective:
    ratio_clip: float  # 0: plain likelihood
    kl: float


class Policy(nn.Module):
    """One module with one forward, so that data-parallel wrappers see it."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        self._no_split_modules = (
            lm._no_split_modules
        )  # each of these layers is cut in parts by itself (sharding.py)

    def forward(self, tokens_BT: Tensor, places_N: Tensor, ids_N: Tensor, temperature: float) -> Tensor:
        return log_probabilities(self.lm, tokens_BT, places_N, ids_N, temperature)


def loss_of(
    objective: Objective, logp_N: Tensor, advantage_N: Tensor, behaviour_N: Tensor, reference_N: Tensor
) -> tuple[Tensor, Tensor]:
    """(loss summed over tokens, [KL sum, tokens whose ratio was clipped])."""
    if objective.ratio_clip == 0:
        return -(advantage_N * logp_N).sum(), logp_N.new_zeros(2)
    ratio_N = (logp_N - behaviour_N).clamp(max=math.log(MOST_RATIO)).exp()
    clipped_N = ratio_N.clamp(1 - objective.ratio_clip, 1 + objective.ratio_clip)
    gain_N = torch.minimum(ratio_N * advantage_N, clipped_N * advantage_N)
    kl_N = (logp_N - reference_N).square() / 2
    loss = (objective.kl * kl_N - gain_N).sum()
    return loss, torch.stack([kl_N.sum(), (clipped_N != ratio_N).sum()]).detach()


def log_probabilities(lm: Any, tokens_BT: Tensor, places_N: Tensor, ids_N: Tensor, temperature: float) -> Tensor:
    """`temperature`: at which the tokens were sampled; the policy is the model at it."""
    hidden_BTD = lm.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
    picked_ND = hidden_BTD.flatten(0, 1).index_select(0, places_N)
    logits_NV = lm.get_output_embeddings()(picked_ND).float() / temperature
    return -functional.cross_entropy(logits_NV, ids_N, reduction="none")


def make_passes(rollouts: Sequence[Rollout], tokens: int, device: torch.device) -> Iterator[Pass]:
    """Longest first, at most `tokens` padded tokens each."""
    ordered = sorted(rollouts, key=lambda r: len(r.ids), reverse=True)
    at = 0
    while at < len(ordered):
        length = padded_length(len(ordered[at].ids))
        group = ordered[at : at + max(1, tokens // length)]
        yield _pass(group, make_batch([Row(r.ids, r.prompt) for r in group], length), device)
        at += len(group)


def spread(values: Sequence[float], batch: Pass) -> Tensor:
    """A number a rollout as a number a token."""
    counts = torch.tensor([r.tokens for r in batch.rollouts])
    return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts).to(batch.ids_N.device)


def join(parts: Sequence[Tensor], batch: Pass) -> Tensor:
    return torch.cat(list(parts)).to(batch.ids_N.device)


def split(values_N: Tensor, batch: Pass) -> list[Tensor]:
    """Numbers a token as one tensor a rollout, on the CPU."""
    return list(torch.split(values_N.cpu(), [r.tokens for r in batch.rollouts]))


def _pass(rollouts: Sequence[Rollout], batch: Batch, device: torch.device) -> Pass:
    places, ids = targets(batch)
    tokens = torch.from_numpy(batch.tokens.astype(np.int64))
    return Pass(rollouts, tokens.to(device), torch.from_numpy(places).to(device), torch.from_numpy(ids).to(device))
