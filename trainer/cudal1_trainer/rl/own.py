"""A model of a user's own: stage 3 on the programs of one workload. `cudal1 warm --learn` runs it.

    python -m cudal1_trainer.rl.own TASKS --model BUNDLE --out OUT --seconds 300

    TASKS                  JSON lines with `text`, as `cudal1 train export-misses` writes them
    OUT/fastest.0.jsonl    each program's fastest right design, as the judge timed it
    OUT/model              the model that learned, where it is no worse than BUNDLE on these programs (contest.py)

A model that OUT held before stays where the new one is worse. Needs no data folder. On a CPU it learns from
declared costs, on the host target.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from cudal1_trainer.data.practice import read_tasks
from cudal1_trainer.errors import mistakes_told
from cudal1_trainer.recipe import load_recipe
from cudal1_trainer.rl.contest import contest, is_worse, table
from cudal1_trainer.rl.contrastive import Contrastive
from cudal1_trainer.rl.form import known_hacks
from cudal1_trainer.rl.launch import run_on
from cudal1_trainer.tasks.heldout import hold_out

log = logging.getLogger(__name__)

LOOP_SHARE = 0.6  # of the seconds; the rest goes to start, gate and contest
FASTEST = "fastest.0.jsonl"


def learn(tasks: Path, model: Path, out: Path, seconds: float) -> bool:
    """Whether the model that learned is kept. Raises ValueError where no program can be read or judged here."""
    texts = read_tasks(tasks, hold_out([]))
    recipe = load_recipe("own")
    stage = replace(
        recipe.contrastive,
        minutes=LOOP_SHARE * seconds / 60,
        prompts=min(recipe.contrastive.prompts, len(texts)),
    )
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="run.", dir=out) as folder:
        run = Path(folder)
        run_on(recipe, stage, Contrastive(stage), model, run, lambda _: texts, lambda _: (), sorted(known_hacks()))
        (run / FASTEST).replace(out / FASTEST)
        before, after = contest(recipe, lambda _: _some(texts, stage.probe_tasks), model, run / "model")
        log.info("%s", table(before, after))
        kept = not is_worse(after, before)
        if kept:
            shutil.rmtree(out / "model", ignore_errors=True)
            (run / "model").replace(out / "model")
    return kept


def _some(texts: Sequence[str], count: int) -> list[str]:
    return random.Random(0).sample(list(texts), min(count, len(texts)))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Stage 3 on the programs of one workload.")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="bundle to begin with; may be OUT/model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=300.0, help="in all, about")
    a = parser.parse_args(argv)
    log.info("kept" if learn(a.tasks, a.model, a.out, a.seconds) else "not kept: worse on these programs")


if __name__ == "__main__":
    with mistakes_told():
        main()
