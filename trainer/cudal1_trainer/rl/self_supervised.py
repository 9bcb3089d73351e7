"""Stage 2: the model learns from what it wrote itself and the judge found right.

Method, as published: sample, judge, keep what runs and is right, train on it, repeat. That is REINFORCE with
reward 1 or 0 and no baseline: while most samples fail, negative updates destabilise. Here a reply is kept only
where it is not slower than the baseline either (single aten operations; on the host target their declared cost),
or than a template's kernel where that is slower still, as many products are.
Left out: any filter by novelty, replay of older replies. --model may be of any architecture (base.py).

    python -m cudal1_trainer.rl.self_supervised --recipe h100 --model runs/h100/model --out runs/self
    accelerate launch --multi_gpu --num_processes 2 -m cudal1_trainer.rl.self_supervised --recipe h100 ...

A run that was killed goes on when the same command is given again. Under --out: metrics.jsonl, tensorboard/,
hacks.*.jsonl and wrong.*.jsonl (replies), fastest.*.jsonl (designs), state.pt, model/ (the bundle), report.json
(held-out programs before and after), plots/.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudal1_compile.kernel.candidate import Exemplar
from cudal1_trainer.errors import mistakes_told
from cudal1_trainer.recipe import Recipe
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.launch import make_parser, read_recipe, run_stage
from cudal1_trainer.rl.policy import Objective
from cudal1_trainer.scores.outcome import RIGHT, Outcome


class SelfSupervised:
    name = "self_supervised"
    objective = Objective(ratio_clip=0.0, kl=0.0)
    nearest = False

    def show(self, book: Book, task: int, island: int, seed: int) -> list[Exemplar]:
        return []

    def weigh(self, book: Book, task: int, outcomes: Sequence[Outcome]) -> list[float]:
        """1 for what is right and no slower than the bar, else 0."""
        return [float(o.kind in RIGHT and o.score >= book.bar(task)) for o in outcomes]


def train(recipe: Recipe, model: Path, data: Path, out: Path, tasks: Path | None = None) -> dict[str, Any]:
    return run_stage(recipe, recipe.self_supervised, SelfSupervised(), model, data, out, tasks)


def main(argv: list[str] | None = None) -> None:
    arguments = make_parser("Stage 2: self-supervised.").parse_args(argv)
    recipe = read_recipe(arguments, "self_supervised")
    train(recipe, arguments.model, arguments.data, arguments.out, arguments.tasks)


if __name__ == "__main__":
    with mistakes_told():
        main()
