"""The measuring step: how fast every template's variants run on this GPU, checked, written line by line.

    python -m cudal1_trainer.scores.collect --data trainer/data --out OUT --seconds 480 [--recipe h100]
    python -m cudal1_trainer.scores.collect --data trainer/data --out OUT --seconds 90 --having joined --rows 512

Worker processes make a program, write and build its variants (CPU, in parallel), then take the device lock, check
every kernel against the float64 oracle and time the right ones beside aten. Tasks, widened tasks, structures and
structures with products come by turns, or some of these only; those already in the score files of --data or --out
are skipped, so a run that was killed, or a later run, goes on. Held-out programs are never measured. Where a
template is new, or the prior is wrong, only programs of that kind are wanted (Wanted), half of their schedules by
that template. At the end the lines are packed as gzip parts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cudal1_compile.codegen.prior.traffic import bytes_moved
from cudal1_compile.codegen.templates import variants
from cudal1_compile.runtime.cores import usable_cores
from cudal1_compile.runtime.target import Target, detect_target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.recipe import load_recipe
from cudal1_trainer.scores.measure import Mark, Measurement, build_all, context_kept, measure
from cudal1_trainer.scores.quickcheck import Unusable
from cudal1_trainer.scores.scorebook import (
    TaskScore,
    VariantScore,
    drop_torn_line,
    pack,
    print_score,
    read_scores,
    score_files,
)
from cudal1_trainer.scores.workers import Exclusive, Finished, Lost, Outcome, run_jobs
from cudal1_trainer.tasks.heldout import HeldOut, read_heldout
from cudal1_trainer.tasks.product_sizes import MEASURED, resize_structure
from cudal1_trainer.tasks.products import draw_product
from cudal1_trainer.tasks.structures import STRUCTURES, read_structures
from cudal1_trainer.tasks.variants import WIDE_SEED, Variant, make_task, uses, write_variants

log = logging.getLogger(__name__)

LIMIT_S = 30.0  # silence after which a worker counts as hung
STRUCTURE_SEED = 2**58
PRODUCT_SEED = 2**59
KINDS = {"tasks": 0, "widened": WIDE_SEED, "structures": STRUCTURE_SEED, "products": PRODUCT_SEED}
VARIED = 0.5  # share of the structures with products that are changed first
MAX_LOSSES = 3  # of one task, after which it is left out
REPORT_S = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    seed: int
    limit: int  # variants
    blamed: tuple[str, ...] = ()  # variants that broke a worker; recorded, not run again
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Programs that are measured."""

    schedule_kind: str = ""  # some schedule has a stage of a kind that begins so
    bytes: float = 0.0  # of inputs and outputs, at least
    rows: float = math.inf  # results of the longest reduction, at most
    ops: float = math.inf  # operations, at most
    text: str = ""  # a regular expression that is found in its text

    def holds(self, program: Program) -> bool:
        if len(program.ops) > self.ops or bytes_moved(program) < self.bytes:
            return False
        if not re.search(self.text, print_program(program)):
            return False
        reduced = (o for o in program.ops if o.over and o.fn != "iota")
        longest = max(reduced, key=lambda o: program.size(o.over), default=None)
        if longest and program.size(longest.axes) > self.rows:
            return False
        return not self.schedule_kind or any(uses(s, self.schedule_kind) for s in variants(program))


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker makes its state from; pickles."""

    heldout: Path
    lock: Path
    wanted: Wanted

    def __call__(self) -> Worker:
        torch.set_num_threads(1)
        device = torch.device("cuda", 0)
        data = self.heldout.parent
        structures, products, hard, _, gathered = (read_structures(data / name) for name in STRUCTURES)
        torch.zeros(1, device=device)
        heldout, lock = read_heldout(self.heldout), Exclusive(self.lock)
        texts = structures + hard, products + gathered
        return Worker(device, detect_target(device), heldout, lock, *texts, self.wanted)


@dataclass(frozen=True)
class Worker:
    device: torch.device
    target: Target
    heldout: HeldOut
    lock: Exclusive
    structures: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    wanted: Wanted = Wanted()


def make_program(seed: int, structures: tuple[str, ...], products: tuple[str, ...] = ()) -> Program:
    """From STRUCTURE_SEED on a structure at new sizes, from PRODUCT_SEED on one with a product; else a task."""
    if seed < STRUCTURE_SEED:
        return make_task(seed)
    rng = random.Random(f"structure {seed}")
    if seed >= PRODUCT_SEED and products:
        return draw_product(products, rng, VARIED, MEASURED)
    if not structures:
        return make_task(seed - STRUCTURE_SEED + 2**40)  # a task that no other seed here names
    return resize_structure(parse_program(rng.choice(structures)), rng)


@context_kept()
def score_task(worker: Worker, job: Job, mark: Mark) -> TaskScore | None:
    """None where the task is held out, no template answers it, or its reference is not finite."""
    program = make_program(job.seed, worker.structures, worker.products)
    if worker.heldout.holds(program) or not worker.wanted.holds(program):
        return None
    written = write_variants(program, job.limit, worker.wanted.schedule_kind)
    if not written:
        return None
    unbroken = {v.name: v.candidate for v in written if v.name not in job.blamed}
    built = build_all(program, unbroken, worker.target, mark)
    mark("waits for the device")
    try:
        with worker.lock:
            found = measure(program, built, worker.device, worker.target, mark)
    except Unusable:
        return None
    return _score(job, print_program(program), written, found)


def _score(job: Job, text: str, written: list[Variant], found: Measurement) -> TaskScore:
    scores = []
    for v in written:
        if v.name in found.busy:
            scores.append(VariantScore(v.name, v.digest, round(found.busy[v.name].median_us, 3)))
        else:
            failure = "crash: broke the CUDA context or hung" if v.name in job.blamed else found.failures[v.name]
            scores.append(VariantScore(v.name, v.digest, None, failure))
    aten = found.busy.get("aten")
    return TaskScore(job.seed, text, round(aten.median_us, 3) if aten else None, tuple(scores))


def blame(lost: Lost) -> Job | None:
    """The job again without the variant that was under way; None after MAX_LOSSES."""
    job: Job = lost.job
    if job.losses + 1 >= MAX_LOSSES:
        return None
    named = (*job.blamed, lost.mark) if "/" in lost.mark and " " not in lost.mark else job.blamed
    return replace(job, blamed=named, losses=job.losses + 1)


def jobs_left(done: Iterable[int], budget: Budget) -> Iterator[Job]:
    known = set(done)
    seeds = (base + KINDS[kind] for base in itertools.count() for kind in budget.kinds)
    fresh = (seed for seed in seeds if seed not in known)
    return (Job(seed, budget.variants) for seed in itertools.islice(fresh, budget.programs))


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to measure. workers: processes; 0 is one a core. kinds: by turns, as in training."""

    seconds: float
    programs: int
    variants: int
    workers: int = 0
    kinds: tuple[str, ...] = tuple(KINDS)
    wanted: Wanted = Wanted()


