"""What edits of a lowered kernel could win: random ones of the fastest variant, the winners timed again.

    python -m benchmarks.edit_headroom --data trainer/data --out OUT --seconds 540     on a GPU

Of some programs of rlval.jsonl (rlval_cut.py), as many of each kind as it has there:

    1  the variants that the schedule prior takes for the fastest: the fastest right one is the base
    2  --edits kernels that one to three random edits make of it (codegen/edits), beside it
    3  the fastest of them beside it again, in more rounds: what is the fastest of many by luck loses here

`summary.best_of_edits` is the geomean of base over what 3 leaves, the base where no edit is faster, by weight of
the base's time under `by_time`; `detail.knobs` tells which edits the winners have. Programs are timed cold, one
after the other, in worker processes of one GPU; OUT/edits.*.jsonl grow, and a second run goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.duel import Config, Job, Row, duel_into
from benchmarks.families import FamilyProgram, read_families
from benchmarks.result_file import bootstrap, device_stem, geomean, write_result
from benchmarks.rlval_cut import COUNTS, RLVAL, is_in_tf32
from cudal1_compile.codegen.edits import Edit, draw_replies, parse_edits, print_edits
from cudal1_compile.codegen.prior.regression import Prior
from cudal1_compile.codegen.ranking import ranked
from cudal1_compile.codegen.stages.schedule import Schedule
from cudal1_compile.runtime.cores import usable_cores
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.fit_prior import need_prior

BASE = "base"
AGAIN = 4  # kernels that are timed again
ROUNDS, ROUNDS_AGAIN = 9, 41


@dataclass(frozen=True)
class Base:
    program: FamilyProgram
    schedule: Schedule
    code: str


def likely(program: FamilyProgram, prior: Prior, count: int) -> dict[str, Schedule]:
    """code -> schedule, what the prior takes for the fastest first."""
    return {reply.code: schedule for schedule, reply in islice(ranked(parse_program(program.text), prior), count)}


def edited(base: Base, count: int, seed: int) -> dict[str, tuple[Edit, ...]]:
    """Distinct codes, each with one to three random edits; fewer where there are no more."""
    program, rng = parse_program(base.program.text), random.Random(f"{seed} {base.program.text}")
    replies = draw_replies(program, base.schedule, rng, count, 4 * count)
    return {reply.code: parse_edits(reply.edits) for reply in replies}


def job_of(program: FamilyProgram, step: str, codes: Mapping[str, str]) -> Job:
    """codes: by name."""
    ident = hashlib.sha256(json.dumps([step, program.text, codes]).encode()).hexdigest()[:16]
    return Job(ident, program.text, tuple(codes.items()), tf32=is_in_tf32(program.family))


def fastest(row: Row | None, among: Sequence[str]) -> list[str]:
    """Those that ran right, the fastest first."""
    us = {name: found for name in among if row is not None and (found := row.us(name)) is not None}
    return sorted(us, key=us.__getitem__)


class Probe:
    """Three duels, each of all programs that have something for it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.start = arguments, time.monotonic()

    def duel(self, step: str, jobs: Sequence[Job], rounds: int) -> dict[str, Row]:
        given = self.arguments
        config = Config(given.workers, rounds, inductor=False, dry=given.dry, cold=True)
        path = given.out / f"edits.{step}.{device_stem()}.jsonl"
        rows = duel_into(path, jobs, config, self.start, self.start + given.seconds, go_on=True)
        return {row.ident: row for row in rows}

    def bases(self, programs: Sequence[FamilyProgram], prior: Prior) -> list[Base]:
        arms = [likely(p, prior, self.arguments.arms) for p in programs]
        jobs = [
            job_of(p, "arms", {f"arm{i}": code for i, code in enumerate(a)})
            for p, a in zip(programs, arms, strict=True)
        ]
        rows = self.duel("arms", jobs, ROUNDS)
        found: list[Base] = []
        for program, some, job in zip(programs, arms, jobs, strict=True):
            for name in islice(fastest(rows.get(job.ident), [n for n, _ in job.codes]), 1):
                code = dict(job.codes)[name]
                found.append(Base(program, some[code], code))
        return found


def choose(programs: Sequence[FamilyProgram], count: int, seed: int) -> list[FamilyProgram]:
    """In a fair order: the kinds take turns."""
    by_kind: dict[str, list[FamilyProgram]] = {}
    for program in random.Random(seed).sample(list(programs), len(programs)):
        by_kind.setdefault(program.family, []).append(program)
    share = count / len(programs)
    return [p for some in by_kind.values() for p in some[: max(1, round(share * len(some)))]]


