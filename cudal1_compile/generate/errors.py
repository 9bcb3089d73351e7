"""Errors of the generators: what was got, what was expected, what to do."""

from __future__ import annotations

from cudal1_compile.errors import describe

FULL = ("out of memory", "alloc failed", "can't allocate memory")  # torch's and CUDA's words, cuBLAS's, a CPU's


class GeneratorError(RuntimeError):
    """A generator could not answer; the region keeps what it has, nothing is lost."""


class ModelMissing(GeneratorError):
    """The directory that should hold a model does not, or holds only part of one."""


class GeneratorTimeout(GeneratorError):
    """A propose call did not end within its time limit."""


class PromptTooLong(ValueError):
    """The region's own text does not fit the generator's token budget."""


def wants_memory(error: BaseException) -> bool:
    """Whether it, or what it was raised in the handling of, says that a device's memory ran out."""
    said = str(error).lower().replace("_", " ")
    # a capture that was cut off says only that it was
    return any(words in said for words in FULL) or (
        error.__context__ is not None and wants_memory(error.__context__)
    )


def no_room(error: Exception) -> GeneratorError:
    """What to raise then. It holds nothing of the error, whose frames hold memory."""
    return GeneratorError(f"the device has no room for the generator: {describe(error)}")
