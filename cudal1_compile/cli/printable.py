"""Text that somebody else wrote, as it may be shown on a terminal."""

from __future__ import annotations

from cudal1_compile.pipeline.trace import printable as printable


def say(text: str) -> None:
    """As `print`, of text that may hold a stranger's."""
    print(printable(text))
