"""What a compile does, pass by pass: lines on stderr by CUDAL1_DEBUG, and a record of the same.

    passes = PassLog()
    with passes.run("splice", text):  ...      level 2: `splice: 0.01 s`; 3: and text(), the graph behind the pass

Nothing here imports torch, and nothing is written to stdout.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cudal1_compile.config import debug_level

log = logging.getLogger(__name__)

PREFIX = "cudal1: "
REGIONS, TIMINGS, GRAPHS, SOURCES = 1, 2, 3, 4  # levels of CUDAL1_DEBUG
MOST_RUNS = 1000  # of passes of one compile that are kept
MOST_CHARACTERS = 20_000  # of a text that a generator wrote, or was asked with


@dataclass(frozen=True, slots=True)
class PassRun:
    """One run of one named pass."""

    name: str
    seconds: float


class PassLog:
    """The passes of one compile in the order in which they ended; threads may share it.

    Without a lock, since Inductor copies its passes: appending is atomic.
    """

    def __init__(self) -> None:
        self._runs: list[PassRun] = []

    @property
    def runs(self) -> tuple[PassRun, ...]:
        return tuple(self._runs)

    @contextmanager
    def run(self, name: str, text: Callable[[], object] | None = None) -> Iterator[None]:
        """Times a block. text: gives what the pass left behind, the graph as Python; asked at level 3."""
        start_s = time.perf_counter()
        yield
        seconds = time.perf_counter() - start_s
        if len(self._runs) < MOST_RUNS:
            self._runs.append(PassRun(name, seconds))
        level = debug_level()
        if level >= TIMINGS:
            shown = f"\n{str(text()).rstrip()}" if text is not None and level >= GRAPHS else ""
            say(f"{name}: {seconds:.3f} s{shown}")


def dump(level: int, title: str, text: str) -> None:
    """A text below its title, from a level of CUDAL1_DEBUG on."""
    if debug_level() >= level:
        say(f"{title}\n{text.rstrip()}")


def shorten(text: str) -> str:
    """What somebody else wrote, as it may be shown: its beginning, without control characters."""
    more = len(text) - MOST_CHARACTERS
    return printable(text[:MOST_CHARACTERS]) + (f"\n... {more} characters more" if more > 0 else "")


def printable(text: str) -> str:
    r"""Every character that is neither printable nor a line's end or a tab, as its escape: ESC is `\x1b`."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def say(text: str) -> None:
    """A line on stderr. A closed pipe must not end a compile, nor must a process that has no stderr."""
    try:
        sys.stderr.write(f"{PREFIX}{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError) as error:
        log.debug("stderr takes nothing: %s", error)
