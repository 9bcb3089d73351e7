"""Keys: frozen dataclasses -> canonical bytes -> sha256.

The bytes hold KEY_VERSION, the key's name and every field by name, as JSON with sorted names. Raise
KEY_VERSION when a field changes its meaning: old rows are then never found again, and never wrongly found.

This module knows nothing of graphs: what decides a region's meaning arrives as its canonical text.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

KEY_VERSION = 1


def canonical_bytes(key: DataclassInstance) -> bytes:
    """The one spelling of a key. Fields must be str, int, bool or tuples of these; floats have no one spelling."""
    values = {f.name: _plain(getattr(key, f.name), f.name) for f in fields(key)}
    name = getattr(key, "key_name", type(key).__name__)
    document = {"version": KEY_VERSION, "key": name, "fields": values}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def digest(key: DataclassInstance) -> str:
    """sha256 of the canonical bytes, in hex."""
    return hashlib.sha256(canonical_bytes(key)).hexdigest()


def _plain(value: object, name: str) -> object:
    match value:
        case str() | bool() | int():
            return value
        case tuple():
            return [_plain(item, name) for item in value]
    raise ValueError(f"key field {name}={value!r}: expected str, int, bool or a tuple of these")


@dataclass(frozen=True, slots=True)
class EntryKey:
    """Everything that determines what a kernel's binary computes."""

    region: str  # canonical region text, sizes, dtypes and strides included
    code_digest: str  # of the candidate, launch plan included
    header_digest: str  # of the device header that it is built with
    arch: str
    numerics: str  # "exact" | "reassociates" | "f32_split" | "assumes_finite"

    @property
    def id(self) -> str:
        return digest(self)


@dataclass(frozen=True, slots=True)
class UnprofitableKey:
    """What was decided without a kernel for a region on a target, under a numerics setting."""

    key_name: ClassVar[str] = "NoWinKey"  # as the ids of stored entries spell it
    fingerprint: str
    target: str
    numerics: str = ""

    @property
    def id(self) -> str:
        return digest(self)
