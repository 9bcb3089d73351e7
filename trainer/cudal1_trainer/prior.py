"""Which schedule is likely fast for a program never measured: a small regression over the score file.

    (program, schedule) -> some 60 numbers -> two hidden layers -> log of time, up to a number of the program's own

It is the mean of NETS that differ by how they began: what is larger than anything measured, one ranks by chance.

Fresh training pairs take their targets by it, so that the model learns good schedules from far more programs than
can be measured. It is fitted on the CPU in seconds, on nine tenths of the measured tasks; on the others it must
choose better than the teachers' own order does, or it is not used. It never sees the program's text and
decides nothing in the compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cudal1_fx_passes.program import ITEM_BYTES, Program
from cudal1_fx_passes.text import parse_program
from cudal1_trainer.damage import damage_named
from cudal1_trainer.product_features import describe_product
from cudal1_trainer.quickcheck import bytes_moved
from cudal1_trainer.scorebook import ScoreBook, read_scores, score_files
from cudal1_trainer.teachers import Schedule
from cudal1_trainer.teachers.strategies import STRATEGIES
from cudal1_trainer.teachers.window_sums import lanes_of
from cudal1_trainer.traffic import Traffic, traffic
from cudal1_trainer.variants import parse_schedule

log = logging.getLogger(__name__)

MAPPINGS = (
    *("exact", "stride", "rows", "block", "warp", "thread", "tile", "split_block", "split_tile"),
    *("joined", "joined_tile", "split_chunks", "windows", "gathered"),
)
FEATURES = 6  # raised when a program or a schedule is described in another way
HIDDEN = 96
STEPS = 1200
NETS = 4  # regret 5.3% on tasks held back, of one 6.6% in the mean of eight
BATCH = 170  # tasks, of some 12 schedules each
HELD_BACK = 10  # every tenth task judges the fit
MIN_TASKS = 100


def describe_program(program: Program) -> list[float]:
    """Sizes in log2, counts, widths: what a schedule's speed may depend on."""
    reduced = [o for o in program.ops if o.over and o.fn != "iota"]
    widest = max((program.size(v) for v in program.value_axes.values()), default=1)
    inner = {i.axes[-1] for i in program.inputs if i.axes}
    lengths = [program.size(o.over) for o in reduced]
    kept = [program.size(o.axes) for o in reduced]
    item = max((ITEM_BYTES[i.dtype] for i in program.inputs), default=4)
    last = max((program.axis[a].size for a in inner), default=1)
    return [
        math.log2(widest),
        math.log2(max(lengths, default=1)),
        math.log2(max(kept, default=1)),
        math.log2(last),
        float(last % 2 == 0) + float(last % 4 == 0) + float(last % 8 == 0),
        len(program.ops) / 16,
        len(program.inputs) / 4,
        len(program.outputs) / 2,
        math.log2(item),
        len(reduced) / 2,
        float(any(set(o.over) & inner for o in reduced)),
        float(any(not set(o.over) & inner for o in reduced)),
        len({o.over for o in reduced}) / 2,
        float(sum(1 for o in program.ops if o.fn in _SLOW)) / 4,
    ]


_SLOW = {"exp", "log", "tanh", "erf", "sin", "cos", "pow", "log1p", "expm1", "sigmoid", "div", "logsumexp"}


def describe_schedules(
    program: Program, moved: Sequence[Traffic], schedules: Sequence[Schedule]
) -> list[list[float]]:
    """The schedules' own features, kernels, and what each moves beyond the inputs and outputs once."""
    least = bytes_moved(program)
    return [
        [
            *_describe_schedule(s),
            sum(1 + (x.splits > 1 and not x.mapping.startswith(("joined", "strip"))) for x in s.stages) / 2,
            math.log2((t.asked + 1) / least),
            math.log2((t.sectors + 1) / least),
            *describe_product(program, s),
        ]
        for s, t in zip(schedules, moved, strict=True)
    ]


def _describe_schedule(schedule: Schedule) -> list[float]:
    first, last = schedule.stages[0], schedule.stages[-1]
    strategy = [float(schedule.strategy == s) for s in STRATEGIES]
    used = {"windows" if lanes_of(s) else s.mapping for s in schedule.stages}
    mapping = [float(m in used) for m in MAPPINGS]
    return [
        *strategy,
        *mapping,
        math.log2(first.vector),
        math.log2(first.block) - 8,
        math.log2(last.vector),
        math.log2(last.block) - 8,
        float(first.cached),
        math.log2(max(s.splits for s in schedule.stages)),
        len(schedule.stages) / 2,
    ]


