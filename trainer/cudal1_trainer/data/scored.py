"""Measured programs written out for training: the score file names schedules, this holds their replies.

    write_scored(data, path, workers)      once, before training: 6 minutes of one core
    read_scored(path).draw(rng)            a program with its right variants and their times, in every producer

A variant counts only where today's templates still write the code that was measured (the digest tells), and a
program only where it is not held out. What language models wrote (llm_replies.py) comes with its code, and joins.
Lines are parsed when they are drawn, so a producer holds text, not objects.
"""

from __future__ import annotations

import json
import logging
import lzma
import os
import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

from cudal1_compile.codegen.stages.schedule import parse_schedule
from cudal1_compile.kernel.candidate import Reply
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.pairs import Measured
from cudal1_trainer.scores.scorebook import TaskScore, read_lines, read_scores, score_files
from cudal1_trainer.tasks.heldout import HeldOut, read_heldout
from cudal1_trainer.tasks.variants import write_variant

log = logging.getLogger(__name__)

SCORED = "scored.jsonl.xz"  # 142 MB of text, or 5


@dataclass(frozen=True)
class ScoredProgram:
    """A measured program with its right variants written out again."""

    program: Program
    aten_us: float | None
    measured: tuple[Measured, ...]


@dataclass(frozen=True)
class ScoredPrograms:
    """All of them on one GPU model, as lines."""

    facts: str  # the facts line of a prompt for that GPU
    lines: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def _weights(self) -> list[float]:
        return list(accumulate(1.0 / len(line) for line in self.lines))

    def draw(self, rng: random.Random) -> ScoredProgram:
        """Short ones more often: their prompts cost less."""
        return parse_scored(rng.choices(self.lines, cum_weights=self._weights)[0])


def write_again(score: TaskScore, heldout: HeldOut) -> ScoredProgram | None:
    """A measured task's program and replies; None where it is held out or its code is not what was measured."""
    program = parse_program(score.text)
    if heldout.holds(program):
        return None
    measured = []
    for item in score.right:
        variant = write_variant(program, parse_schedule(item.name))
        if variant is not None and variant.digest == item.digest and item.us is not None:
            measured.append(Measured(variant.reply, item.us))
    if not measured:
        return None
    return ScoredProgram(program, score.aten_us, tuple(measured))


def write_scored(data: Path, path: Path, workers: int) -> Path | None:
    """Writes every usable measured program of a data folder; None where the folder holds none.

    Raises ValueError where it holds some and none is usable: training would go on without them.
    """
    book, heldout = read_scores(score_files(data)), read_heldout(data / "heldout.json")
    taught = [read_lines(p) for p in sorted(data.glob("taught*.jsonl"))]
    facts = {book.facts} if book is not None else set()
    facts |= {next(lines)["facts"] for lines in taught}
    if len(facts) > 1:
        raise ValueError(
            f"{data} holds measurements of {len(facts)} kinds of GPU: {', '.join(sorted(facts))}; keep one"
        )
    if not facts:
        return None
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        lines = list(
            pool.map(partial(_line, heldout=heldout), book.tasks if book is not None else (), chunksize=64)
        )
    kept = [line for line in lines if line is not None]
    if lines and not kept:
        raise ValueError(
            f"{data}: today's templates write none of the {len(lines)} measured programs' code; measure them anew "
            "(`cudal1 train --steps scores`), or set data.contrastive and data.scored_plain to 0"
        )
    kept += [json.dumps(raw) for line in taught for raw in line if not heldout.holds(parse_program(raw["text"]))]
    temporary = path.with_suffix(".tmp")
    with lzma.open(temporary, "wt", preset=1) as stream:
        stream.writelines(f"{line}\n" for line in [json.dumps(facts.pop()), *kept])
    os.replace(temporary, path)
    log.info("%d measured programs written out, of %d in scores", len(kept), len(lines))
    return path


def read_scored(path: Path | None) -> ScoredPrograms | None:
    if path is None:
        return None
    with lzma.open(path, "rt") as stream:
        facts, *lines = stream.read().splitlines()
    return ScoredPrograms(json.loads(facts), tuple(lines))


def print_scored(scored: ScoredProgram, text: str) -> str:
    replies = [[m.reply.analysis, m.reply.design, m.reply.code, m.us] for m in scored.measured]
    return json.dumps({"text": text, "aten_us": scored.aten_us, "replies": replies})


def parse_scored(line: str) -> ScoredProgram:
    raw = json.loads(line)
    measured = tuple(Measured(Reply(a, d, c), us) for a, d, c, us in raw["replies"])
    return ScoredProgram(parse_program(raw["text"]), raw["aten_us"], measured)


def _line(score: TaskScore, heldout: HeldOut) -> str | None:
    scored = write_again(score, heldout)
    return None if scored is None else print_scored(scored, score.text)
