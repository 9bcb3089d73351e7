"""Bundles: kernels in one file, to be taken to another machine.

    export_bundle(store, path)  ->  a text file: a line with format, version and the sha256 of the rest, then JSON
    read_bundle(path)  ->  Bundle
    import_bundle(store, bundle, origin, verify)  ->  what became of each entry

A bundle carries region text, source and proof, never binaries: what would run as native code is built here, from
source. The sha256 finds damage, not malice: no entry of a bundle is used before `verify`, the caller's judge,
has accepted it on this machine. Until then it is stored, quarantined as UNVERIFIED. Nothing here checks that a
fingerprint belongs to its text: `verify` has to.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from cudal1_cache.codec import KINDS, from_columns, to_columns
from cudal1_cache.errors import BundleError, CacheCorrupt
from cudal1_cache.rows import UNVERIFIED, Entry, RegionText
from cudal1_cache.store import Store

log = logging.getLogger(__name__)

FORMAT = "cudal1-bundle"
VERSION = 1
MAX_BYTES = 64 << 20  # of a file: some thousand kernels; as objects of Python it takes some ten times as much
LATEST_S = 1e11  # of a time: the year 5138

_LEFT_OUT = {"image", "image_arch", "verdicts"}  # fields of an entry: what is native, and of the unprofitable


@dataclass(frozen=True, slots=True)
class Bundle:
    regions: tuple[RegionText, ...]
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
Verify = Callable[[RegionText, Entry], Verification]


@dataclass(frozen=True, slots=True)
class EntryVerification:
    """What became of one entry."""

    entry_id: str
    verification: Verification


def export_bundle(store: Store, path: Path, target: str | None = None) -> Bundle:
    """Writes every usable kernel, of one target or of all. The file appears whole or not at all.

    Raises BundleError where no kernel has its region's text. One without is left out, and told.
    """
    kernels = [e for e in store.entries(target=target) if e.status == "kernel" and not e.quarantined]
    found = {e.fingerprint: store.get_region(e.fingerprint) for e in kernels}
    regions = {fingerprint: region for fingerprint, region in found.items() if region is not None}
    for fingerprint in found.keys() - regions.keys():
        log.warning("kernels of the region %s are not exported: its text is lost", fingerprint)
    if found and not regions:
        raise BundleError(f"no region of the {len(kernels)} kernels is in the store; nothing can be exported")
    usable = tuple(replace(e, image=b"", image_arch="") for e in kernels if e.fingerprint in regions)
    bundle = Bundle(tuple(regions.values()), usable)
    _write_whole(path, _to_bytes(bundle))
    return bundle


def read_bundle(path: Path) -> Bundle:
    """Reads and checks a bundle; raises BundleError, naming what is wrong, and OSError where there is no file."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BundleError(f"{path} has over {MAX_BYTES >> 20} MB, which no bundle may have; export fewer kernels")
    head, _, body = data.partition(b"\n")
    manifest = _parse(path, head)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{path} is no bundle: its first line does not say {FORMAT!r}")
    if type(manifest.get("version")) is not int or manifest["version"] != VERSION:
        raise BundleError(
            f"{path} is a bundle of version {manifest.get('version')!r}, this cudal1 reads {VERSION}"
        )
    if manifest.get("sha256") != hashlib.sha256(body).hexdigest():
        raise BundleError(f"{path} is damaged: its content does not match its sha256; export it again")
    content = _parse(path, body)
    if not (isinstance(content, dict) and all(isinstance(content.get(n), list) for n in ("regions", "entries"))):
        raise BundleError(f"{path}: expected lists of regions and entries")
    regions = tuple(_row(path, RegionText, item) for item in content["regions"])
    entries = tuple(_row(path, Entry, item) for item in content["entries"])
    _check_content(path, regions, entries)
    return Bundle(regions, entries)


def import_bundle(store: Store, bundle: Bundle, origin: str, verify: Verify) -> list[EntryVerification]:
    """Stores a bundle's entries as unverified, then lets `verify` judge them one by one.

    Kernels that the store holds already, verified, are left as they are. It may be stopped and run again.
    """
    regions = {r.fingerprint: r for r in bundle.regions}
    wanted = [e for e in bundle.entries if not _is_settled(store, e, regions[e.fingerprint])]
    for entry in wanted:
        if store.get_region(entry.fingerprint) is None:  # a stranger's text never replaces our own
            store.add_regions(regions[entry.fingerprint])
        store.put_entry(replace(entry, quarantined=True, reason=f"{UNVERIFIED}: imported from {origin}"))
    return verify_entries(store, wanted, verify, regions)


