"""Queries of the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cudal1_cache import ACCEPTED, Attempt, Entry, RegionText, Store, Trust


@pytest.fixture
def store() -> Store:
    return Store.memory()


def attempt(
    fingerprint: str, code: str, speedup: float | None, stage: str = ACCEPTED, created: float = 0
) -> Attempt:
    reason = "" if stage == ACCEPTED else "wrong"
    return Attempt(
        fingerprint, "t", f"digest {code}", "g", "m", "p", "", "", code, stage, reason, speedup, created=created
    )


def kernel(entry_id: str, speedup: float, numerics: str = "exact", quarantined: bool = False) -> Entry:
    return Entry(entry_id, "f", "t", "kernel", speedup=speedup, numerics=numerics, quarantined=quarantined)


def test_a_missing_row_is_none(store: Store) -> None:
    assert store.get_entry("e") is None
    assert store.find_entry("f", "t") is None
    assert store.get_plan("g", "t") is None
    assert store.get_region("f") is None


def test_relatives_differ_in_size_only_and_come_fastest_first_each_code_once(store: Store) -> None:
    small, large, stranger = (
        RegionText("f64", "r", "d0=64"),
        RegionText("f128", "r", "d0=128"),
        RegionText("x", "q", "d0=64"),
    )
    for region in (small, large, stranger):
        store.add_regions(region)
    store.add_attempts(
        [
            attempt("f64", "own", 2.0),
            attempt("f128", "slow", 0.9),
            attempt("f128", "fast", 1.5),
            attempt("f128", "fast", 1.4),
            attempt("f128", "wrong", 3.0, "verify"),
            attempt("f128", "untimed", None),
            attempt("x", "strange", 5.0),
        ]
    )
    assert [(a.code, a.speedup) for a in store.best_relatives(small, "t")] == [("fast", 1.5), ("slow", 0.9)]
    assert len(store.best_relatives(small, "t", limit=1)) == 1
    assert store.best_relatives(small, "another target") == []


def test_attempts_are_all_or_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="NaN"):
        store.add_attempts([attempt("f", "a", 1.0), attempt("f", "b", float("nan"))])
    assert store.attempts("f", "t") == []


def test_fastest_usable_kernel_wins_and_unprofitable_only_without_one(store: Store) -> None:
    store.put_entry(Entry("none", "f", "t", "unprofitable", reason="8 candidates of bundled"))
    assert store.find_entry("f", "t") == store.get_entry("none")
    for entry in (
        kernel("a", 1.2),
        kernel("b", 1.9),
        kernel("c", 3.0, quarantined=True),
        kernel("d", 2.5, "f32_split"),
    ):
        store.put_entry(entry)
    assert _found(store) == "d"
    assert _found(store, ["exact", "reassociates"]) == "b"
    assert _found(store, ["assumes_finite"]) == "none"
    store.quarantine("d", "differs on a second look")
    assert _found(store) == "b"
    stored = store.get_entry("d")
    assert stored is not None
    assert (stored.quarantined, stored.reason) == (True, "differs on a second look")


def _found(store: Store, numerics: list[str] | None = None) -> str | None:
    entry = store.find_entry("f", "t", numerics)
    return entry.entry_id if entry else None


def test_a_refuted_kernel_is_never_used_again(store: Store) -> None:
    wrong = replace(kernel("e", 1.3), code="wrong")
    store.put_entry(wrong)
    store.add_attempts([attempt("f", "wrong", 1.3), attempt("f", "right", 1.1), attempt("other", "wrong", 1.2)])
    store.refute("e", "out0[3] is 7, expected 1")
    store.put_entry(wrong)  # by a process that has proven it once more
    assert store.find_entry("f", "t") is None
    found = store.get_entry("e")
    assert found is not None and found.reason.startswith("refuted") and not found.is_unverified
    refused = {a.code: (a.stage, a.reason) for a in store.attempts("f", "t") if a.stage != ACCEPTED}
    assert refused == {"wrong": ("verify", "out0[3] is 7, expected 1")}
    assert [a.stage for a in store.attempts("other", "t")] == [ACCEPTED]
    with pytest.raises(KeyError):
        store.refute("nobody", "")


def test_quarantine_of_nothing_is_an_error(store: Store) -> None:
    with pytest.raises(KeyError, match="nobody"):
        store.quarantine("nobody", "")


def test_targets_do_not_mix(store: Store) -> None:
    store.put_entry(kernel("a", 2.0))
    assert store.find_entry("f", "host") is None
    assert store.targets() == ["t"]


def test_misses_are_counted_and_sorted_by_what_they_cost(store: Store) -> None:
    for value in (4.0, 6.0, 5.0):
        store.record_miss("often", "t", value)
    store.record_miss("dear", "t", 17.0)
    store.record_miss("cheap", "t", 1.0)
    found = store.misses("t")
    assert [(m.fingerprint, m.value_us, m.count) for m in found] == [
        ("often", 6.0, 3),
        ("dear", 17.0, 1),
        ("cheap", 1.0, 1),
    ]
    assert len(store.misses("t", limit=2)) == 2
    store.clear_miss("often", "t")
    assert [m.fingerprint for m in store.misses("t")] == ["dear", "cheap"]


def test_entries_are_found_by_the_start_of_their_id(store: Store) -> None:
    store.put_entry(kernel("abc1", 1.0))
    store.put_entry(kernel("abd2", 1.0))
    assert [e.entry_id for e in store.match_entries("ab")] == ["abc1", "abd2"]
    assert [e.entry_id for e in store.match_entries("abd")] == ["abd2"]
    assert store.match_entries("a%") == []


def test_stats_count_what_is_there(tmp_path: Path) -> None:
    with Store.open(tmp_path, Trust(b"k" * 32)) as store:
        store.add_regions(RegionText("f", "r", "text"))
        store.add_attempts([attempt("f", "a", 1.0), attempt("f", "b", None, "build")])
        store.put_entry(kernel("a", 1.2))
        store.put_entry(kernel("b", 1.2, quarantined=True))
        store.put_entry(Entry("n", "f", "t", "unprofitable"))
        found = store.stats("t")
        assert (found.regions, found.attempts, found.accepted) == (1, 2, 1)
        assert (found.kernels, found.unprofitable, found.quarantined) == (1, 1, 1)
        assert found.size_bytes > 0
        assert store.stats("nobody's").attempts == 0
