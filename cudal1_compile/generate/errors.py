"""Errors of the generators: what was got, what was expected, what to do."""

from __future__ import annotations


class GeneratorError(RuntimeError):
    """A generator could not answer; the region keeps what it has, nothing is lost."""


class ModelMissing(GeneratorError):
    """The directory that should hold a model does not, or holds only part of one."""


class GeneratorTimeout(GeneratorError):
    """A propose call did not end within its time limit."""


class PromptTooLong(ValueError):
    """The region's own text does not fit the generator's token budget."""
