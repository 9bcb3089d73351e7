"""Errors of the passes: what was got, what was expected, what to do."""

from __future__ import annotations


class ProgramError(ValueError):
    """A program, or its text, breaks a rule of Region text V1."""


class ImportRefused(Exception):
    """A region of an FX graph cannot be written as a program.

    `node` names the FX node that stands in the way, so that the partitioner can cut there.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node = node
        self.reason = reason


class NodeRefused(ImportRefused):
    """The node itself cannot be said in any region, so that cutting before it does not help."""


class RegionTooWide(ImportRefused):
    """A tensor would have more dims than a program allows; no single node is to blame."""
