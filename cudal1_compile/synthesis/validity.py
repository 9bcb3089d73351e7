"""Whether a stored entry holds here: its id, its versions, its age, its binary.

Each start asks this of each of its regions, so it needs nothing that proposes, judges or writes rows.
"""

from __future__ import annotations

import hashlib
import json
import time

from cudal1_cache.keys import EntryKey
from cudal1_cache.rows import Entry
from cudal1_compile.errors import LaunchError
from cudal1_compile.judge.versions import outdated
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.runtime.build import Binary, Resources
from cudal1_compile.runtime.source import PARTS, header_text
from cudal1_compile.runtime.target import Target

DAY_S = 24 * 3600.0
HOLDS_S = 30 * DAY_S  # what was decided without a kernel
KERNELS = "kernels"  # in an entry's versions: what each kernel of its image takes
HEADER = "header"  # there too: digest of the headers that it was built with
DEVICE_HEADERS = ("cudal1.cuh", *PARTS)
HEADERS = {"cuda": DEVICE_HEADERS, "host": ("host.h", *DEVICE_HEADERS)}


def header_digest(target: Target) -> str:
    """sha256 of the headers that every kernel for this target is built with."""
    text = "\0".join(header_text(name) for name in HEADERS[target.kind])
    return hashlib.sha256(text.encode()).hexdigest()


def check_identity(entry: Entry, text: str, target: Target) -> None:
    """Raises LaunchError where an id is not that of the kernel's source, plan, headers, target and region."""
    if entry.target != target.key:
        raise LaunchError(f"it was made for another target than {target.name}")
    if (own := own_id(entry, text, target)) != entry.entry_id:
        raise LaunchError(
            f"its id should be {own[:12]}, that of its source, launch plan, headers, target and region; "
            "it is not what the judge accepted under this id"
        )


def own_id(entry: Entry, text: str, target: Target) -> str:
    """The id that a kernel of this source and these headers has for a region's text."""
    header = json.loads(entry.versions_json).get(HEADER, "")
    return EntryKey(text, normalised_digest(entry.code), header, target.arch, entry.numerics).id


def stored_binary(entry: Entry, target: Target) -> Binary | None:
    """The binary that with_binary stored, ready to load; None where there is none, or it is for another arch."""
    kernels = json.loads(entry.versions_json).get(KERNELS)
    if not entry.image or not kernels or entry.image_arch != target.arch:
        return None
    found = {name: Resources(**resources) for name, resources in kernels.items()}
    return Binary(target.kind, entry.image_arch, entry.image, found)


def why_outdated(entry: Entry, target: Target) -> str | None:
    """The first version that an entry was not measured under. None: it holds here."""
    return outdated(json.loads(entry.versions_json), target)


def why_stale(entry: Entry, target: Target) -> str | None:
    """Why a region that was decided without a kernel is asked for again; None while that holds."""
    age_s = time.time() - entry.created
    if age_s > HOLDS_S:
        return f"that was {age_s / DAY_S:.0f} days ago"
    if json.loads(entry.versions_json).get("header") != header_digest(target):
        return "the device header has changed"
    return why_outdated(entry, target)
