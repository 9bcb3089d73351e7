"""Bundles: kernels in one file, to be taken to another machine.

    export_bundle(store, path)  ->  a zip of regions.json, entries.json and manifest.json with a sha256 of each
    import_bundle(store, path, verify)  ->  what became of each entry

A bundle carries region text, source and proof, never binaries: what would run as native code is built here, from
source. The sha256 sums find damage, not malice: no entry of a bundle is used before `verify`, the caller's judge,
has accepted it on this machine. Until then it is stored, quarantined as UNVERIFIED. Nothing here checks that a
fingerprint belongs to its text: `verify` has to.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from cudal1_cache.codec import KINDS, from_columns, to_columns
from cudal1_cache.errors import BundleError, CacheCorrupt
from cudal1_cache.rows import UNVERIFIED, Entry, Region
from cudal1_cache.store import Store

FORMAT = "cudal1-bundle"
VERSION = 1
MAX_FILE_BYTES = 1 << 30  # of one file inside, unpacked

_PARTS = ("regions.json", "entries.json")


@dataclass(frozen=True, slots=True)
class Bundle:
    regions: tuple[Region, ...]
    entries: tuple[Entry, ...]  # kernels without image


@dataclass(frozen=True, slots=True)
class Verified:
    """A judge of this machine accepted the source: the entry as built and measured here."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Refused:
    """A judge of this machine rejected the source. The entry stays quarantined for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """No verdict yet: another target, no compiler, a busy GPU. The entry stays unverified."""

    reason: str


Verification = Verified | Refused | Postponed
Verify = Callable[[Region, Entry], Verification]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one entry."""

    entry_id: str
    verification: Verification


