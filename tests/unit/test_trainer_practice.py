"""What stages 2 and 3 practise on: as many products as stage 1, of sizes that can be judged, nothing held out."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from slow_cases import slow_but

from cudal1_compile.judge.inputs.sizes import tensor_bytes, tensor_elements
from cudal1_compile.runtime.target import HOST, Target
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.data.practice import (
    HOST_ELEMENTS,
    MIB,
    PROBE_BYTES,
    _most,
    _take,
    order,
    probe_tasks,
    read_tasks,
    training_tasks,
)
from cudal1_trainer.model.tokenizer import load_tokenizer
from cudal1_trainer.recipe import DataRecipe, Recipe, StageRecipe
from cudal1_trainer.tasks.heldout import hold_out, read_heldout
from cudal1_trainer.tasks.product_sizes import multiplications

DATA = Path(__file__).parents[2] / "trainer" / "data"
RECIPE = Recipe("test", data=DataRecipe(products=0.4))


WANTED = [(HOST, 8), (H100, 20), (H100, 50)]


@pytest.mark.parametrize(("target", "count"), slow_but(WANTED[:2], WANTED))
def test_tasks_have_products_and_fit_and_none_is_held_out(target: Target, count: int) -> None:
    texts = training_tasks(RECIPE, StageRecipe(tasks=count), DATA, target)
    programs, heldout = [parse_program(t) for t in texts], read_heldout(DATA / "heldout.json")
    assert len(set(texts)) == count and not any(heldout.holds(p) for p in programs)
    with_products = [p for p in programs if p.has_product]
    assert 0.2 * count - 1 <= len(with_products) <= 0.6 * count + 2
    most = _most(StageRecipe(), target)
    assert all(multiplications(p) <= most.multiplications for p in with_products)
    if target is HOST:
        assert max(map(tensor_elements, programs)) <= HOST_ELEMENTS
    else:
        assert max(map(tensor_bytes, programs)) <= 8 * MIB
    assert texts[:5] == training_tasks(RECIPE, StageRecipe(tasks=5), DATA, target)


def test_probes_are_held_out_and_as_large_as_in_use() -> None:
    probes = [parse_program(t) for t in probe_tasks(RECIPE, StageRecipe(probe_tasks=64), DATA, H100)]
    heldout = read_heldout(DATA / "heldout.json")
    assert len(probes) == 64 and all(map(heldout.holds, probes))
    assert 8 * MIB < max(map(tensor_bytes, probes)) <= PROBE_BYTES


def test_a_stage_may_practise_on_real_sizes_and_on_products_most_of_all() -> None:
    stage = StageRecipe(tasks=30, least_mib=8.0, most_mib=512.0, products=0.7)
    programs = [parse_program(t) for t in training_tasks(RECIPE, stage, DATA, H100)]
    sizes = [tensor_bytes(p) / MIB for p in programs]
    assert min(sizes) >= 8.0 and 100.0 < max(sizes) <= 512.0
    assert sum(p.has_product for p in programs) >= 15
    for wrong in ({"least_mib": 9.0}, {"most_mib": 0.0}, {"products": 1.5}):
        with pytest.raises(ValueError, match="least_mib=|products="):
            StageRecipe(**wrong)


def test_a_recipe_without_products_or_of_one_family_has_none() -> None:
    for data in (DataRecipe(), replace(RECIPE.data, family="pointwise", pool=4)):
        texts = training_tasks(replace(RECIPE, data=data), StageRecipe(tasks=10), DATA, H100)
        assert not any(parse_program(t).has_product for t in texts)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (None, "export-misses"),
        ("no json\n", "tasks.jsonl, line 1: JSONDecodeError"),
        ('{"text": 3}\n', "line 1: .*expected JSON with a region's `text`"),
        ('{"fingerprint": "a"}\n', "line 1: KeyError"),
        ('{"text": "region v1\\nnonsense"}\n', "line 1: ProgramError"),
        ("", "0 programs"),
    ],
)
def test_a_file_of_tasks_that_cannot_be_used_is_told(tmp_path: Path, lines: str | None, word: str) -> None:
    path = tmp_path / "tasks.jsonl"
    if lines is not None:
        path.write_text(lines)
    with pytest.raises(ValueError, match=word):
        read_tasks(path, hold_out([]))


def test_a_data_folder_without_held_out_programs_or_tokenizer_says_how_to_write_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cudal1 train --steps heldout"):
        read_heldout(tmp_path / "heldout.json")
    with pytest.raises(ValueError, match="cudal1 train --steps tokenizer"):
        load_tokenizer(tmp_path / "tokenizer")


def test_more_tasks_than_there_are_is_told_and_not_waited_for() -> None:
    assert _take(iter("abcab"), 2, "a") == ["b", "c"]
    with pytest.raises(ValueError, match="3 tasks are wanted, after 2 only known ones came"):
        _take(cycle("abc"), 3, "a")


def test_every_task_comes_once_before_one_comes_again() -> None:
    seen = [task for step in range(6) for task in order(3, step, 4, 8)]
    assert sorted(seen[:8]) == sorted(seen[8:16]) == sorted(seen[16:]) == list(range(8))
    assert seen[:8] != seen[8:16]
