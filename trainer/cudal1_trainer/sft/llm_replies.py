"""Stage 1's other source of replies: any language model that the compiler takes as generator, such as a server's.

    python -m cudal1_trainer.sft.llm_replies --generator "http://127.0.0.1:8000/v1#model=NAME&key=VARIABLE" \\
        --recipe h100 --data trainer/data --out trainer/data/taught.NAME.jsonl --seconds 3600

Method, as published: up to 20 attempts a task, and of what builds and is right at most 2 a task and model. The
model is asked as in use (instructions, facts, region), the judge decides and measures. Lines are those of
scored.py: a data folder's taught*.jsonl are measured pairs of stage 1 like the templates' own, and so are held
against held-out programs when they are read. A run that was killed goes on. Left out: refusals shown in a next
attempt, several rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cudal1_compile.codegen.replies import complete
from cudal1_compile.generate.errors import GeneratorTimeout, PromptTooLong
from cudal1_compile.generate.factory import make_generator
from cudal1_compile.generate.prompt import build_prompt
from cudal1_compile.generate.protocol import Generator, propose_within, token_counter
from cudal1_compile.judge.verdict import Accepted
from cudal1_compile.kernel.candidate import Reply, parse_reply
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.pairs import Measured
from cudal1_trainer.data.practice import read_tasks, training_tasks
from cudal1_trainer.data.scored import ScoredProgram, print_scored
from cudal1_trainer.recipe import load_recipe
from cudal1_trainer.scores.outcome import Code, classify
from cudal1_trainer.scores.referee import Group, Referee, Ruling, Rulings, make_referee
from cudal1_trainer.scores.scorebook import drop_torn_line, read_lines
from cudal1_trainer.tasks.heldout import read_heldout

log = logging.getLogger(__name__)

TOGETHER = 16  # tasks asked for and judged at once
SILENCE_S = 240.0  # of the judge


@dataclass(frozen=True, slots=True)
class Lessons:
    """How much is asked for and kept."""

    attempts: int  # replies a task
    kept: int  # right ones, the fastest
    seconds: float


def collect_replies(
    generator: Generator, referee: Referee, texts: Sequence[str], lessons: Lessons, path: Path
) -> int:
    """Appends a line for every task with a right reply; returns how many it wrote."""
    deadline, written = time.monotonic() + lessons.seconds, 0
    known = _begin(path, referee.target.facts(), generator.name)
    todo = [t for t in texts if t not in known]
    with path.open("a") as stream:
        for start in range(0, len(todo), TOGETHER):
            if (left_s := deadline - time.monotonic()) <= 0:
                break
            try:
                lines = list(_ask(generator, referee, todo[start : start + TOGETHER], lessons, start, left_s))
            except GeneratorTimeout:
                break
            stream.write("".join(f"{line}\n" for line in lines))
            stream.flush()
            written += len(lines)
            log.info("%d of %d tasks asked for, %d with a right reply", start + TOGETHER, len(todo), written)
    return written


def _begin(path: Path, facts: str, name: str) -> set[str]:
    """The tasks that a file holds; a new one gets its head. Raises ValueError for another target's."""
    drop_torn_line(path)
    if not path.is_file() or not path.stat().st_size:
        path.write_text(json.dumps({"facts": facts, "generator": name}) + "\n")
    head, *lines = read_lines(path)
    if head["facts"] != facts:
        raise ValueError(f"{path.name} was measured on {head['facts']!r}, this is {facts!r}: give another --out")
    return {line["text"] for line in lines}


def _ask(
    generator: Generator, referee: Referee, texts: Sequence[str], lessons: Lessons, key: int, limit_s: float
) -> Iterator[str]:
    """Lines. Raises GeneratorTimeout."""
    prompts = {t: prompt for t in texts if (prompt := _prompt(generator, referee, t)) is not None}
    answers = propose_within(generator, list(prompts.values()), lessons.attempts, key, limit_s)
    replies = dict(zip(prompts, answers, strict=True))
    read = {
        t: [(c, r) for r in found if isinstance(c := classify(r, t, ()), Code)] for t, found in replies.items()
    }
    codes = {t: tuple(dict.fromkeys(c.code for c, _ in found)) for t, found in read.items()}
    referee.submit(key, [Group(t, found, None) for t, found in codes.items()])
    rulings = referee.result(key)
    for text, found in read.items():
        scored = _keep(
            text, {c.code: complete(parse_program(text), parse_reply(r)) for c, r in found}, rulings, lessons.kept
        )
        if scored is not None:
            yield print_scored(scored, text)


def _prompt(generator: Generator, referee: Referee, text: str) -> str | None:
    try:
        return build_prompt(referee.target.facts(), text, (), generator.budget_tokens, token_counter(generator))
    except PromptTooLong:
        return None


def _keep(text: str, replies: dict[str, Reply], rulings: Rulings, kept: int) -> ScoredProgram | None:
    found = []
    for code, reply in replies.items():
        times = _times(rulings[text, code])
        if times is not None:
            found.append((times, replace(reply, code=code)))
    if not found:
        return None
    found.sort(key=lambda item: item[0])
    measured = tuple(Measured(reply, us) for (us, _), reply in found[:kept])
    return ScoredProgram(parse_program(text), found[0][0][1], measured)


def _times(ruling: Ruling | None) -> tuple[float, float] | None:
    """Of the candidate and of the baseline; None where it is not right."""
    verdict = None if ruling is None else ruling.second or ruling.verdict
    if not isinstance(verdict, Accepted):
        return None
    timing, cost = verdict.proof.timing, verdict.proof.host_cost
    if timing is not None:
        return timing.candidate_us, timing.aten_us
    return (cost.candidate, cost.baseline) if cost else None


def main(argv: list[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description="Training kernels written by a language model.")
    parser.add_argument("--generator", required=True, help="as in the compiler's option of this name")
    parser.add_argument("--recipe", default="h100", help="says which tasks are drawn, as in stage 3")
    parser.add_argument("--data", type=Path, default=Path("trainer/data"), help="folder with heldout.json")
    parser.add_argument(
        "--tasks", type=Path, help="own programs instead: what `cudal1 train export-misses` writes"
    )
    parser.add_argument("--count", type=int, default=1000, help="tasks")
    parser.add_argument("--out", type=Path, required=True, help="file; stage 1 reads DATA/taught*.jsonl")
    parser.add_argument("--attempts", type=int, default=20, help="replies a task")
    parser.add_argument("--keep", type=int, default=2, help="right ones of a task")
    parser.add_argument("--seconds", type=float, default=3600.0)
    a = parser.parse_args(argv)
    recipe, cuda = load_recipe(a.recipe), torch.cuda.is_available()
    with make_referee(0 if cuda else None, SILENCE_S, recipe.seed) as referee:
        stage = replace(recipe.contrastive, tasks=a.count)
        own = read_tasks(a.tasks, read_heldout(a.data / "heldout.json")) if a.tasks else None
        texts = own or training_tasks(recipe, stage, a.data, referee.target)
        generator = make_generator(a.generator, "cuda" if cuda else "cpu")
        written = collect_replies(generator, referee, texts, Lessons(a.attempts, a.keep, a.seconds), a.out)
    log.info("%d tasks with a right reply in %s", written, a.out)


if __name__ == "__main__":
    from cudal1_trainer.errors import mistakes_told

    with mistakes_told():
        main()
