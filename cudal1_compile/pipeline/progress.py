"""The line on stderr that shows what synthesis does.

On a terminal one line is rewritten: region, candidate, best so far, time left. Elsewhere the first event is
a line, then the next one once PLAIN_S have passed. CUDAL1_DEBUG of 1 or more: and each region when it is done; 4:
and every prompt and reply.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from cudal1_compile.pipeline.trace import SOURCES, shorten
from cudal1_compile.runtime.target import TargetKind
from cudal1_compile.synthesis.progress import Done, Event, Proposed, describe

CLEAR_LINE = "\r\x1b[K"
WIDTH = 110  # characters; longer lines wrap and cannot be rewritten
PLAIN_S = 10.0  # from one line to the next where lines stay


class LineProgress:
    """Writes events to a stream. Call close() at the end, so that the next output starts on a clean line."""

    def __init__(self, kind: TargetKind, stream: TextIO | None = None, level: int = 0) -> None:
        self.kind = kind
        self.stream = stream or sys.stderr
        self.level = level
        self._written_at = float("-inf")
        try:
            self.rewrites = self.stream.isatty()
        except (ValueError, AttributeError):  # closed, a logger's, or none at all
            self.rewrites = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, Proposed):
            if self.level >= SOURCES:
                self._write((CLEAR_LINE if self.rewrites else "") + texts_of(event) + "\n")
        elif isinstance(event, Done) and self.level >= 1:
            self._write(("" if not self.rewrites else CLEAR_LINE) + describe(event, self.kind) + "\n")
        elif self.rewrites:
            self._write(CLEAR_LINE + describe(event, self.kind)[:WIDTH])
        elif time.monotonic() - self._written_at >= PLAIN_S:
            self._written_at = time.monotonic()
            self._write(describe(event, self.kind) + "\n")

    def close(self) -> None:
        if self.rewrites:
            self._write(CLEAR_LINE)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError, AttributeError):  # a closed pipe must not end a compile
            self.rewrites, self.level = False, 0


def texts_of(event: Proposed) -> str:
    """The prompt and every reply, whole up to a bound, without control characters."""
    named = {"prompt": event.prompt} | {f"reply {i}": reply for i, reply in enumerate(event.replies, 1)}
    head = f"cudal1: region {event.fingerprint[:12]},"
    return "\n".join(f"{head} {name}:\n{shorten(text).rstrip()}" for name, text in named.items())
