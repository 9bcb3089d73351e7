"""Comparing bundles: a worse one is not installed without --force, and what was there stays beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cudal1_trainer.cli import train
from cudal1_trainer.rl import contest
from cudal1_trainer.rl.examine import Marks

OLD = Marks(10, 0.8, 0.9, 1.1, 1.0, 1.2, 0.0, {})


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: Marks, *options: str) -> Any:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    monkeypatch.setattr(contest, "contest", lambda *_: [OLD, new])
    return CliRunner().invoke(train, ["compare", str(tmp_path / "old"), str(tmp_path / "new"), *options])


@pytest.mark.parametrize("change", [{"right_1": 0.7}, {"speedup_best": 1.1}])
def test_a_worse_bundle_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, float]
) -> None:
    done = _run(tmp_path, monkeypatch, replace(OLD, **change), "--install")
    assert done.exit_code != 0 and "is worse" in done.output
    assert (tmp_path / "old" / "config.json").read_text() == "old"


def test_a_better_one_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = _run(tmp_path, monkeypatch, replace(OLD, right_1=0.85), "--install")
    assert done.exit_code == 0 and "right_1          0.800   0.850" in done.output
    assert (tmp_path / "old" / "config.json").read_text() == "new"
    assert (tmp_path / "old.before" / "config.json").read_text() == "old"


@pytest.mark.parametrize("name", ["old.new", "old.before"])
def test_a_new_one_beside_the_old_one_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for folder in ("old", name):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(folder)
    monkeypatch.setattr(contest, "contest", lambda *_: [OLD, OLD])
    done = CliRunner().invoke(train, ["compare", str(tmp_path / "old"), str(tmp_path / name), "--install"])
    assert (tmp_path / name / "config.json").read_text() == name
    if name == "old.new":
        assert done.exit_code == 0 and (tmp_path / "old" / "config.json").read_text() == name
    else:
        assert done.exit_code == 2 and "under another name" in done.output


def test_what_cannot_be_compared_is_told_without_a_traceback(tmp_path: Path) -> None:
    for options, word in ((["--recipe", "huge"], "the built-in recipes are"), ([], "no model in")):
        done = CliRunner().invoke(train, ["compare", str(tmp_path / "old"), str(tmp_path / "new"), *options])
        assert done.exit_code == 2 and word in done.output


def test_force_installs_what_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(tmp_path, monkeypatch, replace(OLD, right_1=0.1), "--install", "--force").exit_code == 0
    assert (tmp_path / "old" / "config.json").read_text() == "new"
