"""Errors of the commands: what was got, what was expected, what to do."""

from __future__ import annotations


class CommandFailed(RuntimeError):
    """A command could not do its work, and nothing is wrong with its options."""


class WorkloadFailed(RuntimeError):
    """The user's own code raised; `from` it, so that its traceback can be shown."""
