"""The schedule prior: it finds what makes schedules fast, and is refused where it does not help."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.codegen.prior.traffic import traffic
from cudal1_compile.codegen.stages.schedule import parse_schedule
from cudal1_compile.codegen.templates import variants
from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.scores.fit_prior import MIN_TASKS, build_prior, fit, gather, is_current, regret
from cudal1_trainer.scores.scorebook import ScoreBook, TaskScore, VariantScore, print_score
from cudal1_trainer.tasks.variants import make_task, write_variants


def _book(count: int, random_times: bool = False) -> ScoreBook:
    tasks = []
    for seed in range(count):
        program = make_task(seed)
        rng = random.Random(seed)
        scores = []
        for v in write_variants(program, 8):
            stage = parse_schedule(v.name).stages[-1]
            us = 10 * (1 + 0.3 * abs(math.log2(stage.block) - 8) + 0.2 * abs(stage.vector - 4))
            us = rng.uniform(1, 30) if random_times else us * rng.uniform(0.98, 1.02)
            scores.append(VariantScore(v.name, v.digest, us))
        tasks.append(TaskScore(seed, print_program(program), 50.0, tuple(scores)))
    return ScoreBook(H100.facts(), tuple(tasks))


def _write(book: ScoreBook, data: Path) -> None:
    lines = [f'{{"facts": "{book.facts}"}}', *(print_score(t) for t in book.tasks)]
    (data / "scores.test.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def book() -> ScoreBook:
    return _book(MIN_TASKS + 20)


@pytest.fixture(scope="module")
def built(book: ScoreBook, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A data folder with a prior of a quarter of the steps, and what was said of it."""
    folder = tmp_path_factory.mktemp("data")
    _write(book, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cudal1_trainer.scores.fit_prior.STEPS", 300)
        return folder, build_prior(folder)


def test_the_fast_schedules_of_unseen_programs_are_found(built: tuple[Path, dict[str, Any]]) -> None:
    folder, found = built
    assert found["regret"] < 1.12 < found["regret_of_first"]
    prior = load_prior(folder / "prior.npz")
    assert prior is not None and is_current(folder)
    hits = 0
    for seed in range(5000, 5010):
        program = make_task(seed)
        schedules = variants(program)
        best = schedules[int(np.argmin(prior.rank(program, schedules)))].stages[-1]
        hits += abs(math.log2(best.block) - 8) <= 1
    assert hits >= 8


def test_new_scores_make_a_prior_stale(
    book: ScoreBook, built: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    data = shutil.copytree(built[0], tmp_path / "data")
    assert is_current(data)
    _write(ScoreBook(book.facts, book.tasks[:-1]), data)
    assert not is_current(data)


def test_traffic_counts_passes_kernels_and_sectors() -> None:
    text = "region v1\ndims d0=512 d1=1024\nin0 f32[d0,d1]\nt0 f32[d0] = var(in0, 0.0) over d1\n"
    program = parse_program(f"{text}t1 f32[d0,d1] = sub(in0, t0)\nout0 f32[d1,d0] = t1\n")
    names = ("grouped/block.1.256", "grouped/block.1.256.r", "staged!/block.1.256;transpose.1.256")
    two, one, staged = traffic(program, [parse_schedule(n) for n in names])
    whole = 4.0 * 512 * 1024
    assert (two.asked, one.asked, staged.asked) == (4 * whole, 2 * whole, 4 * whole + 2 * 4 * 512)
    assert one.sectors == 9 * whole and staged.sectors == staged.asked


def test_traffic_of_columns_in_one_pass() -> None:
    text = "region v1\ndims d0=4096 d1=1024\nin0 f32[d0,d1]\nt0 f32[d1] = var(in0, 0.0) over d0\n"
    names = ("split!/split_tile.4.256.s64", "split!/split_chunks.4.256.s64")
    two, one = traffic(parse_program(f"{text}out0 f32[d1] = t0\n"), [parse_schedule(n) for n in names])
    assert two.asked - one.asked == 4.0 * 4096 * 1024


def test_traffic_of_statistics_behind_a_product() -> None:
    text = "region v1\ndims d0=4096 d1=1024 d2=32\nin0 f32[d0,d2]\nin1 f32[d1,d2]\n"
    text += "t0 f32[d0,d1] = dot_tf32(in0, in1) over d2\nt1 f32[d1] = var(t0, 0.0) over d0\n"
    product = "staged!/tf32_raw_wide.1.256.t128x128x32"
    names = (f"{product};split_chunks.4.256.s64", f"{product};gathered.4.256")
    program = parse_program(f"{text}out0 f32[d1] = t1\nout1 f32[d0,d1] = t0\n")
    read, gathered = traffic(program, [parse_schedule(n) for n in names])
    assert read.asked - gathered.asked == 4.0 * 4096 * 1024 + 8.0 * (64 - 4096 / 128) * 1024


def test_a_prior_that_does_not_help_is_not_written(tmp_path: Path) -> None:
    _write(_book(20), tmp_path)
    assert build_prior(tmp_path) == {}
    assert load_prior(tmp_path / "prior.npz") is None


def test_regret_is_one_for_a_perfect_order_and_more_otherwise(book: ScoreBook) -> None:
    rows = gather(book)
    assert regret(rows, rows.y) == pytest.approx(1.0)
    assert regret(rows, -rows.y) > 1.3


def test_a_fit_is_reproducible(book: ScoreBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal1_trainer.scores.fit_prior.STEPS", 60)  # all that is drawn is drawn in each of them
    rows = gather(ScoreBook(book.facts, book.tasks[:30]))
    program = make_task(7001)
    schedules = variants(program)
    assert np.array_equal(fit(rows).rank(program, schedules), fit(rows).rank(program, schedules))
