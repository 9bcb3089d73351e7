"""The policy in training: log-probabilities of what was sampled, and the optimiser's steps on it.

    measure(rollouts)                    of this policy and of the stage's first checkpoint
    learn(rollouts, advantages, rate)    `updates` optimiser steps over a batch, each in passes of bounded size

It samples nothing and knows no programs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from cudal1_trainer.errors import NotFinite
from cudal1_trainer.model.base import Base
from cudal1_trainer.model.checkpoint import load_trained, trained_state
from cudal1_trainer.model.ranks import all_agree, count_ranks
from cudal1_trainer.model.sharding import State, gather, in_parts, load_optimizer, optimizer_state
from cudal1_trainer.recipe import StageRecipe
from cudal1_trainer.rl.policy import (
    Objective,
    Pass,
    Policy,
    Rollout,
    join,
    log_probabilities,
    loss_of,
    make_passes,
    split,
    spread,
)

Pairs = list[tuple[Rollout, float]]


class Learner:
    """AdamW without weight decay: it would pull towards zero, not towards the reference."""

    def __init__(self, accelerator: Accelerator, base: Base, stage: StageRecipe, objective: Objective) -> None:
        self.accelerator, self.stage, self.objective = accelerator, stage, objective
        self.in_parts = in_parts(accelerator)
        self.reference = copy.deepcopy(base.lm).to(accelerator.device)
        if self.in_parts and accelerator.device.type == "cuda":
            self.reference.bfloat16()  # two whole copies have to fit beside the parts
        self._copy = copy.deepcopy(self.reference) if self.in_parts else None
        self.policy = Policy(base.lm).to(accelerator.device)
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, stage.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._step_policy, self._stepper = accelerator.prepare(self.policy, self.optimizer)

    @property
    def lm(self) -> Any:
        """In one piece, with the weights of the last `gather`."""
        return self._copy or self.policy.lm

    def gather(self) -> Any:
        """The model in one piece, to sample from and to save. All processes ask together."""
        if self._copy is not None:
            gather(self.policy.lm, self._copy)
        return self.lm

    def measure(self, rollouts: Sequence[Rollout]) -> None:
        """Fills `behaviour` and `reference`; plain likelihood needs neither."""
        if self.objective.ratio_clip == 0:
            return
        with torch.no_grad(), self.accelerator.autocast():
            for batch in self._passes(rollouts):
                inputs = (batch.tokens_BT, batch.places_N, batch.ids_N, self.stage.temperature)
                behaviour = split(log_probabilities(self.lm, *inputs), batch)
                reference = split(log_probabilities(self.reference, *inputs), batch)
                for rollout, mine, first in zip(batch.rollouts, behaviour, reference, strict=True):
                    rollout.behaviour, rollout.reference = mine, first

    def learn(self, rollouts: Sequence[Rollout], advantages: Sequence[float], rate: float) -> dict[str, float]:
        """Returns figures for the metrics. Changes nothing where no reply of any process has an advantage."""
        if not count_ranks(self.accelerator, any(advantages)):
            return {"loss": 0.0, "kl": 0.0, "clipped": 0.0, "gradient": 0.0}
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        pairs = list(zip(rollouts, advantages, strict=True))
        count = min(self.stage.updates, len(pairs))
        found = [self._update(pairs[i::count]) for i in range(count)]
        return {name: sum(f[name] for f in found) / len(found) for name in found[0]}

    def _update(self, pairs: Pairs) -> dict[str, float]:
        tokens = sum(r.tokens for r, _ in pairs)
        if self.objective.ratio_clip == 0:
            # without an advantage nothing follows from a reply; one at least, since processes step together
            pairs = [p for p in pairs if p[1]] or pairs[:1]
        value = {id(r): a for r, a in pairs}
        passes = list(self._passes([r for r, _ in pairs]))
        total, figures = 0.0, torch.zeros(2)
        count = self._most(len(passes)) if self.in_parts else len(passes)
        for i in range(count):
            batch, share = passes[i % len(passes)], float(i < len(passes))  # parts are asked for together
            with nullcontext() if i + 1 == count else self.accelerator.no_sync(self._step_policy):
                loss, found = self._loss(batch, [value[id(r)] for r in batch.rollouts])
                self.accelerator.backward(share * loss / tokens)
            total += share * float(loss.detach()) / tokens
            figures += share * found.cpu()
        gradient = float(self.accelerator.clip_grad_norm_(self._step_policy.parameters(), self.stage.grad_clip))
        if not all_agree(self.accelerator, math.isfinite(total) and math.isfinite(gradient)):
            raise NotFinite(f"loss {total}, gradient {gradient}")
        self._stepper.step()
        self._stepper.zero_grad(set_to_none=True)
        kl, clipped = (figures / tokens).tolist()
        return {"loss": total, "kl": kl, "clipped": clipped, "gradient": gradient}

    def _loss(self, batch: Pass, advantages: Sequence[float]) -> tuple[Tensor, Tensor]:
        warm = self.stage.temperature
        logp_N: Tensor = self._step_policy(batch.tokens_BT, batch.places_N, batch.ids_N, warm)
        advantage_N = spread(advantages, batch)
        if self.objective.ratio_clip == 0:
            return loss_of(self.objective, logp_N, advantage_N, advantage_N, advantage_N)
        behaviour_N = join([r.behaviour for r in batch.rollouts], batch)
        reference_N = join([r.reference for r in batch.rollouts], batch)
        return loss_of(self.objective, logp_N, advantage_N, behaviour_N, reference_N)

    def _passes(self, rollouts: Sequence[Rollout]) -> Sequence[Pass]:
        return list(make_passes(rollouts, self.stage.tokens_per_pass, self.accelerator.device))

    def _most(self, mine: int) -> int:
        counts = self.accelerator.gather(torch.tensor([mine], device=self.accelerator.device))
        return int(counts.max())

    def state(self) -> State:
        return {"model": trained_state(self.policy.lm), "optimizer": optimizer_state(self.policy, self.optimizer)}

    def load(self, state: State) -> None:
        load_trained(self.policy.lm, state["model"])
        load_optimizer(self.policy, self.optimizer, state["optimizer"])
