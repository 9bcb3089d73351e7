"""What edits could win: the fastest right variant is the base, and a winner is only one that wins again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import edit_headroom
from benchmarks.duel import Config, Job, Row
from benchmarks.families import FamilyProgram, read_families
from benchmarks.rlval_cut import COUNTS, RLVAL
from cudal1_compile.codegen.edits import MOST_DRAWN, apply
from cudal1_compile.codegen.prior.regression import load_prior
from cudal1_compile.kernel.candidate import Reply
from cudal1_fx_passes.program.text import parse_program

TEXT = "region v1\ndims d0=4096 d1=1024\nin0 f32[d0,d1]\nt0 f32[d0] = sum(in0) over d1\nout0 f32[d0] = t0\n"
REDUCTION = FamilyProgram("reduction", "rows", "inference", "4096x1024", TEXT)


def test_kinds_have_their_share_and_the_same_seed_chooses_the_same() -> None:
    programs = read_families(RLVAL, tuple(COUNTS))
    some = edit_headroom.choose(programs, 60, seed=1)
    assert some == edit_headroom.choose(programs, 60, seed=1) and 55 <= len(some) <= 65
    assert {p.family for p in some} == {p.family for p in programs}


def test_edited_kernels_are_distinct_and_what_their_edits_say() -> None:
    prior = load_prior()
    assert prior is not None
    ((code, schedule),) = edit_headroom.likely(REDUCTION, prior, 1).items()
    found = edit_headroom.edited(edit_headroom.Base(REDUCTION, schedule, code), 24, seed=0)
    assert len(found) == 24 and code not in found
    for edited, edits in found.items():
        reply = apply(parse_program(TEXT), schedule, edits)
        assert isinstance(reply, Reply) and reply.code == edited and len(edits) <= MOST_DRAWN


def test_the_winner_is_the_one_that_wins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int]] = []

    def measured(path: Path, jobs: Sequence[Job], config: Config, *_: object, **__: object) -> list[Row]:
        (job,) = jobs
        steps.append((path.name.split(".")[1], len(job.codes)))
        # in few rounds edit3 is the fastest by luck; arm1 is wrong
        few = {"arm0": 30.0, "arm2": 20.0, "base": 20.0, "edit3": 10.0, "edit5": 16.0}
        us = few if config.rounds < edit_headroom.ROUNDS_AGAIN else {"base": 20.0, "edit3": 21.0, "edit5": 16.0}
        busy = {name: (us[name], us[name], us[name]) for name, _ in job.codes if name in us}
        return [Row(job.ident, busy, {} if "arm1" not in dict(job.codes) else {"arm1": "wrong: x"})]

    monkeypatch.setattr(edit_headroom, "duel_into", measured)
    programs = tmp_path / "programs.jsonl"
    row = {"family": "reduction", "name": "rows", "direction": "inference", "shape": "4096x1024", "text": TEXT}
    programs.write_text(json.dumps(row) + "\n")
    words = [
        "--data",
        "trainer/data",
        "--out",
        str(tmp_path),
        "--programs",
        str(programs),
        "--dry",
        "--edits",
        "8",
    ]
    edit_headroom.main(words)
    assert steps == [("arms", 12), ("edits", 9), ("again", 3)]
    body = json.loads((tmp_path / "edits.dry.json").read_text())
    assert body["summary"]["best_of_edits"] == 20.0 / 16.0 and body["n"] == 1
    assert body["detail"]["programs"][0]["edits"] and body["detail"]["knobs"]