@dataclass(frozen=True)
class Prior:
    """A fitted regression: standardisation and three layers of NETS nets, along the first axis."""

    shift: NDArray[np.float32]
    scale: NDArray[np.float32]
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]
    scores: str = ""  # digest of the score files that it was fitted to

    def rank(self, program: Program, schedules: Sequence[Schedule]) -> NDArray[np.float32]:
        """Predicted log time of each schedule, comparable within the program only."""
        base, moved = describe_program(program), traffic(program, schedules)
        x = np.array([[*base, *own] for own in describe_schedules(program, moved, schedules)], np.float32)
        return self._run((x - self.shift) / self.scale)

    def _run(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        *hidden, (weight, bias) = self.layers
        for w, b in hidden:
            x = np.maximum(x @ w.swapaxes(1, 2) + b[:, None], 0.0)
        found: NDArray[np.float32] = (x @ weight.swapaxes(1, 2) + bias[:, None])[..., 0].mean(0)
        return found

    def save(self, path: Path) -> None:
        arrays = {"shift": self.shift, "scale": self.scale, "scores": np.array(self.scores)}
        for i, (weight, bias) in enumerate(self.layers):
            arrays |= {f"w{i}": weight, f"b{i}": bias}
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)


def load_prior(path: Path) -> Prior | None:
    """None where there is no file. Raises ValueError for a damaged one."""
    if not path.is_file():
        return None
    with damage_named(path), np.load(path, allow_pickle=False) as arrays:
        count = sum(1 for name in arrays.files if name[0] == "w")
        layers = tuple((arrays[f"w{i}"], arrays[f"b{i}"]) for i in range(count))
        return Prior(arrays["shift"], arrays["scale"], layers, str(arrays["scores"]))


def digest_scores(data: Path) -> str:
    """sha256 over a folder's score files, and over how they are described."""
    found = hashlib.sha256(f"{FEATURES} {MAPPINGS} {STRATEGIES}".encode())
    for path in score_files(data):
        found.update(path.read_bytes())
    return found.hexdigest()


def is_current(data: Path) -> bool:
    """Whether the folder's prior was fitted to the folder's scores."""
    prior = load_prior(data / "prior.npz")
    return prior is not None and prior.scores == digest_scores(data)


@dataclass(frozen=True, slots=True)
class Rows:
    """All measured variants: features, log time over the task's geometric mean, and which task each is of."""

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    task: NDArray[np.int64]
    rank: NDArray[np.int64]  # place in the order in which the teachers wrote them


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
    """Smooth absolute error of the times within a task, Adam. One thread: the matrices are small, cores busy."""
    shift, scale = rows.x.mean(0), rows.x.std(0) + 1e-3
    x, y, table = torch.from_numpy((rows.x - shift) / scale), torch.from_numpy(rows.y), _by_task(rows.task)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        nets = [_fit(x, y, torch.from_numpy(table), seed + i) for i in range(NETS)]
    finally:
        torch.set_num_threads(threads)
    linear = zip(*([m for m in net if isinstance(m, nn.Linear)] for net in nets), strict=True)
    stacked = [
        (torch.stack([m.weight for m in same]).detach(), torch.stack([m.bias for m in same]).detach())
        for same in linear
    ]
    return Prior(shift, scale, tuple((w.numpy(), b.numpy()) for w, b in stacked))


def _fit(x: torch.Tensor, y: torch.Tensor, table: torch.Tensor, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        pick = table[torch.randint(len(table), (min(len(table), BATCH),), generator=generator)]
        there = pick >= 0
        off = torch.where(there, net(x[pick])[..., 0] - y[pick], 0.0)
        off = (off - off.sum(1, keepdim=True) / there.sum(1, keepdim=True))[there]  # a task's order is what counts
        loss = nn.functional.smooth_l1_loss(off, torch.zeros_like(off), beta=0.05)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return net


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
    """Fits on the folder's scores, writes DATA/prior.npz where it beats the teachers' order; returns the check."""
    path = data / "prior.npz"
    path.unlink(missing_ok=True)
    book = read_scores(score_files(data))
    rows = gather(book) if book is not None else None
    if rows is None or len(np.unique(rows.task)) < MIN_TASKS:
        log.info("prior: fewer than %d measured tasks, the teachers' own order is used", MIN_TASKS)
        return {}
    held = rows.task % HELD_BACK == 0
    prior = fit(_select(rows, ~held))
    rest = _select(rows, held)
    predicted = prior._run((rest.x - prior.shift) / prior.scale)
    found = {
        "tasks": float(len(np.unique(rows.task))),
        "regret": regret(rest, predicted),
        "regret_of_first": regret(rest, rest.rank.astype(np.float32)),
    }
    if found["regret"] < found["regret_of_first"]:
        replace(prior, scores=digest_scores(data)).save(path)
    log.info("prior: %s", json.dumps(found))
    return found


def _select(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    return Rows(rows.x[mask], rows.y[mask], rows.task[mask], rows.rank[mask])


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Fits the schedule prior to a folder's scores.")
    parser.add_argument("--data", type=Path, required=True)
    build_prior(parser.parse_args(argv).data)


if __name__ == "__main__":
    from cudal1_trainer.mistakes import mistakes_told

    with mistakes_told():
        main()
