"""`cudal1 audit` on the host target, small: its figures, its file, and that a bad judge is found out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import typer

import benchmarks.audit as command
import benchmarks.redteam.rates as rates
import cudal1_compile.judge.limits as limits
from benchmarks.redteam.load_time import LoadRow
from benchmarks.redteam.subjects import subjects
from benchmarks.redteam.suite import AttackCase, attack_suite
from cudal1_compile.judge.limits import Limits
from cudal1_compile.judge.verdict import Accepted, HostCost, Proof, Rejected, Timing, Verdict
from cudal1_compile.judge.versions import VERIFIER_VERSION
from cudal1_compile.runtime.target import HOST
from cudal1_fx_passes.program.ir import Program

pytestmark = pytest.mark.host

SEED = 3
POOL = ThreadPoolExecutor(1)
PROOF = Accepted(Proof(HOST.key, "exact", (), 0, None, HostCost(1.0, 2.0)))
REFUSED = Rejected("verify", "refused whatever it is")


class _Stubborn:
    """Stands where the judge does and gives one verdict on everything."""

    target, limits = HOST, Limits(build_threads=1)

    counts: ClassVar[dict[str, int]] = {}
    isolation: ClassVar[dict[str, bool]] = {}

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict

    def __enter__(self) -> _Stubborn:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def judge_tasks(self, tasks: Sequence[tuple[Program, str]]) -> list[Verdict]:
        return [self.verdict] * len(tasks)

    def submit(self, tasks: Sequence[tuple[Program, str]]) -> list[Future[Verdict]]:
        return [self._answer() for _ in tasks]

    def submit_finalists(self, program: Program, codes: Sequence[str]) -> list[Future[Verdict]]:
        return [self._answer() for _ in codes]

    def finalists(self, program: Program, codes: Sequence[str]) -> list[Verdict]:
        return [self.verdict] * len(codes)

    def _answer(self) -> Future[Verdict]:
        found: Future[Verdict] = Future()
        found.set_result(self.verdict)
        return found


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(kind: str) -> tuple[AttackCase, ...]:
        return attack_suite("host")[::200]

    monkeypatch.setattr(rates, "attack_suite", few)
    monkeypatch.setattr(rates, "MUTANTS", 3)
    monkeypatch.setattr(rates, "BROODS", 1)  # as many mutants as are asked for, not those of eight kernels more
    monkeypatch.setattr(limits, "usable_cores", lambda: 1)  # nothing is prepared in vain
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_figures_and_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "ProcessPoolExecutor", ThreadPoolExecutor)  # which starts at once
    command.audit(honest=2, mutants=2, seed=SEED, out=tmp_path)
    body = json.loads((tmp_path / "audit.host.json").read_text())
    found, detail = body["summary"], body["detail"]
    assert (found["accepted"], found["refused"], found["survivors"], found["honest"]) == (0, 0, 0, 2)
    assert (
        found["attacks"]
        == len(attack_suite("host")[::200])
        == sum(row["attacks"] for row in detail["attacks"]["by_hack"].values())
    )
    assert found["mutants"] >= 2 and found["mutants"] == sum(
        row["mutants"] for row in detail["mutants"]["by_category"].values()
    )
    low, high = body["intervals"]["attacks_accepted"]
    assert low == 0.0 < high < 1.0
    assert body["n"] == sum(found[rows] for rows in ("attacks", "load_attacks", "honest", "mutants"))
    assert found["load_accepted"] == 0 < found["load_attacks"] == len(detail["load_time"]["all"])
    assert body["versions"]["verifier"] == str(VERIFIER_VERSION) == str(detail["load_time"]["verifier"])
    assert "attacks accepted, by row of the catalogue" in capsys.readouterr().out
    rows = [LoadRow(**row) for row in detail["load_time"]["all"]]
    monkeypatch.setattr(command, "load_time_rows", lambda folder: rows)  # what was found, without the work
    monkeypatch.setattr(command, "Judge", lambda target, limits: _Stubborn(REFUSED))
    command.audit(attacks_only=True, out=tmp_path)  # the other parts stay
    again = json.loads((tmp_path / "audit.host.json").read_text())
    assert again["summary"] == found and again["detail"]["mutants"] == detail["mutants"]


def test_a_judge_that_accepts_all_is_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "Judge", lambda target, limits: _Stubborn(PROOF))
    monkeypatch.setattr(command, "ProcessPoolExecutor", ThreadPoolExecutor)  # which starts at once
    with pytest.raises(typer.Exit) as end:
        command.audit(honest=1, mutants=1, seed=SEED)
    assert end.value.exit_code == 1
    shown = capsys.readouterr().out
    assert "ACCEPTED attack" in shown and "SURVIVED" in shown
    assert "together                         0 of 1 = 0.00%" in shown


def test_a_judge_that_refuses_all_is_found_out() -> None:
    judge = _Stubborn(REFUSED)
    right = rates.honest_rows(judge, POOL, subjects(SEED), SEED, 1, float("inf"))  # type: ignore[arg-type]
    assert [r.ruling for r in right] == [rates.Ruling(False, "verify", REFUSED.reason)]
    # its refusals of mutants are no merit: it refuses what they come from
    first = list(islice(subjects(SEED), 1))
    assert rates.mutant_rows(judge, POOL, first, SEED, 1, float("inf")) == ([], 0)  # type: ignore[arg-type]


def test_it_ends_in_time() -> None:
    over = time.monotonic() - 1.0
    right = rates.honest_rows(_Stubborn(PROOF), POOL, subjects(SEED), SEED, 1000, over)  # type: ignore[arg-type]
    assert 1 <= len(right) < 10


def test_what_is_only_slow_may_be_right_but_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "attack_suite", lambda kind: attack_suite("cuda"))
    slow = Timing(50.0, 10.0, None, 0.2, 0.2, 60, final=True)
    rows = rates.attack_rows(_Stubborn(Accepted(replace(PROOF.proof, host_cost=None, timing=slow))))  # type: ignore[arg-type]
    refused = {r.name: r.ruling.reason for r in rows if not r.ruling.passed}
    assert refused == dict.fromkeys(
        ["blind 2000 sines an element", "blind one block after another"], "unprofitable: 0.2x"
    )


def test_cost_is_no_refusal_but_a_wrong_result_is() -> None:
    assert rates.rule(Rejected("time", "cost 9 is not below 8")).passed
    assert not rates.rule(Rejected("time", "a timed call gave a wrong result")).passed
    assert not rates.rule(Rejected("verify", "cost")).passed


def test_every_attack_has_its_program_and_its_own_name() -> None:
    both = [attack_suite("host"), attack_suite("cuda")]
    for cases in both:
        names = [c.attack.name for c in cases]
        assert len(set(names)) == len(names) >= 80
    assert {c.attack.where for cases in both for c in cases} >= {"both", "host", "cuda"}


def test_what_was_found_wrong_by_hand_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "undecided.yaml"
    table.write_text('a: "wrong: the tail is left out"\nb: "equivalent: twice is once"\n')
    monkeypatch.setattr(command, "REASONS", table)
    rows = [{"digest": d, "ruling": {"passed": d != "c"}} for d in "abc"]
    counts = {"mutants": 10, "survivors": 1, "equivalent_mutants": 2, "undecided_mutants": 3}
    path = command.write(tmp_path, {"mutants": command.Part(counts, {"undecided": rows})}, SEED)
    found = json.loads(path.read_text())
    assert found["summary"] == {
        "mutants": 11,
        "survivors": 2,
        "equivalent_mutants": 2,
        "undecided_mutants": 2,
        "mutants_surviving": 2 / 11,
    }
    assert [r["by_hand"] for r in found["detail"]["mutants"]["undecided"]][1:] == [
        "equivalent: twice is once",
        "not looked at",
    ]


def test_every_look_by_hand_says_what_it_found() -> None:
    for reason in command.yaml.safe_load(command.REASONS.read_text()).values():
        assert reason.startswith(("wrong: ", "equivalent: ", "equivalent as ", "equivalent within "))


def test_wilson_intervals() -> None:
    assert rates.wilson(0, 0) == (0.0, 1.0)
    low, high = rates.wilson(5, 1000)
    assert (round(low, 4), round(high, 4)) == (0.0021, 0.0117)
    assert rates.wilson(10, 10)[1] == pytest.approx(1.0)
