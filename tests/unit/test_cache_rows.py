"""Rows and keys: what goes in comes out, and what is damaged does not."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlite_utils
from hypothesis import given
from hypothesis import strategies as st

from cudal1_cache import (
    Attempt,
    CacheCorrupt,
    Entry,
    EntryKey,
    GraphPlan,
    Miss,
    RegionText,
    Store,
    Trust,
    UnprofitableKey,
    digest,
)
from cudal1_cache.codec import KINDS, TABLES, Row, from_columns, to_columns
from cudal1_cache.keys import canonical_bytes

TRUST = Trust(b"k" * 32)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
numbers = st.floats(allow_nan=False)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "str": texts,
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": numbers,
    "bool": st.booleans(),
    "bytes": st.binary(max_size=200),
    "float | None": st.none() | numbers,
}


def rows_of(cls: type[Row]) -> st.SearchStrategy[Row]:
    values = {name: VALUES[kind] for name, kind in KINDS[cls].items()}
    values |= {"status": st.sampled_from(["kernel", "unprofitable"])} if cls is Entry else {}

    def make(found: dict[str, Any]) -> Row:
        return cls(**found)

    return st.fixed_dictionaries(values).map(make)


any_row = st.one_of([rows_of(cls) for cls in TABLES])


@given(any_row)
def test_columns_round_trip(row: Row) -> None:
    cls: Any = type(row)
    assert from_columns(cls, to_columns(row)) == row


@given(rows_of(RegionText), rows_of(Attempt), rows_of(Entry), rows_of(GraphPlan))
def test_store_round_trip(region: RegionText, attempt: Attempt, entry: Entry, plan: GraphPlan) -> None:
    with Store.memory() as store:
        store.add_regions(region)
        store.add_attempts([attempt])
        store.put_entry(entry)
        store.put_plan(plan)
        assert store.get_region(region.fingerprint) == region
        assert store.attempts(attempt.fingerprint, attempt.target) == [attempt]
        assert store.get_entry(entry.entry_id) == entry
        assert store.get_plan(plan.graph_key, plan.target) == plan


def test_tables_have_the_fields_of_their_rows() -> None:
    with Store.memory() as store:
        for cls, table in TABLES.items():
            names = store.database.read(partial(_column_names, table))
            assert set(names) == {"mac", "signature", *(f.name for f in fields(cls))}


def _column_names(table: str, db: sqlite_utils.Database) -> list[str]:
    return [column.name for column in db.table(table).columns]


def test_the_sign_of_zero_does_not_break_a_mac(tmp_path: Path) -> None:
    with Store.open(tmp_path, TRUST) as store:
        store.put_entry(Entry("e", "f", "t", "kernel", speedup=-0.0))
        assert store.get_entry("e") is not None


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        to_columns(Miss("f", "t", math.nan))


@pytest.mark.parametrize("table", ["attempts", "entries", "plans", "misses"])
def test_a_damaged_row_is_an_error_that_names_it(tmp_path: Path, table: str) -> None:
    """A file whose tables hold other types than ours, as an older SQLite allows."""
    with Store.open(tmp_path, TRUST) as store:
        _fill(store)
        store.database.write(partial(_damage, table))
    with Store.open(tmp_path, TRUST) as store, pytest.raises(CacheCorrupt, match=f"{table}\\(.*mac is int"):
        _read_all(store)


def _damage(table: str, db: sqlite_utils.Database) -> None:
    """The same table without column types, with a number where the first row's MAC was."""
    db.execute(f"create table loose as select * from {table}")
    db.execute(f"drop table {table}")
    columns = ", ".join(f'"{column.name}"' for column in db.table("loose").columns)
    db.execute(f"create table {table} ({columns})")
    db.execute(f"insert into {table} select * from loose")
    db.execute(f"update {table} set mac = 7 where rowid = 1")


def test_a_damaged_kernel_bars_neither_others_nor_its_region(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path, TRUST) as store:
        _fill(store)
        store.put_entry(Entry("healthy", "other", "t", "kernel", speedup=1.2))
        store.database.write(partial(_damage, "entries"))
        assert store.find_entry("f", "t") is None and "a damaged row is not used" in caplog.text
        assert [e.entry_id for e in store.entries()] == ["healthy"]


def test_a_damaged_region_is_absent_and_may_be_added_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Store.open(tmp_path, TRUST) as store:
        _fill(store)
        region = store.get_region("f")
        assert region is not None
        store.database.write(lambda db: db.execute("update regions set text = 'x'").rowcount)
        assert store.get_region("f") is None and "rows of regions" in caplog.text
        store.add_regions(region)
        assert store.get_region("f") == region


def _fill(store: Store) -> None:
    store.add_regions(RegionText("f", "r", "out0 = relu(in0)"))
    store.add_attempts([Attempt("f", "t", "c", "g", "m", "p", "why", "how", "code", "verify", "wrong at 3")])
    store.put_entry(Entry("e", "f", "t", "kernel", image=b"\x7fELF", speedup=1.5))
    store.put_plan(GraphPlan("g", "t", '{"f":"e"}', choice="inductor"))
    store.record_miss("f", "t", 3.0)


def _read_all(store: Store) -> None:
    store.get_region("f")
    store.attempts("f", "t")
    store.get_entry("e")
    store.get_plan("g", "t")
    store.misses("t")


KEY = EntryKey("out0 = sub(in0, in1)", "c0de", "4ead", "sm_90a", "exact")


@pytest.mark.parametrize("name", [f.name for f in fields(EntryKey)])
def test_every_field_is_in_the_key(name: str) -> None:
    assert replace(KEY, **{name: getattr(KEY, name) + "x"}).id != KEY.id


def test_fields_do_not_run_into_each_other() -> None:
    assert EntryKey("ab", "c", "", "", "").id != EntryKey("a", "bc", "", "", "").id


def test_kinds_of_keys_differ() -> None:
    assert digest(UnprofitableKey("f", "t")) == UnprofitableKey("f", "t").id
    assert canonical_bytes(UnprofitableKey("f", "t")) != canonical_bytes(Other("f", "t"))


def test_a_float_has_no_place_in_a_key() -> None:
    with pytest.raises(ValueError, match="expected str, int, bool"):
        digest(Other("f", "t", 0.1))


@dataclass(frozen=True)
class Other:
    fingerprint: str
    target: str
    numerics: object = ""


def test_key_bytes_are_frozen() -> None:
    """A change here loses every user's cache: raise KEY_VERSION and say so."""
    spelled = canonical_bytes(UnprofitableKey("f", "t"))
    assert spelled == b'{"fields":{"fingerprint":"f","numerics":"","target":"t"},"key":"NoWinKey","version":1}'
    assert KEY.id == "afeaa0c2250dc3194a4912aa12630d3832409d72df5850759e8a78359fb73d7e"
