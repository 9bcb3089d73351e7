"""Two bundles on the same held-out programs, and the better one in its place.

    old, new = contest(recipe, held_out(recipe, data), old_folder, new_folder)     as before and after a stage
    install(new_folder, old_folder)                              the new bundle's files in the old one's place

A bundle is worse where it is right less often, or where its best replies are slower.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from cudal1_compile.generate.model_files import check_model_dir
from cudal1_trainer.data.practice import Texts, probe_tasks
from cudal1_trainer.model.base import load_base
from cudal1_trainer.recipe import Recipe
from cudal1_trainer.rl.book import Book
from cudal1_trainer.rl.examine import Marks, examine
from cudal1_trainer.rl.rollouts import open_desk
from cudal1_trainer.scores.referee import make_referee

FIGURES = ("right_1", "right_n", "reward", "speedup_1", "speedup_best", "hack_rate")


def held_out(recipe: Recipe, data: Path) -> Texts:
    """As many programs as the recipe's stage 3 says."""
    return lambda target: probe_tasks(recipe, recipe.contrastive, data, target)


def contest(recipe: Recipe, texts: Texts, *bundles: Path) -> list[Marks]:
    """As many samples of each program as the recipe's stage 3 says. Raises ModelMissing."""
    for bundle in bundles:
        check_model_dir(bundle)
    stage, index = recipe.contrastive, 0 if torch.cuda.is_available() else None
    with make_referee(index, stage.silence_s, recipe.seed) as referee:
        programs = texts(referee.target)
        device = torch.device("cpu" if index is None else "cuda")
        found = []
        for bundle in bundles:
            base = load_base(bundle)
            base.lm.to(device)
            sampler = base.sampler(base.lm.device)
            desk = open_desk(base, programs, referee, Book(1, 1), stage.max_new, sampler)
            found.append(examine(desk, stage.probe_samples, stage.temperature, recipe.seed))
    return found


def is_worse(new: Marks, old: Marks) -> bool:
    return new.right_1 < old.right_1 or new.speedup_best < old.speedup_best


def table(old: Marks, new: Marks) -> str:
    rows = [(name, getattr(old, name), getattr(new, name)) for name in FIGURES]
    lines = [f"{name:<14}{a:>8.3f}{b:>8.3f}" for name, a, b in rows]
    return "\n".join([f"{old.programs} held-out programs{'old':>3}{'new':>8}", *lines])


def install(new: Path, old: Path) -> None:
    """The folder `old` is replaced as a whole; what it held stays beside it as `old.before`.

    Raises ValueError where that is the new one.
    """
    old, new = old.resolve(), new.resolve()
    before = old.with_name(old.name + ".before")
    if new in (old, before):
        raise ValueError(f"{new} would be overwritten; give a copy of it under another name")
    with TemporaryDirectory(prefix=f"{old.name}.", dir=old.parent) as folder:
        fresh = Path(folder) / "model"
        shutil.copytree(new, fresh)
        shutil.rmtree(before, ignore_errors=True)
        os.replace(old, before)
        os.replace(fresh, old)
