"""The score run without a GPU: what it writes is what training reads back; it goes on after a kill."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from cudal1_fx_passes.program.text import parse_program, print_program
from cudal1_trainer.data.pairs import H100
from cudal1_trainer.data.scored import write_again
from cudal1_trainer.scores.collect import (
    KINDS,
    PRODUCT_SEED,
    Budget,
    Job,
    Tally,
    Wanted,
    collect,
    drop_torn_line,
    jobs_left,
    make_program,
)
from cudal1_trainer.scores.scorebook import TaskScore, VariantScore, read_lines, read_scores, score_files
from cudal1_trainer.scores.workers import Finished, Lost
from cudal1_trainer.tasks.heldout import hold_out, write_heldout
from cudal1_trainer.tasks.variants import choose_schedules, uses, write_variants

pytestmark = pytest.mark.usefixtures("forks")


def _setup() -> None:
    return None


def _work(state: None, job: Job, mark: Any) -> TaskScore | None:
    """Times drawn from the seed; task 1 kills its worker while its first variant is under way."""
    program = make_program(job.seed, ())
    rng = random.Random(job.seed)
    scores = []
    for variant in write_variants(program, job.limit):
        mark(variant.name)
        if job.seed == 1 and not job.blamed:
            os.kill(os.getpid(), signal.SIGKILL)
        if variant.name in job.blamed:
            scores.append(VariantScore(variant.name, variant.digest, None, "crash: hung"))
        else:
            scores.append(VariantScore(variant.name, variant.digest, rng.uniform(1, 9)))
    return TaskScore(job.seed, print_program(program), 10.0, tuple(scores))


def _collect(data: Path, out: Path, programs: int, workers: int = 1) -> dict[str, Any]:
    return collect(data, out, Budget(60.0, programs, 4, workers), H100, _setup, _work)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_heldout(hold_out(()), tmp_path / "data" / "heldout.json")
    return tmp_path / "data"


def test_a_run_is_written_and_read_back_as_training_data(data: Path, tmp_path: Path) -> None:
    summary = _collect(data, tmp_path / "out", 8, workers=2)
    assert (summary["tasks"], summary["lost"]) == (8, 1)
    book = read_scores(score_files(tmp_path / "out"))
    assert book is not None and book.facts == H100.facts()
    assert sorted(t.seed for t in book.tasks) == [first + i for first in KINDS.values() for i in (0, 1)]
    assert [v.failure for t in book.tasks if t.seed == 1 for v in t.variants if v.failure] == ["crash: hung"]
    scored = [write_again(t, hold_out(())) for t in book.tasks]
    assert all(s is not None for s in scored)
    assert sum(len(s.measured) for s in scored if s) == summary["right"]


def test_a_second_run_measures_what_is_left(data: Path, tmp_path: Path) -> None:
    _collect(data, tmp_path / "out", 2)
    with (tmp_path / "out" / "scores.jsonl").open("a") as stream:
        stream.write('{"seed": 99, "torn')
    summary = _collect(data, tmp_path / "out", 2)
    assert (summary["tasks"], summary["before"]) == (2, 2)
    seeds = [line["seed"] for line in read_lines(tmp_path / "out" / "scores.jsonl") if "seed" in line]
    assert sorted(seeds) == list(KINDS.values())


def test_some_kinds_are_measured_alone() -> None:
    budget = Budget(1.0, 3, 4, kinds=("products",))
    assert [j.seed for j in jobs_left([PRODUCT_SEED + 1], budget)] == [PRODUCT_SEED + i for i in (0, 2, 3)]


NORM = (
    "region v1\ndims d0=8 d1=65536\nin0 f32[d0,d1]\nt0 f32[d0] = mean(in0) over d1\n"
    "t1 f32[d0,d1] = sub(in0, t0)\nout0 f32[d0,d1] = t1\n"
)


@pytest.mark.parametrize(
    ("wanted", "holds"),
    [
        (Wanted(), True),
        (Wanted("joined", 4e6, 8, 2), True),
        (Wanted("nosuch"), False),
        (Wanted(bytes=5e6), False),
        (Wanted(rows=7), False),
        (Wanted(ops=1), False),
        (Wanted(text=r"= softmax|over d1"), True),
        (Wanted(text="k2="), False),
    ],
)
def test_only_programs_of_a_kind_are_measured_where_that_is_wanted(wanted: Wanted, holds: bool) -> None:
    assert wanted.holds(parse_program(NORM)) is holds


def test_half_of_what_is_measured_is_of_the_wanted_mapping() -> None:
    text = (
        "region v1\ndims d0=65536 d1=64\nin0 f32[d0,d1]\nt0 f32[d1] = var(in0, 0.0) over d0\nout0 f32[d1] = t0\n"
    )
    program = parse_program(text)
    chosen = choose_schedules(program, 8, "split_chunks")
    assert [uses(s, "split_chunks") for s in chosen] == [False] * 4 + [True] * 4
    assert chosen == choose_schedules(program, 8, "split_chunks")
    assert len(choose_schedules(program, 8)) == 8 == len(choose_schedules(program, 8, "nosuch")) * 2


def test_positions_are_no_reduction() -> None:
    text = NORM.replace("d1=65536", "d1=65536 d2=70000").replace("out0", "t2 i64[d2] = iota() along d2\nout0")
    text += "out1 i64[d2] = t2\n"
    assert Wanted(rows=8).holds(parse_program(text))


def test_scores_of_another_gpu_are_refused(data: Path, tmp_path: Path) -> None:
    (data / "scores.a100.jsonl").write_text('{"facts": "target sm_80, 108 SMs"}\n')
    with pytest.raises(ValueError, match="another --data"):
        _collect(data, tmp_path / "out", 1)


def test_only_a_torn_end_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b"')
    drop_torn_line(path)
    assert path.read_bytes() == b'{"a": 1}\n'
    drop_torn_line(path)
    assert path.read_bytes() == b'{"a": 1}\n'


def test_the_tally_counts_failures_by_strategy_and_stage() -> None:
    tally = Tally()
    scores = (VariantScore("split/x", "d", None, "wrong: out0"), VariantScore("grouped/y", "e", 1.0))
    tally.add(Finished(Job(0, 4), TaskScore(0, "f", None, scores)))
    tally.add(Lost(Job(1, 4), "timing", "silent"))
    found = tally.summary(2.0)
    assert found["failures"] == {"split: wrong": 1, "lost: timing": 1}
    assert (found["kernels"], found["right"], found["kernels_per_s"]) == (2, 1, 1.0)
