"""What synthesis reports while it runs, and the line on stderr that shows it.

On a terminal one line is rewritten: region, candidate, best so far, time left. Elsewhere the first event is
a line, then the next one once PLAIN_S have passed. CUDAL1_DEBUG of 1 or more: and each region when it is done; 4:
and every prompt and reply. A host target has costs, never speeds, and the line says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TextIO

from cudal1_compile.synthesis.outcome import Outcome, Unfinished, Unprofitable, Won
from cudal1_compile.trace import SOURCES, shorten

TargetKind = Literal["cuda", "host"]
CLEAR_LINE = "\r\x1b[K"
WIDTH = 110  # characters; longer lines wrap and cannot be rewritten
PLAIN_S = 10.0  # from one line to the next where lines stay


@dataclass(frozen=True, slots=True)
class Preparing:
    """Generator and judge are made ready: a model is loaded, on a new machine headers are compiled."""

    regions: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Asking:
    """The generator is about to be asked for `candidates` replies for the regions `first`..`last` of `regions`."""

    first: int
    last: int
    regions: int
    round: int  # from 1
    rounds: int
    candidates: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Judging:
    """`candidate` of `candidates` for a region is judged; `best` is the score so far."""

    region: int  # from 1
    regions: int
    candidate: int
    candidates: int
    best: float | None
    left_s: float


@dataclass(frozen=True, slots=True)
class MeasuringFinalists:
    """The best candidates of a region are measured together."""

    region: int
    regions: int
    candidates: int
    best: float | None
    left_s: float


@dataclass(frozen=True, slots=True)
class Done:
    region: int
    regions: int
    outcome: Outcome
    left_s: float


@dataclass(frozen=True, slots=True)
class Proposed:
    """What the generator was asked for a region, and what it replied: a stranger's texts."""

    fingerprint: str
    prompt: str
    replies: tuple[str, ...]
    left_s: float


Event = Preparing | Asking | Proposed | Judging | MeasuringFinalists | Done
Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """No progress."""


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


def describe(event: Event, kind: TargetKind) -> str:
    left = f"{event.left_s:.0f} s left"
    match event:
        case Preparing(regions):
            return f"cudal1: regions without a kernel: {regions}; preparing generator and judge, {left}"
        case Asking(first, last, regions, round_, rounds, candidates):
            which = f"region {first}" if first == last else f"regions {first}-{last}"
            return f"cudal1: {which}/{regions}, round {round_}/{rounds}, writing {candidates} candidates, {left}"
        case Proposed(fingerprint, prompt, replies):
            lengths = f"{len(replies)} replies to a prompt of {len(prompt)} characters"
            return f"cudal1: region {fingerprint[:12]}, {lengths}, {left}"
        case Judging(region, regions, candidate, candidates, best):
            text = f"candidate {candidate}/{candidates}"
            return f"cudal1: region {region}/{regions}, {text}{_best(best, kind)}, {left}"
        case MeasuringFinalists(region, regions, candidates, best):
            text = f"measuring {candidates} finalist{'s' if candidates > 1 else ''}"
            return f"cudal1: region {region}/{regions}, {text}{_best(best, kind)}, {left}"
        case Done(region, regions, outcome):
            return f"cudal1: region {region}/{regions} {outcome.fingerprint[:12]}: {_ended(outcome, kind)}, {left}"


def texts_of(event: Proposed) -> str:
    """The prompt and every reply, whole up to a bound, without control characters."""
    named = {"prompt": event.prompt} | {f"reply {i}": reply for i, reply in enumerate(event.replies, 1)}
    head = f"cudal1: region {event.fingerprint[:12]},"
    return "\n".join(f"{head} {name}:\n{shorten(text).rstrip()}" for name, text in named.items())


def show_score(value: float, kind: TargetKind) -> str:
    """`1.31x`, or on the host target `cost 0.76 of one operation at a time`."""
    return f"{value:.2f}x" if kind == "cuda" else f"cost {1 / value:.2f} of one operation at a time"


def _best(value: float | None, kind: TargetKind) -> str:
    return "" if value is None else f", best {show_score(value, kind)}"


def _ended(outcome: Outcome, kind: TargetKind) -> str:
    match outcome.result:
        case Won(entry):
            return f"new kernel, {show_score(entry.speedup or 1.0, kind)}"
        case Unprofitable(entry):
            return f"{entry.status.replace('_', ' ')} ({entry.reason})"
        case Unfinished(reason):
            return f"unfinished ({reason})"
