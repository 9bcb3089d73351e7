"""What a user can mend is told in a sentence, without a traceback: a wrong recipe, model, folder or file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cudal1_compile.generate.errors import GeneratorError


class DataError(RuntimeError):
    """A producer process failed; carries its traceback."""


class NotFinite(RuntimeError):
    """The loss became NaN or infinite; the last good state is kept."""


MISTAKES = (ValueError, GeneratorError, DataError, NotFinite)  # their texts say what to do


@contextmanager
def mistakes_told() -> Iterator[None]:
    """Around a command; ends the process with status 1."""
    try:
        yield
    except MISTAKES as error:
        raise SystemExit(str(error)) from None
