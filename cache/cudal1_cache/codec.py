"""Rows to columns and back, and the bytes that a row's MAC and signature are over.

Each table has the fields of its dataclass and two more columns, `mac` and `signature`, over the table's name and
all the fields (trust.py). A row whose types are wrong raises CacheCorrupt and is not handed out.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from cudal1_cache.errors import CacheCorrupt
from cudal1_cache.rows import Attempt, Entry, GraphPlan, Miss, Refuted, RegionText
from cudal1_cache.schema import SEAL_VERSION

Row = RegionText | Attempt | Entry | GraphPlan | Miss | Refuted
R = TypeVar("R", RegionText, Attempt, Entry, GraphPlan, Miss, Refuted)
Column = str | int | float | bytes | None

TABLES: dict[type[Row], str] = {
    RegionText: "regions",
    Attempt: "attempts",
    Entry: "entries",
    GraphPlan: "plans",
    Miss: "misses",
    Refuted: "refuted",
}
PRIMARY_KEYS: dict[type[Row], tuple[str, ...]] = {
    RegionText: ("fingerprint",),
    Attempt: ("id",),
    Entry: ("entry_id",),
    GraphPlan: ("graph_key", "target"),
    Miss: ("fingerprint", "target"),
    Refuted: ("fingerprint", "target", "code_digest"),
}
SEALS = ("mac", "signature")


def to_columns(row: Row) -> dict[str, Column]:
    """The row's fields as SQLite takes them."""
    return {name: _stored(getattr(row, name), kind) for name, kind in KINDS[type(row)].items()}


def from_columns(cls: type[R], columns: Mapping[str, Any]) -> R:
    """Raises CacheCorrupt, naming table and key, where a field is missing or of another type."""
    kinds: dict[str, str] = KINDS[cls]
    missing = [name for name in kinds if name not in columns]
    if missing:
        raise CacheCorrupt(f"{_where(cls, columns)} lacks {', '.join(missing)}; delete the row or the cache file")
    for name, kind in kinds.items():
        _check_kind(cls, columns, name, kind)
    loaded: dict[str, Any] = {name: _loaded(columns[name], kind) for name, kind in kinds.items()}
    return cls(**loaded)


def seals(cls: type[Row], columns: Mapping[str, Any]) -> tuple[str, str]:
    """A stored row's MAC and signature. Raises CacheCorrupt where they are no texts."""
    for name in SEALS:
        _check_kind(cls, columns, name, "str")
    return columns["mac"], columns["signature"]


def canonical(cls: type[Row], columns: Mapping[str, Column]) -> bytes:
    """What is sealed: table, names and values; floats by their shortest exact spelling, blobs by their sha256."""
    fields_of = {name: columns[name] for name in KINDS[cls]}
    plain = {k: hashlib.sha256(v).hexdigest() if isinstance(v, bytes) else v for k, v in fields_of.items()}
    document = [f"cudal1 cache {SEAL_VERSION}", TABLES[cls], plain]
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")


def _check_kind(cls: type[Row], columns: Mapping[str, Any], name: str, kind: str) -> None:
    if not isinstance(columns[name], _SQLITE[kind]):
        found = type(columns[name]).__name__
        raise CacheCorrupt(
            f"{_where(cls, columns)}: {name} is {found}, expected {kind}; delete the row or the cache file"
        )


# what SQLite may hand back for a field of this kind
_SQLITE: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float,),
    "bool": (int,),
    "bytes": (bytes,),
    "float | None": (float, types.NoneType),
}


def _stored(value: object, kind: str) -> Column:
    match kind, value:
        case "str", str() if not value.isascii():
            return value.encode("utf-8", "replace").decode("utf-8")  # SQLite takes no lone surrogates
        case "bool", bool():
            return int(value)
        case "float" | "float | None", int() | float():
            return _finite(float(value))
    assert isinstance(value, _SQLITE[kind]), f"{kind} expected, got {value!r}"
    return value  # type: ignore[return-value]


def _finite(value: float) -> float:
    """SQLite keeps neither NaN (it becomes NULL) nor the sign of zero."""
    if math.isnan(value):
        raise ValueError("a row cannot hold NaN; leave the field None where nothing was measured")
    return value + 0.0


def _loaded(value: Column, kind: str) -> Column:
    return bool(value) if kind == "bool" else value


def _kind(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join("None" if a is types.NoneType else a.__name__ for a in get_args(hint))
    return "str" if get_args(hint) else str(hint.__name__)  # a Literal of strings


def _where(cls: type[Row], columns: Mapping[str, Any]) -> str:
    key = ", ".join(f"{name}={columns.get(name)!r}" for name in PRIMARY_KEYS[cls])
    return f"cache row {TABLES[cls]}({key})"


# field name -> kind, a key of _SQLITE
KINDS: dict[type[Row], dict[str, str]] = {
    cls: {f.name: _kind(get_type_hints(cls)[f.name]) for f in fields(cls)} for cls in TABLES
}