def run(data: Path, out: Path, budget: Budget) -> dict[str, Any]:
    """Measures on this machine's GPU until the time or the tasks are over; returns the summary."""
    lock = Path(tempfile.gettempdir()) / f"cudal1-scores-{os.getpid()}.lock"
    try:
        setup = Setup(data / "heldout.json", lock, budget.wanted)
        return collect(data, out, budget, detect_target(torch.device("cuda", 0)), setup, score_task)
    finally:
        lock.unlink(missing_ok=True)


def collect(
    data: Path,
    out: Path,
    budget: Budget,
    target: Target,
    setup: Callable[[], Any],
    work: Callable[[Any, Job, Mark], TaskScore | None],
) -> dict[str, Any]:
    """Runs the workers and writes OUT/scores.jsonl as results come, then its parts and scores.summary.json."""
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    done = _already_measured([*score_files(data), *score_files(out)], target)
    tally = Tally()
    path = out / "scores.jsonl"
    drop_torn_line(path)
    with path.open("a") as stream:
        if stream.tell() == 0:
            stream.write(json.dumps(_head(target)) + "\n")
        jobs = jobs_left(done, budget)
        workers = budget.workers or usable_cores()
        for outcome in run_jobs(work, setup, jobs, workers, LIMIT_S, start + budget.seconds, blame):
            tally.add(outcome)
            if isinstance(outcome, Finished) and outcome.result is not None:
                stream.write(print_score(outcome.result) + "\n")
                stream.flush()
            tally.report(start)
    parts = [p.name for p in pack(path, out)]
    summary = tally.summary(time.monotonic() - start) | {"parts": parts, "before": len(done)}
    (out / "scores.summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _already_measured(files: list[Path], target: Target) -> set[int]:
    book = read_scores(files)
    if book is None:
        return set()
    if book.facts != target.facts():
        raise ValueError(
            f"existing scores are of {book.facts!r}, this GPU is {target.facts()!r}: give another --data and --out"
        )
    return {t.seed for t in book.tasks}


@dataclass
class Tally:
    """Counts of one run, for the log and the summary."""

    tasks: int = 0
    kernels: int = 0
    right: int = 0
    lost: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    reported: float = field(default_factory=time.monotonic)

    def add(self, outcome: Outcome) -> None:
        if isinstance(outcome, Lost):
            self.lost += 1
            self.failures[f"lost: {outcome.mark}"] += 1
            return
        if outcome.result is None:
            return
        self.tasks += 1
        for v in outcome.result.variants:
            self.kernels += 1
            self.right += v.us is not None
            if v.failure is not None:
                self.failures[f"{v.name.partition('/')[0]}: {v.failure.partition(':')[0]}"] += 1

    def report(self, start: float) -> None:
        now = time.monotonic()
        if now - self.reported > REPORT_S:
            self.reported = now
            rate = self.kernels / (now - start)
            log.info("%d tasks, %d of %d kernels right, %.1f/s", self.tasks, self.right, self.kernels, rate)

    def summary(self, seconds: float) -> dict[str, Any]:
        return {
            "tasks": self.tasks,
            "kernels": self.kernels,
            "right": self.right,
            "lost": self.lost,
            "seconds": round(seconds, 1),
            "kernels_per_s": round(self.kernels / seconds, 1),
            "failures": dict(self.failures.most_common()),
        }


def _head(target: Target) -> dict[str, Any]:
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
    return {"target": asdict(target), "facts": target.facts(), "versions": versions}


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Measures templates' variants on this GPU.")
    parser.add_argument("--recipe", default="h100")
    parser.add_argument("--data", type=Path, required=True, help="folder with heldout.json and earlier scores")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, help="instead of the recipe's")
    parser.add_argument("--workers", type=int, default=0, help="processes; one a core by default")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--having", default="", help="only programs with a schedule of a mapping that begins so")
    parser.add_argument("--text", default="", help="only programs in whose text this regular expression is found")
    parser.add_argument("--bytes", type=float, default=0.0, help="of inputs and outputs, at least")
    parser.add_argument("--rows", type=float, default=math.inf, help="results of the longest reduction, at most")
    parser.add_argument("--ops", type=float, default=math.inf, help="operations, at most")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit(
            "scores: no CUDA device; nothing can be measured here (existing scores are used as they are)"
        )
    recipe = load_recipe(arguments.recipe).scores
    seconds = arguments.seconds or recipe.seconds
    wanted = Wanted(arguments.having, arguments.bytes, arguments.rows, arguments.ops, arguments.text)
    programs = recipe.programs if wanted == Wanted() else sys.maxsize  # most are passed over
    budget = Budget(seconds, programs, recipe.variants, arguments.workers, tuple(arguments.kinds), wanted)
    found = run(arguments.data, arguments.out, budget)
    log.info("%s", json.dumps(found))


if __name__ == "__main__":
    from cudal1_trainer.errors import mistakes_told

    with mistakes_told():
        main()
