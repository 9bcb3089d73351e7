"""Mutants differ from the source in one place, and are found again where code was moved and renamed."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest

OLD = """
LIMIT = 3

class Gate:
    def passes(self, arms: int) -> bool:
        if not arms or arms + 1 < LIMIT:
            raise ValueError(f"{arms + 1}")
        self.log(arms)
        return True
"""
NEW = OLD.replace("arms", "variants").replace("LIMIT = 3", "LIMIT = 4").replace("+ 1 <", "+ 1 <=", 1)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[mutants.Mutant, bytes]:
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "new.py").write_text(NEW)
    monkeypatch.setattr(mutants, "modules", lambda: {"new": tmp_path / "new.py", "old": tmp_path / "old.py"})
    mutants.texts.cache_clear()
    before = mutants.texts("old")
    monkeypatch.setattr(mutants, "modules", lambda: {"new": tmp_path / "new.py"})
    return before


def test_each_changes_one_line(found: dict[mutants.Mutant, bytes]) -> None:
    wanted = ["3 to 4", "Or to And", "no not", "Lt to LtE", "Add to Sub", "1 to 2", "left out", "left out"]
    assert sorted(m.change for m in found) == sorted([*wanted, "nothing returned", "True to False"])
    for mutant, text in found.items():
        ast.parse(text)
        pairs = zip(OLD.splitlines(), text.decode().splitlines(), strict=True)
        assert [old.strip() for old, new in pairs if old != new] == [mutant.line]


def test_they_are_found_again_by_names_or_in_a_line_alike(found: dict[mutants.Mutant, bytes]) -> None:
    names = {"old": "new", "arms": "variants"}
    left = {m.change for m in found if mutants.find(m, names) is None}
    assert left == {"3 to 4", "Lt to LtE"}  # which their lines no longer have
    again = [mutants.find(m, names) for m in found if m.change == "left out"]
    assert [m and (m.module, m.line) for m in again] == [
        ("new", 'raise ValueError(f"{variants + 1}")'),
        ("new", "self.log(variants)"),
    ]
