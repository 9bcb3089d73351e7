"""A ranking on another target: what measured kernels teach it, and that the figures are those of the times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import transfer
from benchmarks.duel import Config, Job, Row
from benchmarks.families import read_families
from benchmarks.rlval_cut import RLVAL
from cudal1_compile.codegen.prior.regression import Prior, load_prior
from cudal1_compile.codegen.stages.schedule import parse_schedule
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores import fit_prior


def bundled() -> Prior:
    found = load_prior()
    assert found is not None
    return found


def elsewhere(job: Job) -> dict[str, float]:
    """As fast as the prior says, but for blocks of 256 threads and more, which take four times as long."""
    names = [name for name, _ in job.codes]
    schedules = [parse_schedule(name) for name in names]
    logs = bundled().rank(parse_program(job.text), schedules)
    slow = [max(stage.block for stage in s.stages) >= 256 for s in schedules]
    return {
        name: 50.0 * 2.718 ** float(x) * (4 if is_slow else 1)
        for name, x, is_slow in zip(names, logs, slow, strict=True)
    }


@pytest.mark.slow  # a dry run; its parts have tests below
def test_measured_kernels_teach_the_prior_another_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(path: Path, jobs: Sequence[Job], config: Config, *_: object, **__: object) -> list[Row]:
        assert config.arch == "" and config.cold  # a dry run's: a GPU's is "sm_90"
        return [Row(job.ident, {name: (us, us, us) for name, us in elsewhere(job).items()}, {}) for job in jobs]

    monkeypatch.setattr(transfer, "duel_into", measured)
    monkeypatch.setattr(transfer, "KERNELS", (20, 60, 100_000))
    monkeypatch.setattr(transfer, "DRAWS", 1)
    monkeypatch.setattr(fit_prior, "FURTHER_STEPS", 60)
    few = [line for line in RLVAL.read_text().splitlines() if json.loads(line)["family"] in ("norm", "softmax")]
    (tmp_path / "few.jsonl").write_text("\n".join(few))
    words = ["--data", "trainer/data", "--out", str(tmp_path), "--programs", str(tmp_path / "few.jsonl"), "--dry"]
    words += ["--count", str(len(few)), "--arms", "8"]
    transfer.main(words)
    body = json.loads((tmp_path / "transfer.dry.json").read_text())
    found = {row["kernels"]: (row["regret"], row["regret_best8"]) for row in body["summary"]["rows"]}
    assert list(found) == [0, 20, 60]  # there are no 100,000
    assert found[0][0] > 1.1 and found[60][0] < 1 + (found[0][0] - 1) / 2
    assert all(best == 1.0 for _, best in found.values())  # of eight arms
    assert body["n"] == len(body["detail"]["programs"]) and body["summary"]["kernels_measured"] > 60


def test_what_is_enough_stays_enough() -> None:
    assert (
        transfer.enough({0: [1.2, 1.0], 30: [1.02, 1.0], 100: [1.05, 1.0], 300: [1.02, 1.0], 1000: [1.01, 1.0]})
        == 300
    )
    assert transfer.enough({0: [1.02, 1.0], 30: [1.02, 1.0]}) == 0
    assert transfer.enough({0: [1.2, 1.0], 30: [1.04, 1.0]}) is None


def test_half_of_the_arms_are_the_likeliest() -> None:
    programs = read_families(RLVAL, ("conv2d",))
    prior = bundled()
    names = [name for name, _ in transfer.make_job(programs[0], prior, 12, seed=0).codes]
    again = [name for name, _ in transfer.make_job(programs[0], prior, 12, seed=1).codes]
    assert len(names) == len(set(names)) == 12 and names[:6] == again[:6] and names[6:] != again[6:]
    logs = prior.rank(parse_program(programs[0].text), [parse_schedule(name) for name in names])
    assert max(logs[:6]) <= min(logs[6:])