def main(argv: list[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    arguments.out.mkdir(parents=True, exist_ok=True)
    prior = need_prior(arguments.data)
    programs = choose(read_families(arguments.programs, tuple(COUNTS)), arguments.count, arguments.seed)
    probe = Probe(arguments)
    bases = probe.bases(programs, prior)
    drawn = [edited(base, arguments.edits, arguments.seed) for base in bases]
    named = [
        {BASE: b.code} | {f"edit{i}": code for i, code in enumerate(d)} for b, d in zip(bases, drawn, strict=True)
    ]
    jobs = [job_of(b.program, "edits", codes) for b, codes in zip(bases, named, strict=True)]
    rows = probe.duel("edits", jobs, ROUNDS)
    second: list[Job] = []
    for base, codes, job in zip(bases, named, jobs, strict=True):
        best = [n for n in fastest(rows.get(job.ident), list(codes)) if n != BASE][:AGAIN]
        second.append(job_of(base.program, "again", {n: codes[n] for n in (BASE, *best)}))
    again = probe.duel("again", second, ROUNDS_AGAIN)
    write(arguments, bases, drawn, [rows.get(j.ident) for j in jobs], [again.get(j.ident) for j in second])


def write(
    arguments: argparse.Namespace,
    bases: Sequence[Base],
    drawn: Sequence[Mapping[str, tuple[Edit, ...]]],
    rows: Sequence[Row | None],
    again: Sequence[Row | None],
) -> None:
    gains: list[float] = []
    weights: list[float] = []
    knobs: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    detail = []
    for base, edits, row, last in zip(bases, drawn, rows, again, strict=True):
        names = [f"edit{i}" for i in range(len(edits))]
        best = fastest(last, [BASE, *names])
        base_us = last.us(BASE) if last is not None else None
        if row is None or last is None or base_us is None or not best:
            continue
        refused.update(why.partition(":")[0] for name, why in row.failures.items() if name in names)
        best_us = last.us(best[0])
        assert best_us is not None
        won = () if best[0] == BASE else list(edits.values())[names.index(best[0])]
        knobs.update(e.knob for e in won)
        gains.append(base_us / best_us)
        weights.append(base_us)
        detail.append(
            {
                "kind": base.program.family,
                "name": base.program.name,
                "shape": base.program.shape,
                "us": [base_us, best_us],
                "edits": print_edits(won),
                "drawn": len(edits),
                "right": sum(row.us(n) is not None for n in names),
            }
        )
    if not gains:
        raise SystemExit("no program was measured to its end: give it more --seconds")
    logs = np.log(gains)
    summary = {
        "best_of_edits": geomean(gains),
        "by_time": math.exp(float(np.average(logs, weights=weights))),
        "products": geomean([g for g, d in zip(gains, detail, strict=True) if is_of_products(d["kind"])] or [1.0]),
        "over_3_percent": sum(g > 1.03 for g in gains),
        "right": sum(d["right"] for d in detail) / max(1, sum(d["drawn"] for d in detail)),
    }
    name = "edits" if len(gains) == len(bases) else "edits.partial"
    found = {"knobs": dict(knobs.most_common()), "refused": dict(refused), "programs": detail}
    written = write_result(
        arguments.out,
        name,
        summary,
        len(gains),
        {"best_of_edits": bootstrap(gains, geomean)},
        found,
        arguments.dry,
    )
    print(json.dumps(summary | {"n": len(gains)}, indent=1))
    print(written)


def is_of_products(kind: str) -> bool:
    return kind.startswith(("product", "batched", "conv"))


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="What random edits of the fastest variant win, on rlval's programs."
    )
    add_probe(parser, count=60, seconds=540.0)
    parser.add_argument("--arms", type=int, default=12, help="variants of which the fastest is the base")
    parser.add_argument("--edits", type=int, default=64, help="edited kernels a program")
    return parser.parse_args(argv)


def add_probe(parser: argparse.ArgumentParser, count: int, seconds: float) -> None:
    """What a probe of rlval's variants is told, whatever it looks for."""
    parser.add_argument("--data", type=Path, required=True, help="folder of the schedule prior's scores")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--programs", type=Path, default=RLVAL, help="as benchmarks.rlval_cut writes them")
    parser.add_argument("--count", type=int, default=count, help="programs")
    parser.add_argument("--workers", type=int, default=max(1, usable_cores() - 2))
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="on the host target: proves the script")


if __name__ == "__main__":
    main()