def unverified(store: Store, target: str | None = None) -> list[Entry]:
    """Imported entries that wait for a judge of this machine, newest first."""
    return [e for e in store.entries(target=target) if e.is_unverified]


def verify_entries(
    store: Store, entries: Sequence[Entry], verify: Verify, regions: Mapping[str, RegionText] | None = None
) -> list[EntryVerification]:
    """Asks `verify` about each entry and stores the answer at once. regions: theirs by fingerprint, if not stored.

    What is verified has shown that the text is the region's, which then takes the place of another import's.
    """
    outcomes = []
    for entry in entries:
        region = (regions or {}).get(entry.fingerprint) or store.get_region(entry.fingerprint, proven=False)
        outcome = EntryVerification(entry.entry_id, _verification(store, region, entry, verify))
        if isinstance(outcome.verification, Verified) and region is not None:
            store.add_regions(region)
        settle(store, outcome)
        outcomes.append(outcome)
    return outcomes


def _verification(store: Store, region: RegionText | None, entry: Entry, verify: Verify) -> Verification:
    """Refuted code is not judged again, however its bundle spells it."""
    if region is None:
        return Postponed("its region's text is not in the cache; import it again")
    why = store.why_refuted(entry.fingerprint, entry.target, entry.code)
    if why is None:
        return verify(region, entry)
    return Refused(f"the same code gave a wrong result before ({why}); `cudal1 cache unrefute` lifts that")


def settle(store: Store, outcome: EntryVerification) -> None:
    """Stores a verdict. A postponed one changes nothing."""
    match outcome.verification:
        case Verified(entry):
            store.put_entry(replace(entry, quarantined=False))
            if entry.entry_id != outcome.entry_id:  # built with another header: another key
                store.quarantine(outcome.entry_id, f"replaced by {entry.entry_id}")
        case Refused(reason):
            store.quarantine(outcome.entry_id, f"refused: {reason}")
        case Postponed():
            pass


def _is_settled(store: Store, entry: Entry, region: RegionText) -> bool:
    """Whether it is in use, or was refused as it is: not what a stranger's bundle had under its id."""
    known = store.get_entry(entry.entry_id)
    if known is None or known.is_unverified:
        return False
    held = store.get_region(entry.fingerprint)
    return not known.quarantined or (known.code == entry.code and held is not None and held.text == region.text)


def _to_bytes(bundle: Bundle) -> bytes:
    content = {"regions": [asdict(r) for r in bundle.regions], "entries": [_plain(e) for e in bundle.entries]}
    body = json.dumps(content, indent=1, sort_keys=True).encode("ascii")
    manifest = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(body).hexdigest()}
    return json.dumps(manifest).encode("ascii") + b"\n" + body


def _plain(entry: Entry) -> dict[str, Any]:
    return {f.name: getattr(entry, f.name) for f in fields(entry) if f.name not in _LEFT_OUT}


def _write_whole(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _parse(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is no bundle or is damaged: no JSON ({error})") from error


def _row(path: Path, cls: Any, item: Any) -> Any:
    """Builds a row by way of its columns, so that every type is checked."""
    expected = set(KINDS[cls]) - (_LEFT_OUT if cls is Entry else set())
    if not isinstance(item, dict) or set(item) != expected:
        raise BundleError(f"{path}: a {cls.__name__} needs exactly the fields {', '.join(sorted(expected))}")
    try:
        return from_columns(cls, to_columns(cls(**item)))
    except (AssertionError, CacheCorrupt, OverflowError, ValueError) as error:
        raise BundleError(f"{path}: a {cls.__name__} is not valid: {error}") from error


def _check_content(path: Path, regions: tuple[RegionText, ...], entries: tuple[Entry, ...]) -> None:
    known = {r.fingerprint for r in regions}
    for entry in entries:
        if entry.status != "kernel" or entry.fingerprint not in known:
            raise BundleError(f"{path}: entry {entry.entry_id!r} is no kernel of a region in the bundle")
        if not (entry.entry_id.isascii() and entry.entry_id.isalnum() and entry.target.isprintable()):
            raise BundleError(f"{path}: entry {entry.entry_id!r} of target {entry.target!r}: expected plain names")
        for text in (entry.versions_json, entry.proof_json):
            if not isinstance(_parse(path, text.encode("utf-8", "replace")), dict):
                raise BundleError(f"{path}: entry {entry.entry_id}: {text[:40]!r} is no JSON object")
        if not 0 <= entry.created < LATEST_S:
            raise BundleError(f"{path}: entry {entry.entry_id}: made at {entry.created} s, expected a time")
    twice = [name for name, count in Counter(e.entry_id for e in entries).items() if count > 1]
    if twice:
        raise BundleError(f"{path}: entry {twice[0]} occurs twice")
