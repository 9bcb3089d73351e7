"""Harmful candidates among others: none is lost, nothing is left; and what looks for leftovers finds them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.judge_faults import Held, Report, Sample, draw, processes, run
from cudal1_compile.judge.verdict import Accepted, Deferred, Proof, Rejected
from cudal1_compile.runtime.target import HOST

pytestmark = pytest.mark.host

RIGHT, FAULT = Sample("right", "a", "silu", ""), Sample("fault", "b", "silu", "")


def test_each_candidate_gets_its_own_verdict_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "of the judge"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    report = run(HOST, draw(HOST, 12, faults=0.4, bombs=0, seed=4), folder, seconds=600, threads=2)
    assert report.is_sound, (report.summary(), report.detail())
    assert {s.kind for s in report.samples} == {"right", "wrong", "fault"}
    seal = ("no_system_calls", "no_files", "no_network", "own_processes")
    assert report.isolation == dict.fromkeys(seal, True)


def test_the_texts_differ_and_the_bombs_are_among_them() -> None:
    samples = draw(HOST, 300, faults=0.02, bombs=2, seed=1)
    assert len({s.code for s in samples}) == 300
    assert sum(s.name == "inlines without end" for s in samples) == 2
    assert 2 <= sum(s.kind == "fault" for s in samples) <= 30


def test_a_process_that_is_left_is_found(tmp_path: Path) -> None:
    assert not any("sleep" in line for line in processes(tmp_path))
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as child:
        end = time.monotonic() + 5  # a busy machine names a process late
        while not (found := any("sleep 60" in line for line in processes(tmp_path))) and time.monotonic() < end:
            time.sleep(0.05)
        child.kill()
    assert found


def test_what_is_not_sound_is_said() -> None:
    right, fault = Accepted(Proof("t", "reassociates", (), 1)), Rejected("verify", "a hang")
    sound = Report([RIGHT, FAULT], [right, fault], {}, {}, _held(), _held(), [], [], True, 1.0)
    assert sound.is_sound
    worse = [
        replace(sound, verdicts=[right, right]),
        replace(sound, verdicts=[fault, fault]),
        replace(sound, verdicts=[right, None]),
        replace(sound, verdicts=[right, Deferred("no worker")]),
        replace(sound, left_processes=["sleep"]),
        replace(sound, left_files=["cudal1-run-x"]),
        replace(sound, caller_alive=False),
        replace(sound, end=_held(files=8)),
        replace(sound, end=_held(resident_mib=1000.0)),
    ]
    assert not any(report.is_sound for report in worse)


def _held(resident_mib: float = 300.0, files: int = 7) -> Held:
    return Held(resident_mib, files)
