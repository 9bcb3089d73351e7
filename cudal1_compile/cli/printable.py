"""Text that somebody else wrote, as it may be shown on a terminal."""

from __future__ import annotations


def say(text: str) -> None:
    """As `print`, of text that may hold a stranger's."""
    print(printable(text))


def printable(text: str) -> str:
    r"""Every character that is neither printable nor a line's end or a tab, as its escape: ESC is `\x1b`."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
