"""A file that is damaged is told by its name, with what to do about it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

DAMAGES = (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, OSError, zlib.error, BadZipFile)


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Around the reading of a file; raises ValueError for what a damaged one raises."""
    try:
        yield
    except DAMAGES as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it is damaged or of another version. "
            "Put back a whole one, as `git checkout -- FILE` does for what came with the package"
        ) from error
