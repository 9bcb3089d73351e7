"""Chunks made ahead: the maker's own batches, made once, refused where they are of another corpus, trained on."""

from __future__ import annotations

import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cudal1_trainer.data.chunks import Stored, check_stamp, chunk_path, make_chunks, read_chunk, spread
from cudal1_trainer.data.corpus import CorpusMaker, texts_for_tokenizer
from cudal1_trainer.data.loader import Batch
from cudal1_trainer.data.scored import SCORED
from cudal1_trainer.model.tokenizer import save_tokenizer, train_tokenizer
from cudal1_trainer.recipe import DataRecipe, ModelRecipe, Recipe, TokenizerRecipe, TrainRecipe
from cudal1_trainer.sft import supervised as sft
from cudal1_trainer.tasks.heldout import build_heldout, write_heldout

RECIPE = Recipe(
    "test",
    tokenizer=TokenizerRecipe(vocab=600, programs=20),
    model=ModelRecipe(hidden=32, layers=1, heads=2, kv_heads=1, mlp=64, max_positions=2048),
    data=DataRecipe(chunk_tokens=6000, max_tokens=2048, variants_per_task=1, workers=1),
    train=TrainRecipe(steps=5, tokens_per_step=4096, compile=False),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    write_heldout(build_heldout(None, 4), directory / "heldout.json")
    save_tokenizer(train_tokenizer(texts_for_tokenizer(RECIPE, directory), 600), directory / "tokenizer")
    return directory


@pytest.fixture(scope="module")
def folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "chunks"
    assert make_chunks(RECIPE, data, folder, 3, workers=1) == 3
    return folder


def _plain(batches: list[Batch]) -> list[tuple[object, object]]:
    return [(b.tokens.tolist(), b.spans.tolist()) for b in batches]


def test_what_is_stored_is_what_the_corpus_makes(data: Path, folder: Path) -> None:
    assert _plain(read_chunk(chunk_path(folder, 2))) == _plain(CorpusMaker(RECIPE, data)(2))


def test_training_makes_what_the_folder_lacks(data: Path, folder: Path) -> None:
    maker = CorpusMaker(RECIPE, data)
    read, made = (_plain(Stored(lambda i: maker(i + 9), folder)(i)) for i in (2, 3))
    assert read == _plain(maker(2)) and made == _plain(maker(12))


@pytest.mark.parametrize("made", [3, 10, 40])
def test_however_many_are_made_they_lie_evenly_over_the_run(made: int) -> None:
    assert sorted(spread(100)) == list(range(100))
    found = sorted(spread(100)[:made])
    steps = [b - a for a, b in zip(found, found[1:], strict=False)]
    assert max(steps) <= 3 * 100 / made


@pytest.mark.usefixtures("forks")
def test_only_what_is_missing_is_made(data: Path, folder: Path) -> None:
    before = chunk_path(folder, 0).stat().st_mtime_ns
    chunk_path(folder, 1).unlink()
    assert make_chunks(RECIPE, data, folder, 3, workers=1, seconds=0.0) == 0
    assert make_chunks(RECIPE, data, folder, 3, workers=1) == 1
    assert chunk_path(folder, 0).stat().st_mtime_ns == before


def test_chunks_of_another_corpus_are_refused(data: Path, folder: Path) -> None:
    check_stamp(folder, replace(RECIPE, data=replace(RECIPE.data, workers=3, ahead=7)), data)  # neither matters
    with pytest.raises(ValueError, match="chunks of another seed"):
        check_stamp(folder, replace(RECIPE, seed=9), data)
    with pytest.raises(ValueError, match="chunks of another data"):
        sft.train(replace(RECIPE, data=replace(RECIPE.data, several=9.0)), data, folder / "out", chunks=folder)
    with pytest.raises(ValueError, match="no such folder"):
        sft.train(RECIPE, data, folder / "out", chunks=folder / "typo")
    assert not (folder / "typo").exists()


def test_a_damaged_chunk_is_told(tmp_path: Path) -> None:
    chunk_path(tmp_path, 0).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is no chunk"):
        read_chunk(chunk_path(tmp_path, 0))


@pytest.mark.usefixtures("forks")
def test_stage_1_trains_on_them(data: Path, folder: Path, tmp_path: Path) -> None:
    report = sft.train(RECIPE, data, tmp_path, chunks=folder)
    assert report["steps"] == 5
    further = sft.train(RECIPE, data, tmp_path / "further", model=tmp_path / "model", chunks=folder)
    assert further["heldout_loss"] < report["heldout_loss"]
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="leave --chunks out"):
        sft.train(RECIPE, data, tmp_path / "other", model=tmp_path / "model", chunks=folder)


@pytest.mark.usefixtures("forks")
def test_measured_programs_beside_chunks_are_not_written_again(
    data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sft, "write_scored", lambda *_: pytest.fail("written again"))
    chunks = tmp_path / "chunks"
    shutil.copytree(folder, chunks)
    with lzma.open(chunks / SCORED, "wt") as stream:
        stream.write('"H100 sm_90a"\n')
    assert sft.train(RECIPE, data, tmp_path / "out", chunks=chunks)["steps"] == 5
