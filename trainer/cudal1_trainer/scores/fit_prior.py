"""Fits the schedule prior (cudal1_compile/codegen/prior/regression.py) to a folder's score files.

    python -m cudal1_trainer.scores.fit_prior --data trainer/data

Fresh training pairs take their targets by it, so that the model learns good schedules from far more programs than
can be measured. It is fitted on the CPU in seconds, on nine tenths of the measured tasks; on the others it must
choose better than the templates' own order does, or it is not used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cudal1_compile.codegen.prior.regression import (
    BUNDLED,
    FEATURES,
    SCHEDULE_KINDS,
    Prior,
    describe_program,
    describe_schedules,
    load_prior,
)
from cudal1_compile.codegen.prior.traffic import traffic
from cudal1_compile.codegen.stages.schedule import parse_schedule
from cudal1_compile.codegen.strategies import STRATEGIES
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.scorebook import ScoreBook, read_scores, score_files

log = logging.getLogger(__name__)

HIDDEN = 96
STEPS, RATE = 1200, 3e-3
FURTHER_STEPS, FURTHER_RATE = 200, 1e-3
NETS = 4  # regret 5.3% on tasks held back, of one 6.6% in the mean of eight
BATCH = 170  # tasks, of some 12 schedules each
HELD_BACK = 10  # every tenth task judges the fit
MIN_TASKS = 100


def digest_scores(data: Path) -> str:
    """sha256 over a folder's score files, and over how they are described."""
    found = hashlib.sha256(f"{FEATURES} {SCHEDULE_KINDS} {STRATEGIES}".encode())
    for path in score_files(data):
        found.update(path.read_bytes())
    return found.hexdigest()


def prior_file(data: Path) -> Path:
    """The folder's own fit, else the bundled one where that was fitted to its scores; it may not be there."""
    own = data / "prior.npz"
    if own.is_file():
        return own
    bundled = load_prior()
    return BUNDLED if bundled is not None and bundled.scores == digest_scores(data) else own


def need_prior(data: Path) -> Prior:
    """The one of `prior_file`. Raises ValueError where there is none."""
    if (prior := load_prior(prior_file(data))) is None:
        raise ValueError(f"no prior of {data}: `python -m cudal1_trainer.scores.fit_prior` writes one")
    return prior


def is_current(data: Path) -> bool:
    """Whether there is a fit to the folder's scores."""
    prior = load_prior(prior_file(data))
    return prior is not None and prior.scores == digest_scores(data)


@dataclass(frozen=True, slots=True)
class Rows:
    """All measured variants: features, log time over the task's geometric mean, and which task each is of."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    task: NDArray[np.int64]
    rank: NDArray[np.int64]  # place in the order in which the templates wrote them


def gather(book: ScoreBook) -> Rows:
    x, y, task, rank = [], [], [], []
    for score in book.tasks:
        right = score.right
        if len(right) < 2:
            continue
        program = parse_program(score.text)
        base = describe_program(program)
        logs = [math.log(v.us or 1.0) for v in right]
        middle = sum(logs) / len(logs)
        schedules = [parse_schedule(v.name) for v in right]
        moved = traffic(program, schedules)
        described = describe_schedules(program, moved, schedules)
        for place, (own, value) in enumerate(zip(described, logs, strict=True)):
            x.append([*base, *own])
            y.append(value - middle)
            task.append(score.seed)
            rank.append(place)
    return Rows(np.array(x, np.float32), np.array(y, np.float32), np.array(task), np.array(rank))


def fit(rows: Rows, seed: int = 0) -> Prior:
    """Smooth absolute error of the times within a task, Adam."""
    shift, scale = rows.x.mean(0), rows.x.std(0) + 1e-3
    nets = []
    for i in range(NETS):
        torch.manual_seed(seed + i)
        sizes = (rows.x.shape[1], HIDDEN, HIDDEN, 1)
        nets.append(_net([nn.Linear(a, b) for a, b in pairwise(sizes)]))
    return _fit_all(Prior(shift, scale, ()), nets, rows, seed, STEPS, RATE)


def fit_further(prior: Prior, rows: Rows, seed: int = 0) -> Prior:
    """To what was measured since, or on another GPU: few steps from where it stands."""
    nets = []
    for i in range(len(prior.layers[0][0])):
        layers = []
        for weight, bias in prior.layers:
            layer = nn.Linear(weight.shape[2], weight.shape[1])
            layer.weight.data, layer.bias.data = torch.tensor(weight[i]), torch.tensor(bias[i])
            layers.append(layer)
        nets.append(_net(layers))
    return _fit_all(prior, nets, rows, seed, FURTHER_STEPS, FURTHER_RATE)


def _net(layers: Sequence[nn.Linear]) -> nn.Sequential:
    return nn.Sequential(*(m for layer in layers[:-1] for m in (layer, nn.ReLU())), layers[-1])


def _fit_all(prior: Prior, nets: Sequence[nn.Sequential], rows: Rows, seed: int, steps: int, rate: float) -> Prior:
    """With the prior's standardisation. One thread: the matrices are small, cores busy."""
    x, y = torch.from_numpy((rows.x - prior.shift) / prior.scale), torch.from_numpy(rows.y)
    table = torch.from_numpy(_by_task(rows.task))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for i, net in enumerate(nets):
            _fit(net, x, y, table, seed + i, steps, rate)
    finally:
        torch.set_num_threads(threads)
    linear = zip(*([m for m in net if isinstance(m, nn.Linear)] for net in nets), strict=True)
    stacked = [
        (torch.stack([m.weight for m in same]).detach(), torch.stack([m.bias for m in same]).detach())
        for same in linear
    ]
    return Prior(prior.shift, prior.scale, tuple((w.numpy(), b.numpy()) for w, b in stacked))


