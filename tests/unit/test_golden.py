"""A spread of the golden digests; `python -m tests.golden` compares all of them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from golden import DIGESTS
from golden.digests import KINDS, row_of
from golden.record import Table, read, report

RENEW = "python -m tests.golden --renew"
EVERY = {"regions": 24, "graphs": 160, "others": 1}


@pytest.fixture(scope="module")
def known() -> dict[str, Table]:
    return read(DIGESTS)


@pytest.mark.parametrize("kind", EVERY)
def test_texts_are_what_they_were(kind: str, known: Mapping[str, Table]) -> None:
    names = list(known[kind].rows)[:: EVERY[kind]]
    found = {name: row_of(kind, name) for name in names}
    assert not (said := report(kind, known[kind], found, RENEW)), said


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_has_a_row_for_each_subject(kind: str, known: Mapping[str, Table]) -> None:
    assert list(known[kind].rows) == list(KINDS[kind].make())


def test_a_report_names_the_row_and_the_column() -> None:
    table = Table(("text", "prompt"), "code", {"a": "1 2 3 4", "b": "1 2", "c": "-"})
    found = {"a": "1 0 3", "b": "1 2", "c": "7 7", "d": "1 2"}
    assert table.differences(found) == {"a": ["prompt", "code 1"], "d": ["text", "prompt"]}
    assert "  a: prompt, code 1" in report("regions", table, found, RENEW)
    assert not report("regions", table, {"b": "1 2"}, RENEW)
