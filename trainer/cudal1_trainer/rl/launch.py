"""From the command line of stage 2 or 3 to a running stage: arguments, tasks, the judge's process."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from cudal1_compile.runtime.target import Target
from cudal1_trainer.data.practice import Texts, probe_tasks, read_tasks, training_tasks
from cudal1_trainer.recipe import Recipe, StageRecipe, load_recipe
from cudal1_trainer.rl.form import form_digest, known_hacks
from cudal1_trainer.rl.stage import Method, Setup, Stage, start_accelerator
from cudal1_trainer.scores.referee import make_referee
from cudal1_trainer.scores.scorebook import read_lines
from cudal1_trainer.tasks.heldout import read_heldout

log = logging.getLogger(__name__)


def make_parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--recipe", default="h100", help="name of a built-in recipe, or a YAML file")
    parser.add_argument("--model", type=Path, required=True, help="bundle that the stage begins with")
    parser.add_argument("--out", type=Path, required=True, help="folder of this run; an interrupted one goes on")
    parser.add_argument("--data", type=Path, default=Path("trainer/data"), help="folder with heldout.json")
    parser.add_argument(
        "--tasks", type=Path, help="own programs instead: what `cudal1 train export-misses` writes"
    )
    parser.add_argument("--seed", type=int, help="instead of the recipe's")
    parser.add_argument("--minutes", type=float, help="of the loop, instead of the recipe's")
    return parser


def read_recipe(arguments: argparse.Namespace, stage: Literal["self_supervised", "contrastive"]) -> Recipe:
    """With the seed and the minutes that the command line gives; by the clock then, also where it counts steps."""
    recipe = load_recipe(arguments.recipe)
    if arguments.seed is not None:
        recipe = replace(recipe, seed=arguments.seed)
    if arguments.minutes is None:
        return recipe
    return replace(recipe, **{stage: replace(getattr(recipe, stage), minutes=arguments.minutes, steps=0)})


def find_hacks(data: Path) -> list[str]:
    """Digests: of the red team's kernels, and of earlier runs' cases, where DATA holds their hacks.*.jsonl."""
    cases = (raw for path in sorted(data.glob("hacks*.jsonl")) for raw in read_lines(path))
    return [*known_hacks(), *(form_digest(raw["code"]) for raw in cases)]


def run_stage(
    recipe: Recipe, stage: StageRecipe, method: Method, model: Path, data: Path, out: Path, tasks: Path | None
) -> dict[str, Any]:
    """Runs a stage to its end on the programs that the recipe and the command line say; returns the report."""

    def texts(target: Target) -> Sequence[str]:
        own = read_tasks(tasks, read_heldout(data / "heldout.json")) if tasks else None
        return own or training_tasks(recipe, stage, data, target)

    def probes(target: Target) -> Sequence[str]:
        return probe_tasks(recipe, stage, data, target)

    return run_on(recipe, stage, method, model, out, texts, probes, find_hacks(data))


def run_on(
    recipe: Recipe,
    stage: StageRecipe,
    method: Method,
    model: Path,
    out: Path,
    texts: Texts,
    probes: Texts,
    hacks: Sequence[str],
) -> dict[str, Any]:
    """Practises on `texts`, tries the model on `probes` before and after. hacks: of known ones, form_digest."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    accelerator = start_accelerator()
    index = accelerator.device.index or 0 if accelerator.device.type == "cuda" else None
    with make_referee(index, stage.silence_s, recipe.seed) as referee:
        setup = Setup(recipe, stage, model, out, texts(referee.target), probes(referee.target), hacks)
        report = Stage(setup, method, accelerator, referee).run()
    log.info("%s", json.dumps({k: v for k, v in report.items() if k != "recipe"}))
    return report
