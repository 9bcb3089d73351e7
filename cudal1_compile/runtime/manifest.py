"""Whether a folder of native outputs is what was built: a list of sha256 that is written with them.

    seal_folder(folder, names)     after a build, before the folder is published
    why_damaged(folder, names)     before anything in it is loaded or executed

It finds damage (a power loss, a full disk, a cut copy), not malice: that others cannot write there is
cudal1_cache.ownership's to say.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path

MANIFEST = "manifest.json"


def seal_folder(folder: Path, names: Collection[str]) -> None:
    """Writes the list, and brings it, the files and the folder to the disk."""
    listed = {name: _digest(folder / name) for name in names}
    (folder / MANIFEST).write_text(json.dumps(listed, sort_keys=True), "ascii")
    for name in (*names, MANIFEST, "."):
        sync(folder / name)


def why_damaged(folder: Path, names: Collection[str]) -> str | None:
    """What is wrong with a folder, as a phrase; None where every output is as it was built."""
    try:
        listed = json.loads((folder / MANIFEST).read_text("ascii"))
        if not isinstance(listed, dict) or set(listed) != set(names):
            return f"its {MANIFEST} does not list {', '.join(names)}"
        changed = [name for name in names if _digest(folder / name) != listed[name]]
    except (OSError, ValueError) as error:
        return f"it cannot be read whole: {error}"
    return f"{', '.join(changed)} is not what was built" if changed else None


def sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
