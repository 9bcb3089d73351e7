"""Errors of the compiler: what was got, what was expected, what to do."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile


class BuildError(RuntimeError):
    """A compiler refused device code; carries the compiler's own words, shortened."""


class LaunchError(RuntimeError):
    """A kernel could not be loaded or launched."""


class OptionError(ValueError):
    """An option of the backend is unknown or has a bad value."""


def describe(error: Exception) -> str:
    """Its kind and the first line of its words; Inductor's go on with whole graphs."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


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