def _fit(
    net: nn.Sequential, x: torch.Tensor, y: torch.Tensor, table: torch.Tensor, seed: int, steps: int, rate: float
) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        pick = table[torch.randint(len(table), (min(len(table), BATCH),), generator=generator)]
        there = pick >= 0
        off = torch.where(there, net(x[pick])[..., 0] - y[pick], 0.0)
        off = (off - off.sum(1, keepdim=True) / there.sum(1, keepdim=True))[there]  # a task's order is what counts
        loss = nn.functional.smooth_l1_loss(off, torch.zeros_like(off), beta=0.05)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()


def _by_task(task: NDArray[np.int64]) -> NDArray[np.int64]:
    """One line a task: the places of its rows, then -1."""
    _, counts = np.unique(task, return_counts=True)
    table = np.full((len(counts), counts.max()), -1)
    table[np.arange(counts.max()) < counts[:, None]] = np.argsort(task, kind="stable")
    return table


def regret(rows: Rows, predicted: NDArray[np.float32]) -> float:
    """Geometric mean of (time of the variant predicted fastest) over (time of the fastest)."""
    losses = []
    for task in np.unique(rows.task):
        of = rows.task == task
        losses.append(float(rows.y[of][np.argmin(predicted[of])] - rows.y[of].min()))
    return math.exp(sum(losses) / len(losses)) if losses else math.nan


def build_prior(data: Path) -> dict[str, float]:
    """Fits on the folder's scores, writes DATA/prior.npz where it beats the templates' order; returns that."""
    path = data / "prior.npz"
    path.unlink(missing_ok=True)
    book = read_scores(score_files(data))
    rows = gather(book) if book is not None else None
    if rows is None or len(np.unique(rows.task)) < MIN_TASKS:
        log.info("prior: fewer than %d measured tasks, the templates' own order is used", MIN_TASKS)
        return {}
    held = rows.task % HELD_BACK == 0
    prior = fit(select(rows, ~held))
    rest = select(rows, held)
    predicted = prior.predict(rest.x)
    found = {
        "tasks": float(len(np.unique(rows.task))),
        "regret": regret(rest, predicted),
        "regret_of_first": regret(rest, rest.rank.astype(np.float32)),
    }
    if found["regret"] < found["regret_of_first"]:
        replace(prior, scores=digest_scores(data)).save(path)
    log.info("prior: %s", json.dumps(found))
    return found


def select(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    return Rows(rows.x[mask], rows.y[mask], rows.task[mask], rows.rank[mask])


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Fits the schedule prior to a folder's scores.")
    parser.add_argument("--data", type=Path, required=True)
    build_prior(parser.parse_args(argv).data)


if __name__ == "__main__":
    from cudal1_trainer.errors import mistakes_told

    with mistakes_told():
        main()