def export_bundle(store: Store, path: Path, target: str | None = None) -> Bundle:
    """Writes every usable kernel, of one target or of all. The file appears whole or not at all."""
    kernels = [e for e in store.entries(target=target) if e.status == "kernel" and not e.quarantined]
    found = {e.fingerprint: store.get_region(e.fingerprint) for e in kernels}
    missing = [fingerprint for fingerprint, region in found.items() if region is None]
    if missing:
        raise BundleError(f"region {missing[0]} of a kernel is not in the store; it cannot be exported")
    regions = tuple(r for r in found.values() if r is not None)
    bundle = Bundle(regions, tuple(replace(e, image=b"", image_arch="") for e in kernels))
    parts = {
        "regions.json": _to_json([asdict(r) for r in bundle.regions]),
        "entries.json": _to_json([_without_image(e) for e in bundle.entries]),
    }
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    manifest = _to_json({"format": FORMAT, "version": VERSION, "sha256": sums})
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
            for name, data in {"manifest.json": manifest, **parts}.items():
                file.writestr(name, data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return bundle


def read_bundle(path: Path) -> Bundle:
    """Reads and checks a bundle; raises BundleError, naming what is wrong, and OSError where there is no file."""
    try:
        with zipfile.ZipFile(path) as file:
            manifest = _parse(path, "manifest.json", _unpack(path, file, "manifest.json"))
            _check_manifest(path, manifest)
            parts = {name: _unpack(path, file, name) for name in _PARTS}
    except zipfile.BadZipFile as error:
        raise BundleError(f"{path} is no bundle or is damaged ({error}); export it again") from error
    for name, data in parts.items():
        if hashlib.sha256(data).hexdigest() != manifest["sha256"].get(name):
            raise BundleError(f"{path}: {name} does not match the manifest's sha256; export it again")
    regions = tuple(_row(path, Region, item) for item in _parse(path, "regions.json", parts["regions.json"]))
    entries = tuple(_row(path, Entry, item) for item in _parse(path, "entries.json", parts["entries.json"]))
    _check_content(path, regions, entries)
    return Bundle(regions, entries)


def import_bundle(store: Store, path: Path, verify: Verify) -> list[Outcome]:
    """Stores a bundle's entries as unverified, then lets `verify` judge them one by one.

    Kernels that the store holds already, verified, are left as they are. It may be stopped and run again.
    """
    bundle = read_bundle(path)
    regions = {r.fingerprint: r for r in bundle.regions}
    wanted = [e for e in bundle.entries if not _is_settled(store, e.entry_id)]
    for entry in wanted:
        if store.get_region(entry.fingerprint) is None:  # a stranger's text never replaces our own
            store.add_region(regions[entry.fingerprint])
        store.put_entry(replace(entry, quarantined=True, reason=f"{UNVERIFIED}: imported from {path.name}"))
    return verify_entries(store, wanted, verify)


def unverified(store: Store, target: str | None = None) -> list[Entry]:
    """Imported entries that wait for a judge of this machine, newest first."""
    return [e for e in store.entries(target=target) if e.is_unverified]


def verify_entries(store: Store, entries: Sequence[Entry], verify: Verify) -> list[Outcome]:
    """Asks `verify` about each entry and stores the answer at once."""
    outcomes = []
    for entry in entries:
        region = store.get_region(entry.fingerprint)
        assert region is not None, f"entry {entry.entry_id} without its region"
        outcome = Outcome(entry.entry_id, verify(region, entry))
        _settle(store, outcome)
        outcomes.append(outcome)
    return outcomes


def _settle(store: Store, outcome: Outcome) -> None:
    match outcome.verification:
        case Verified(entry):
            store.put_entry(replace(entry, quarantined=False))
            if entry.entry_id != outcome.entry_id:  # built with another header: another key
                store.quarantine(outcome.entry_id, f"replaced by {entry.entry_id}")
        case Refused(reason):
            store.quarantine(outcome.entry_id, f"refused: {reason}")
        case Postponed():
            pass


def _is_settled(store: Store, entry_id: str) -> bool:
    known = store.get_entry(entry_id)
    return known is not None and not known.is_unverified


def _without_image(entry: Entry) -> dict[str, Any]:
    return {f.name: getattr(entry, f.name) for f in fields(entry) if f.name not in ("image", "image_arch")}


def _to_json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode("ascii")


def _unpack(path: Path, file: zipfile.ZipFile, name: str) -> bytes:
    try:
        size_bytes = file.getinfo(name).file_size
    except KeyError:
        raise BundleError(f"{path} is no bundle: it lacks {name}") from None
    if size_bytes > MAX_FILE_BYTES:
        raise BundleError(f"{path}: {name} has {size_bytes} bytes, at most {MAX_FILE_BYTES} are read")
    with file.open(name) as part:
        return part.read(MAX_FILE_BYTES)


def _parse(path: Path, name: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise BundleError(f"{path}: {name} is no JSON ({error})") from error


def _check_manifest(path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{path} is no bundle: its manifest does not say {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise BundleError(f"{path} is a bundle of version {manifest.get('version')}, this cudal1 reads {VERSION}")
    if not isinstance(manifest.get("sha256"), dict):
        raise BundleError(f"{path}: the manifest lacks its sha256 sums")


def _row(path: Path, cls: Any, item: Any) -> Any:
    """Builds a row by way of its columns, so that every type is checked."""
    expected = set(KINDS[cls]) - ({"image", "image_arch"} if cls is Entry else set())
    if not isinstance(item, dict) or set(item) != expected:
        raise BundleError(f"{path}: a {cls.__name__} needs exactly the fields {', '.join(sorted(expected))}")
    try:
        return from_columns(cls, to_columns(cls(**item)))
    except (AssertionError, CacheCorrupt, ValueError) as error:
        raise BundleError(f"{path}: a {cls.__name__} is not valid: {error}") from error


def _check_content(path: Path, regions: tuple[Region, ...], entries: tuple[Entry, ...]) -> None:
    known = {r.fingerprint for r in regions}
    for entry in entries:
        if entry.status != "kernel" or entry.fingerprint not in known:
            raise BundleError(f"{path}: entry {entry.entry_id} is no kernel of a region in the bundle")
    twice = [name for name, count in Counter(e.entry_id for e in entries).items() if count > 1]
    if twice:
        raise BundleError(f"{path}: entry {twice[0]} occurs twice")
