"""Some files of a folder as a few parts of bounded size, to go on elsewhere where only small files may travel.

pack(folder, files, parts)      compressed; takes the place of what `parts` held before
unpack(parts, folder)           nothing where there are no parts
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

PART_BYTES = 15 << 20


def pack(folder: Path, files: Iterable[Path], parts: Path, size_bytes: int = PART_BYTES) -> list[Path]:
    """`files` lie in `folder`, and come out in this order; returns the parts. A kill leaves old or new ones."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
        for path in files:
            archive.add(path, path.relative_to(folder))
    body, fresh = stream.getvalue(), parts.with_name(parts.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for i, start in enumerate(range(0, len(body), size_bytes)):
        (fresh / f"part.{i:02}").write_bytes(body[start : start + size_bytes])
    old = parts.with_name(parts.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if parts.is_dir():
        os.replace(parts, old)
    os.replace(fresh, parts)
    shutil.rmtree(old, ignore_errors=True)
    return _parts(parts)


def unpack(parts: Path, folder: Path) -> None:
    """Raises tarfile.ReadError or EOFError where a part is missing."""
    found = _parts(parts)
    if not found:
        return
    stream = io.BytesIO(b"".join(p.read_bytes() for p in found))
    with tarfile.open(fileobj=stream, mode="r:gz") as archive:
        archive.extractall(folder, filter="data")


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part.*"))
