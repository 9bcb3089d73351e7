"""Stage 3: contrastive reinforcement learning on the judge's measurements.

Method: the prompt shows earlier variants of the task with their scores, from a database of the policy's own right
replies: of distinct score buckets, drawn by a softmax over centred bucket means. Published are two kernels; here
it is up to 16 designs, so the buckets go round. The reply has three sections (Reply V2); its analysis must name
the fastest in the order in which they were measured: it is checked.

    score      baseline over candidate by the judge, rounded toward 1; 0 for a refusal, a copy of a shown variant
               and a contradicting analysis; gains that stand out are measured again, on fresh data, and must agree
    smoothed   (log score - mu) / sigma over the task's last right replies, clipped to 1.5; -1.5 for a score of 0
    advantage  within the group of one prompt: GRPO's mean and deviation, or `baseline: leave_one_out`
    loss       clipped ratio, and KL to the checkpoint that the stage began with

Arms: `buckets` as above; `random` draws the variants uniformly; `plain` is GRPO that shows none. `islands: k`
in a recipe keeps k populations that do not see each other's variants. Not published and chosen here: every number.
Left out: a reward weighted by the region's share of a model's time (a task is one region here), Inductor as the
quick baseline (a constant factor of a task, which smoothing removes). --model may be of any kind (base.py).
The share of hacks counts what the text gate forbids and what a GPU's timing makes unbelievable (outcome.py).
Code that is a known one but for its names is measured again: this run's, the judge's attacks, DATA/hacks*.jsonl
of earlier runs.

    python -m cudal1_trainer.rl.contrastive --recipe h100 --model runs/self/model --out runs/buckets --arm buckets
    accelerate launch --multi_gpu --num_processes 2 -m cudal1_trainer.rl.contrastive --recipe h100 ...

A run that was killed goes on when the same command is given again; what it leaves is told in self_supervised.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cudal1_compile.generate.exemplars import Choice, ExemplarConfig
from cudal1_compile.kernel.candidate import Exemplar
from cudal1_trainer.errors import mistakes_told
from cudal1_trainer.recipe import Recipe, StageRecipe
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.launch import make_parser, read_recipe, run_stage
from cudal1_trainer.rl.policy import Objective
from cudal1_trainer.rl.reward import BASELINES, smooth
from cudal1_trainer.scores.outcome import Outcome

CHOICE: dict[str, Choice] = {"buckets": "buckets", "random": "random", "plain": "none"}


class Contrastive:
    """One arm."""

    nearest = True  # so that what is learned is speed

    def __init__(self, stage: StageRecipe) -> None:
        self.name = f"contrastive_{stage.arm}"
        self.objective = Objective(stage.ratio_clip, stage.kl)
        self.exemplars = ExemplarConfig(CHOICE[stage.arm], stage.shown, stage.width, stage.tau)
        self.advantages = BASELINES[stage.baseline]

    def show(self, book: Book, task: int, island: int, seed: int) -> list[Exemplar]:
        return book.choose(task, island, self.exemplars, seed)

    def weigh(self, book: Book, task: int, outcomes: Sequence[Outcome]) -> list[float]:
        scores = [None if o.kind == "undecided" else o.score for o in outcomes]
        return self.advantages(smooth(scores, book.remember(task, scores)))


def train(recipe: Recipe, model: Path, data: Path, out: Path, tasks: Path | None = None) -> dict[str, Any]:
    return run_stage(recipe, recipe.contrastive, Contrastive(recipe.contrastive), model, data, out, tasks)


def main(argv: list[str] | None = None) -> None:
    parser = make_parser("Stage 3: contrastive reinforcement learning.")
    parser.add_argument("--arm", choices=list(CHOICE), help="instead of the recipe's")
    arguments = parser.parse_args(argv)
    recipe = read_recipe(arguments, "contrastive")
    if arguments.arm is not None:
        recipe = replace(recipe, contrastive=replace(recipe.contrastive, arm=arguments.arm))
    train(recipe, arguments.model, arguments.data, arguments.out, arguments.tasks)


if __name__ == "__main__":
    with mistakes_told():
        main()
