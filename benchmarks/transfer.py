"""Does the ranking that was learned on an H100 hold on a GPU that nothing was measured on?

    python -m benchmarks.transfer --data trainer/data --out OUT --seconds 400     on a Hopper GPU

The same GPU stands in for the other one: kernels are built without what only Hopper has (`sm_90`, not `sm_90a`:
no wgmma and no bulk copies). Of some programs of rlval.jsonl (rlval_cut.py) the variants that the schedule prior
takes for the fastest are timed there, cold, and as many others, drawn.

`summary.rows`: `regret` is the time of the variant that is ranked first over the fastest's, `regret_best8` that of
the best of the first eight; programs weigh by the fastest's time. `kernels` were measured on the target before, of
other programs than those that are ranked (FOLDS parts take turns, DRAWS draws of each number), and the prior is
fitted further to these; 0 is the prior as it is bundled. `kernels_under_3_percent` is the least number from which
on the regret stays below 1.03, null where it does not at the end. OUT/transfer.*.jsonl grows, and a second run
goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.duel import Config, Job, Row, duel_into
from benchmarks.edit_headroom import add_probe, choose, job_of
from benchmarks.families import FamilyProgram, read_families
from benchmarks.result_file import device_stem, write_result
from benchmarks.rlval_cut import COUNTS
from cudal1_compile.codegen.prior.regression import Prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.stages.schedule import print_schedule
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.fit_prior import Rows, fit_further, gather, need_prior, select
from cudal1_trainer.scores.scorebook import ScoreBook, TaskScore, VariantScore

ARCH = "sm_90"
KERNELS = (30, 100, 300, 1000)
FOLDS, DRAWS = 4, 3
TRIED = 8
ROUNDS = 9
ENOUGH = 1.03


def make_job(program: FamilyProgram, prior: Prior, arms: int, seed: int) -> Job:
    """Half of its arms are the prior's first, the others are drawn from the rest."""
    found = {
        print_schedule(schedule): reply.code for schedule, reply in ranked(parse_program(program.text), prior)
    }
    names = list(found)
    likely, others = names[: arms // 2], names[arms // 2 :]
    drawn = random.Random(f"{seed} {program.text}").sample(others, min(len(others), arms - len(likely)))
    return job_of(program, "transfer", {name: found[name] for name in (*likely, *drawn)})


def scored(at: int, job: Job, row: Row) -> TaskScore:
    """As the trainer keeps measured variants; `at` numbers its task."""
    us = {name: row.us(name) for name, _ in job.codes}
    return TaskScore(
        at, job.text, row.us("aten"), tuple(VariantScore(name, "", found) for name, found in us.items())
    )


@dataclass(frozen=True)
class Measured:
    """What all folds are cut from."""

    rows: Rows
    us: Sequence[Sequence[float]]  # by program
    prior: Prior
    seed: int

    def held_back(self, part: tuple[int, int, int]) -> dict[int, list[float]]:
        """Of the programs of one part (kernels, draw, fold), after so many kernels of the others; none without."""
        count, draw, fold = part
        order = random.Random(self.seed).sample(range(len(self.us)), len(self.us))
        held = order[fold::FOLDS]
        known = _known(self.rows, set(order) - set(held), count, random.Random(f"{self.seed} {draw} {fold}"))
        return {} if known is None else self.losses(fit_further(self.prior, known, draw), held)

    def losses(self, prior: Prior, programs: Iterable[int]) -> dict[int, list[float]]:
        """Of each, logs of the first choice's time, and the best of TRIED, over the fastest's."""
        predicted, found = prior.predict(self.rows.x), {}
        for at in programs:
            ordered = np.array(self.us[at])[np.argsort(predicted[self.rows.task == at], kind="stable")]
            found[at] = [math.log(ordered[:tried].min() / ordered.min()) for tried in (1, TRIED)]
        return found


def regrets(measured: Measured, workers: int) -> dict[int, list[float]]:
    """By the number of kernels measured before: of the first choice, and of the best of TRIED."""
    everything, weights = range(len(measured.us)), [min(some) for some in measured.us]
    parts = list(product(KERNELS, range(DRAWS), range(FOLDS)))
    with ProcessPoolExecutor(workers) as pool:
        found = dict(zip(parts, pool.map(measured.held_back, parts), strict=True))
    draws = {0: [measured.losses(measured.prior, everything)]}
    for count, draw in product(KERNELS, range(DRAWS)):
        some = [found[count, draw, fold] for fold in range(FOLDS)]
        if all(some):
            draws.setdefault(count, []).append({at: x for part in some for at, x in part.items()})
    return {n: _mean([[one[at] for at in everything] for one in of], weights) for n, of in draws.items()}


def _known(rows: Rows, tasks: Collection[int], count: int, rng: random.Random) -> Rows | None:
    """Of whole programs, until they have `count` kernels; None where all have fewer."""
    chosen: list[int] = []
    for task in rng.sample(sorted(tasks), len(tasks)):
        chosen.append(task)
        if (mask := np.isin(rows.task, chosen)).sum() >= count:
            return select(rows, mask)
    return None


def _mean(draws: Sequence[Sequence[Sequence[float]]], weights: Sequence[float]) -> list[float]:
    logs = np.average(np.mean(draws, 0), axis=0, weights=weights)
    return [math.exp(x) for x in logs]


def enough(regret: Mapping[int, Sequence[float]]) -> int | None:
    """The least number of kernels from which on the first choice's regret stays small; None without any."""
    found = None
    for count in sorted(regret, reverse=True):
        if regret[count][0] >= ENOUGH:
            break
        found = count
    return found


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    prior = need_prior(arguments.data)
    programs = choose(read_families(arguments.programs, tuple(COUNTS)), arguments.count, arguments.seed)
    jobs = [make_job(p, prior, arguments.arms, arguments.seed) for p in programs]
    arch = "" if arguments.dry else ARCH
    config = Config(arguments.workers, ROUNDS, inductor=False, dry=arguments.dry, cold=True, arch=arch)
    path = arguments.out / f"transfer.{device_stem()}.jsonl"
    rows = {
        row.ident: row
        for row in duel_into(path, jobs, config, start, start + arguments.seconds, go_on=True)
        if sum(row.us(name) is not None for name in row.busy if name not in ("aten", "inductor")) > 1
    }
    pairs = [(p, job, rows[job.ident]) for p, job in zip(programs, jobs, strict=True) if job.ident in rows]
    if len(pairs) < FOLDS:
        raise SystemExit(f"{len(pairs)} programs were measured, {FOLDS} are needed: give it more --seconds")
    scores = [scored(at, job, row) for at, (_, job, row) in enumerate(pairs)]
    us = [[v.us for v in score.right if v.us is not None] for score in scores]
    measured = Measured(gather(ScoreBook("", tuple(scores))), us, prior, arguments.seed)
    regret = regrets(measured, arguments.workers)
    summary = {
        "rows": [{"kernels": n, "regret": first, "regret_best8": best} for n, (first, best) in regret.items()],
        "kernels_under_3_percent": enough(regret),
        "kernels_measured": sum(map(len, us)),
    }
    detail = [
        {"kind": p.family, "name": p.name, "shape": p.shape, "us": {v.name: v.us for v in score.right}}
        for (p, _, _), score in zip(pairs, scores, strict=True)
    ]
    name = "transfer" if len(pairs) == len(jobs) else "transfer.partial"
    written = write_result(
        arguments.out, name, summary, len(pairs), {}, {"arch": arch, "programs": detail}, arguments.dry
    )
    print(json.dumps(summary | {"n": len(pairs)}, indent=1))
    print(written)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The schedule prior on a target that nothing was measured on.")
    add_probe(parser, count=80, seconds=400.0)
    parser.add_argument("--arms", type=int, default=24, help="variants of each")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
