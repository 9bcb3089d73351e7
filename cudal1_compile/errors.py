"""Errors of the compiler: what was got, what was expected, what to do."""

from __future__ import annotations


class CandidateError(ValueError):
    """A reply or its launch plan does not follow Reply V1; the sentence goes into the next prompt."""


class BuildError(RuntimeError):
    """A compiler refused device code; carries the compiler's own words, shortened."""


class LaunchError(RuntimeError):
    """A kernel could not be loaded or launched."""


class OptionError(ValueError):
    """An option of the backend is unknown or has a bad value."""


def describe(error: Exception) -> str:
    """Its kind and the first line of its words; Inductor's go on with whole graphs."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
