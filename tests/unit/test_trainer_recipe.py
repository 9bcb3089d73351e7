"""Recipes: the built-in ones load, a misspelt key or a wrong type is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudal1_trainer.recipe import RECIPES, load_recipe


@pytest.mark.parametrize("name", [p.stem for p in sorted(RECIPES.glob("*.yaml"))])
def test_built_in_recipes_load(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.model.hidden % recipe.model.heads == 0
    assert recipe.data.max_tokens <= recipe.model.max_positions


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("seed: 1\nmodle: {}\n", "modle"),
        ("train: {minuts: 2}\n", "minuts"),
        ("train: {minutes: long}\n", "float"),
        ("model: {hidden: 1.5}\n", "int"),
        ("- 1\n", "keys and values"),
        ("train: [1]\n", "keys and values"),
        ("1: 2\n", "unknown key 1"),
        ("train: {\n", "no YAML"),
        ("contrastive: {lr: 1e-4}\n", "1.0e-4"),
        ("contrastive: {arm: bucket}\n", "contrastive.arm='bucket'"),
        ("contrastive: {baseline: none}\n", "contrastive.baseline"),
        ("self_supervised: {temperature: 0.0}\n", "self_supervised.temperature"),
        ("contrastive: {group: 0}\n", "contrastive.group"),
        ("contrastive: {ratio_clip: 0.0}\n", "contrastive.ratio_clip"),  # would be plain likelihood
        ("contrastive: {minutes: 0.0}\n", "contrastive.steps=0, minutes=0.0"),
        ("train: {minutes: -1.0}\n", "train.steps=0, minutes=-1.0"),
        ("train: {minutes: .nan}\n", "train.minutes=nan"),
        ("train: {warmup_steps: 0}\n", "train.warmup_steps"),
        ("train: {lr: 1.0e-3}\ntrain: {steps: 3}\n", "train twice"),
        ("data: {chunk_tokens: 0}\n", "data.chunk_tokens=0"),
        ("data: {pool: 0}\n", "data.pool=0"),
        ("model: {heads: 0}\n", "model.heads=0"),
        ("model: false\n", "keys and values"),
        ("name: ../../evil\n", "name='../../evil'"),
        ("name: [1]\n", "name="),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=word):
        load_recipe(str(path))


def test_a_recipe_may_extend_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: nano\nseed: 9\ntrain: {lr: 0.003}\n")
    mine, nano = load_recipe(str(path)), load_recipe("nano")
    assert (mine.name, mine.seed, mine.train.lr) == ("mine", 9, 0.003)
    assert mine.data == nano.data
    assert mine.train.warmup_steps == nano.train.warmup_steps
    path.write_text("extends: further\n")
    with pytest.raises(ValueError, match="extends another"):
        load_recipe(str(path))


def test_an_unknown_recipe_lists_the_known() -> None:
    with pytest.raises(ValueError, match="nano"):
        load_recipe("gigantic")


def test_any_number_changes_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("train: {lr: 0.002}\n")
    first = load_recipe(str(path)).digest
    path.write_text("train: {lr: 0.003}\n")
    assert load_recipe(str(path)).digest != first
    path.write_text("train: {lr: 0.002}\ndata: {workers: 3}\n")  # what a machine has cores for
    assert load_recipe(str(path)).digest == first
