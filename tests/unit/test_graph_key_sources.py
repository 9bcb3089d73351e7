"""Every source file that decides a region changes the key under which plans and Inductor's code are found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cudal1_compile
import cudal1_fx_passes
from cudal1_compile.inductor.graph_key import code_version

PASSES = sorted(Path(cudal1_fx_passes.__path__[0]).rglob("*.py"))
SPLICING = (
    "dispatch/registry",
    *(f"inductor/{name}" for name in ("collect", "index_bounds", "layouts", "library", "fused_lowering")),
    *("inductor/scratch_sizes", "inductor/splice", "pipeline/survey"),
)


@pytest.fixture()
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Both packages' sources elsewhere, where they may be edited."""
    for package in (cudal1_fx_passes, cudal1_compile):
        copied = tmp_path / package.__name__
        shutil.copytree(package.__path__[0], copied, ignore=lambda _, names: [n for n in names if n[-3:] == "pyc"])
        monkeypatch.setattr(package, "__path__", [str(copied)])
    return tmp_path


def test_an_edit_of_each_file_changes_the_version(copies: Path) -> None:
    known = {code_version.__wrapped__()}
    edited = [str(p.relative_to(copies)) for p in (copies / "cudal1_fx_passes").rglob("*.py")]
    edited += [f"cudal1_compile/{name}.py" for name in SPLICING]
    assert len(edited) == len(PASSES) + len(SPLICING) and len(PASSES) > 30
    for name in edited:
        with (copies / name).open("a") as source:
            source.write("# edited\n")
        version = code_version.__wrapped__()
        assert version not in known, name
        known.add(version)


def test_what_decides_nothing_does_not_change_it(copies: Path) -> None:
    before = code_version.__wrapped__()
    (copies / "cudal1_compile" / "cli" / "demo.py").write_text("")
    assert code_version.__wrapped__() == before
