"""Never slower: which variant of a graph runs is measured on the user's own first calls.

    warm-up of each, then ABBA: none all some | some all none | ...   at most 28 calls
    -> the fastest variant whose lower bound over `none` is at least 1, else `none`

Every call is executed exactly once, by one variant, forward and backward as a pair. CUDA events around both are
read when they are done, never waited for. During a stream capture nothing is tried: `none` runs. Once decided
the losers are dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor

from cudal1_cache.rows import PlanChoice

log = logging.getLogger(__name__)

MAX_CALLS = 28
WARMUP_CALLS = 3  # of each variant: lazy backward compile, CUDA graph warm-up, its recording
MIN_ROUNDS = 4  # with complete figures, for a decision other than `none`
CONFIDENCE = 0.85

Compiled = Callable[..., Any]


class Clock(Protocol):
    """Marks points of a stream without waiting for it."""

    def mark(self) -> Any: ...

    def between_us(self, start: Any, end: Any) -> float | None:
        """None while the stream has not come to `end`."""

    def is_usable(self) -> bool:
        """False while marks may not be set (a capture)."""


class CudaClock:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def between_us(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        return start.elapsed_time(end) * 1000 if end.query() else None  # type: ignore[no-untyped-call]

    def is_usable(self) -> bool:
        return not torch.cuda.is_current_stream_capturing()


@dataclass
class Call:
    """The marks of one timed call. The backward's come later, or never."""

    forward: tuple[Any, Any] | None = None
    backward_start: Any = None
    backward_end: Any = None


@dataclass(frozen=True, slots=True)
class Decision:
    choice: PlanChoice
    ratio: float  # of `none`'s time over the choice's


@dataclass
class Trial:
    """Callable in place of the compiled graph."""

    variants: Mapping[PlanChoice, Compiled]
    clock: Clock
    decided: Callable[[PlanChoice, float], None]
    winner: Compiled | None = None
    _calls: int = 0
    _timed: dict[PlanChoice, list[Call]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._order = schedule(tuple(self.variants))
        self._timed = {name: [] for name in self.variants}

    def __call__(self, *args: Any) -> Any:
        if self.winner is not None:
            return self.winner(*args)
        if not self.clock.is_usable():
            return self.variants["none"](*args)
        with self._lock:
            at = self._calls
            self._calls += 1
        if at >= len(self._order):
            self._decide()
            return (self.winner or self.variants["none"])(*args)
        name, is_timed = self._order[at]
        return self._timed_call(name, args) if is_timed else self.variants[name](*args)

    def _timed_call(self, name: PlanChoice, args: Sequence[Any]) -> Any:
        call = Call()
        self._timed[name].append(call)
        start = self.clock.mark()
        outputs = self.variants[name](*args)
        call.forward = (start, self.clock.mark())
        watch_backward(outputs, call, self.clock)
        return outputs

    def _decide(self) -> None:
        with self._lock:
            if self.winner is not None:
                return
            found = decide(self._figures())
            self.winner = self.variants[found.choice]
            self.variants, self._timed = {found.choice: self.winner}, {}
        log.info("decided for %s, %.3f of inductor's speed", found.choice, found.ratio)
        self.decided(found.choice, found.ratio)

    def _figures(self) -> dict[PlanChoice, list[float | None]]:
        """Microseconds a timed call, None where the stream was not done; with the backward if all have one."""
        calls = [c for group in self._timed.values() for c in group]
        with_backward = all(c.backward_end is not None for c in calls)
        return {name: [self._took_us(c, with_backward) for c in group] for name, group in self._timed.items()}

    def _took_us(self, call: Call, with_backward: bool) -> float | None:
        if call.forward is None:
            return None
        forward_us = self.clock.between_us(*call.forward)
        if not with_backward or forward_us is None:
            return forward_us
        backward_us = self.clock.between_us(call.backward_start, call.backward_end)
        return None if backward_us is None else forward_us + backward_us


def schedule(names: Sequence[PlanChoice]) -> list[tuple[PlanChoice, bool]]:
    """(variant, is timed) a call: warm-up of each, then rounds in alternating order, at most MAX_CALLS."""
    order = [(name, False) for name in names for _ in range(WARMUP_CALLS)]
    rounds = (MAX_CALLS - len(order)) // len(names)
    for i in range(rounds - rounds % 2):
        order += [(name, True) for name in (names if i % 2 == 0 else tuple(reversed(names)))]
    return order


def decide(figures: Mapping[PlanChoice, Sequence[float | None]]) -> Decision:
    """The fastest variant that is proven not to be slower than `none`."""
    best = Decision("none", 1.0)
    base = figures["none"]
    for name, took_us in figures.items():
        pairs = [(a, b) for a, b in zip(base, took_us, strict=False) if a and b]
        if name == "none" or len(pairs) < MIN_ROUNDS:
            continue
        ratios = sorted(a / b for a, b in pairs)
        if lower_bound(ratios) >= 1.0 and median(ratios) > best.ratio:
            best = Decision(name, median(ratios))
    return best


def lower_bound(ordered: Sequence[float]) -> float:
    """One-sided lower bound of the median, from the order of the values alone (no normal distribution)."""
    n = len(ordered)
    below, found = 0.0, ordered[0]
    for i, value in enumerate(ordered):
        below += comb(n, i) / 2**n  # chance that at most i of n values lie below the median
        if below > 1 - CONFIDENCE:
            break
        found = value
    return found


def watch_backward(outputs: Any, call: Call, clock: Clock) -> None:
    """Sets marks where the call's own backward begins and ends, each the first time."""
    node = next((n for o in _tensors(outputs) if (n := _compiled_node(o.grad_fn)) is not None), None)
    if node is None:
        return

    def begin(_: Any) -> None:
        if call.backward_start is None and clock.is_usable():
            call.backward_start = clock.mark()

    def end(*_: Any) -> None:
        if call.backward_end is None and call.backward_start is not None and clock.is_usable():
            call.backward_end = clock.mark()

    node.register_prehook(begin)
    node.register_hook(end)


def _tensors(outputs: Any) -> list[Tensor]:
    return [o for o in (outputs if isinstance(outputs, list | tuple) else [outputs]) if isinstance(o, Tensor)]


def _compiled_node(node: Any) -> Any:
    """The backward of the compiled graph behind an output, through the views that AOTAutograd put over it."""
    for _ in range(8):
        if node is None or "CompiledFunction" in type(node).__name__:
            return node
        node = next((n for n, _ in node.next_functions if n is not None), None)
    return None
