"""What synthesis reports while it runs, and each event as a line (pipeline/progress.py shows them).

A host target has costs, never speeds, and the line says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cudal1_compile.runtime.target import TargetKind, show_score
from cudal1_compile.synthesis.outcome import Outcome, Unfinished, Unprofitable, Won


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
    """`candidate` of `candidates` of all regions is timed; `best` is the region's score so far."""

    region: int  # from 1
    regions: int
    candidate: int
    candidates: int
    best: float | None
    left_s: float


@dataclass(frozen=True, slots=True)
class Examining:
    """The fastest candidate of a region is proven, or refused."""

    region: int
    regions: int
    best: float | None
    left_s: float


@dataclass(frozen=True, slots=True)
class Decided:
    """How far it is: regions that have a kernel, or are at their floor, or that nothing wins."""

    decided: int
    regions: int
    share: float | None  # of the regions' time; None where nothing is timed
    best: tuple[float, ...]  # scores, best first
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is left to do but what other processes are doing: so many regions."""

    regions: int
    left_s: float


Event = Preparing | Asking | Proposed | Judging | Examining | Decided | Waiting | Done
Progress = Callable[[Event], None]


def silent(event: Event) -> None:
    """No progress."""


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
        case Examining(region, regions, best):
            return f"cudal1: region {region}/{regions}, proving the best candidate{_best(best, kind)}, {left}"
        case Decided(decided, regions, share, best):
            time = "" if share is None else f", {share:.0%} of their time"
            scores = f", best {' '.join(show_score(score, kind) for score in best)}" if best else ""
            return f"cudal1: {decided}/{regions} regions decided{time}{scores}, {left}"
        case Waiting(regions):
            return f"cudal1: regions that another process writes kernels for: {regions}; waiting for them, {left}"
        case Done(region, regions, outcome):
            return f"cudal1: region {region}/{regions} {outcome.fingerprint[:12]}: {_ended(outcome, kind)}, {left}"


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
