"""Never slower: which variant of a graph runs is measured on the user's own first calls.

    inductor's warm-up -> of each rival, as it is compiled: its warm-up; until all are there `inductor` runs
    -> rounds in ABBA order: inductor aten all_kernels | all_kernels aten inductor | ...
    at most 28 calls, of more than three rivals 40, of captured ones 20 more; after two rounds two go on at most
    -> as many calls again where a gain shows that is not proven yet
    -> the fastest variant that is proven not to be slower than the best kernel-free one, else that one

`inductor` is Inductor without kernels, `no_layout_opt` the same with convolutions in the layout that they are
given, not in channels-last, `fused_convolutions` with cuDNN's calls of convolution and ReLU, `aten` the graph
without Inductor (aten.py), a captured variant one that is compiled anyway, as a CUDA graph (captured.py). The
first call waits for `inductor` alone; its rivals are compiled at the beginning of later calls, one a call, once
the first calls are over (first_calls.py). Not in a thread: while any thread traces, Dynamo refuses each call of
a compiled function.
Every call is executed exactly once, by one variant, forward and backward as a pair. CUDA events around both are
read when they are done; on a stream that has run dry they hold the host's time too. On a busy stream they do not,
and the slack of the other variants' calls could hide the host's time for now: so it may not be more than
`inductor` takes on either. Far ahead of the device the host waits for a place in the queue, as long as calls of
others take: so of the host's time a variant's shortest call counts. And where it is further ahead than a whole
trial, no event is done when the figures are looked at: there, three times at most, the host waits for the device,
WAIT_S at most.
During a stream capture nothing is tried: `inductor` runs. Once decided the losers are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

from cudal1_cache.rows import PlanChoice
from cudal1_compile.inductor.graph_plan import KERNEL_FREE

log = logging.getLogger(__name__)

USUAL_CALLS = 28
MAX_CALLS = 40  # with one rival more than usual
CAPTURED_CALLS = 20  # more, where variants are recorded too
WARMUP_CALLS = 2  # of a variant of Inductor: lazy backward compile, first launches; aten needs 1
GRAPH_WARMUP_CALLS = 3  # with CUDA graphs: warm-up, recording, first replay
MAX_RIVALS = 3  # of `inductor`: more could not all be proven within USUAL_CALLS,
GRAPH_MAX_RIVALS = 2  # nor more than these after the longer warm-up
NARROW_TO = 2  # rivals of `inductor` after two rounds, so that the rest get enough calls for a proof
LOOKS = 2  # at the figures: after the calls above, and after as many more
# calls, after which every trial has ended, where each call runs every graph
SETTLED = LOOKS * (MAX_CALLS + CAPTURED_CALLS) + 4
WAIT_S = 5.0  # of the host for the device, at each look
SHOWS = 1.01  # a median gain from which on more calls are worth it
CONFIDENCE = 0.9  # that no variant which is slower was taken, over all variants of a trial together, at each look

CompiledGraph = Callable[..., Any]
Compile = Callable[[Sequence[Any]], CompiledGraph | None]  # for a call's inputs; None: it cannot be had
CudaMark = tuple[torch.cuda.Event, float]
Figures = Mapping[PlanChoice, Sequence[float | None]]  # microseconds a timed call; None: not known


class StreamClock(Protocol):
    """Marks points of a stream, and of the host's time, without waiting for the stream."""

    def mark(self) -> Any: ...

    def between_us(self, start: Any, end: Any) -> float | None:
        """None while the stream has not come to `end`."""

    def host_us(self, start: Any, end: Any) -> float: ...

    def is_usable(self) -> bool:
        """False while marks may not be set (a capture)."""


class CudaClock:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> CudaMark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event, time.perf_counter()

    def between_us(self, start: CudaMark, end: CudaMark) -> float | None:
        return start[0].elapsed_time(end[0]) * 1000 if end[0].query() else None  # type: ignore[no-untyped-call]

    def host_us(self, start: CudaMark, end: CudaMark) -> float:
        return (end[1] - start[1]) * 1e6

    def is_usable(self) -> bool:
        return not torch.cuda.is_current_stream_capturing()


@dataclass
class TimedCall:
    """The marks of one timed call. The backward's come later, or never."""

    forward: tuple[Any, Any] | None = None
    backward: tuple[Any, Any] | None = None
    backward_start: Any = None

    def took_us(self, with_backward: bool, between: Callable[[Any, Any], float | None]) -> float | None:
        """None where a part of it is not known."""
        spans = (self.forward, self.backward) if with_backward else (self.forward,)
        parts = [None if span is None else between(*span) for span in spans]
        known = [us for us in parts if us is not None]
        return sum(known) if len(known) == len(parts) else None


@dataclass(frozen=True, slots=True)
class Decision:
    choice: PlanChoice
    ratio: float  # of `inductor`'s time over the choice's


class VariantTrial:
    """Callable in place of the compiled graph. `variants` holds those still in the trial, `inductor` first.

    `coming`: rivals that are not compiled yet, in the order of their rounds.
    """

    def __init__(
        self,
        variants: Mapping[PlanChoice, CompiledGraph],
        clock: StreamClock,
        decided: Callable[[PlanChoice, float], None],
        warmup_calls: int = WARMUP_CALLS,
        most_calls: int = USUAL_CALLS,
        coming: Mapping[PlanChoice, Compile] | None = None,
        may_compile: Callable[[], bool] = lambda: True,
    ) -> None:
        """may_compile: asked at the beginning of a call that finds `coming` not empty."""
        self.variants: dict[PlanChoice, CompiledGraph] = {}
        self.coming = dict(coming or {})
        self.calls = 0  # until it is decided
        self.threads: set[int] = set()  # that made these calls, recomputations within a backward not counted
        self.most_calls, self._warmup_calls, self._may_compile = most_calls, warmup_calls, may_compile
        self.clock, self.decided = clock, decided
        self.is_decided = False
        self._current: CompiledGraph = self._try  # afterwards the winner itself: a call then costs no test
        self._plain = variants["inductor"]
        self._queue: deque[tuple[PlanChoice, bool]] = deque()
        self._counted = self._rounds = 0  # calls and rounds of the trial
        self._looks = 1
        self._timed: dict[PlanChoice, list[TimedCall]] = {}
        self._lock = threading.Lock()
        self._is_compiling = False
        for name, run in variants.items():
            self._add(name, run)
        self._rivals = len(variants) - 1

    def __call__(self, *args: Any) -> Any:
        return self._current(*args)

    def _try(self, *args: Any) -> Any:
        self.calls += 1
        if torch._C._current_graph_task_id() == -1:
            self.threads.add(threading.get_ident())
        if not self.clock.is_usable():
            return self._plain(*args)
        if self.coming and not self._queue and self._may_compile():
            self.compile_next(args)
        with self._lock:
            turn = self._next_turn()
        if turn is None:
            self._decide()
            return self._current(*args)
        run, call = turn
        return run(*args) if call is None else self._timed_call(run, call, args)

    def compile_next(self, inputs: Sequence[Any]) -> None:
        """One of those that are coming; it then waits for its warm-up. By one thread at a time."""
        with self._lock:
            if self._is_compiling or not self.coming:
                return
            self._is_compiling = True
            name = next(iter(self.coming))
            build = self.coming.pop(name)
        run: CompiledGraph | None = None
        try:
            run = build(inputs)
        finally:  # also of an interrupt
            with self._lock:
                self._is_compiling = False
                if run is not None:
                    self._rivals += 1
                    self._add(name, run)

    def _add(self, name: PlanChoice, run: CompiledGraph) -> None:
        self.variants[name], self._timed[name] = run, []
        self._queue.extend((name, False) for _ in range(1 if name == "aten" else self._warmup_calls))

    def _next_turn(self) -> tuple[CompiledGraph, TimedCall | None] | None:
        """What runs now, with a Call where it is timed; None: the trial is over."""
        if not self._queue and (self.coming or self._is_compiling):
            return self._plain, None
        if not self._queue:
            self._add_round()
        if not self._queue:
            self._wait_for_device()
            if self._looks < LOOKS and self._is_open():
                self._looks += 1
                self._add_round()
        if self.is_decided or not self._queue:
            return None
        self._counted += 1
        name, is_timed = self._queue.popleft()
        if not is_timed:
            return self.variants[name], None
        self._timed[name].append(TimedCall())
        return self.variants[name], self._timed[name][-1]

    def _add_round(self) -> None:
        if self._rounds and self._rounds % 2 == 0:
            if self._rounds == 2:
                self._wait_for_device()
            kept = worth_more_calls(self._figures(self.clock.between_us))
            self.variants = {name: run for name, run in self.variants.items() if name in kept}
            self._timed = {name: self._timed[name] for name in self.variants}
        names = list(self.variants)
        if len(names) > 1 and self._counted + len(names) <= self.most_calls * self._looks:
            self._queue.extend((name, True) for name in (names if self._rounds % 2 == 0 else reversed(names)))
            self._rounds += 1

    def _wait_for_device(self) -> None:
        """Until it has come to the marks that are set, or the time for that is over."""
        calls = [call for group in self._timed.values() for call in group]
        spans = [span for call in calls for span in (call.forward, call.backward) if span is not None]
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end and any(self.clock.between_us(*span) is None for span in spans):
            time.sleep(0.001)

    def _is_open(self) -> bool:
        """Whether a variant shows a gain, and none is proven."""
        figures = self._figures(self.clock.between_us)
        found = decide(figures, self._figures(self.clock.host_us), self._rivals)
        return found.choice == "inductor" and max(gains_of(figures).values(), default=1.0) >= SHOWS

    def _timed_call(self, run: CompiledGraph, call: TimedCall, args: Sequence[Any]) -> Any:
        boundary = gradient_nodes(args)
        start = self.clock.mark()
        outputs = run(*args)
        call.forward = (start, self.clock.mark())
        watch_backward(boundary, [*_tensors(outputs), *_tensors(args)], call, self.clock)
        return outputs

    def _decide(self) -> None:
        with self._lock:
            if self.is_decided:
                return
            host_us = self._figures(self.clock.host_us)
            found = decide(self._figures(self.clock.between_us), host_us, self._rivals)
            self._current = self._plain = self.variants[found.choice]
            self.variants, self._timed, self.is_decided = {found.choice: self._current}, {}, True
        log.info("decided for %s, %.3f of inductor's speed", found.choice, found.ratio)
        self.decided(found.choice, found.ratio)

    def _figures(self, between: Callable[[Any, Any], float | None]) -> Figures:
        """With the backward if some call had one."""
        has_backward = any(c.backward is not None for group in self._timed.values() for c in group)
        return {name: [c.took_us(has_backward, between) for c in group] for name, group in self._timed.items()}


def decide(figures: Figures, host_us: Figures, rivals: int) -> Decision:
    """The fastest variant proven not slower than `inductor`; one with kernels also not than a faster one without.

    rivals: of `inductor`, at the trial's beginning. Each gets an equal part of the permitted chance of an error.
    """
    permitted_us = max(typical(figures["inductor"]), shortest(host_us["inductor"]))
    confidence = 1 - (1 - CONFIDENCE) / max(rivals, 1)

    def is_proven(name: PlanChoice, base: PlanChoice) -> bool:
        is_hidden = shortest(host_us[name]) <= permitted_us
        return is_hidden and lower_bound(speedups(figures, name, base), confidence) >= 1.0

    gains = gains_of(figures)
    bases = [name for name in KERNEL_FREE if name == "inductor" or gains.get(name, 0.0) > 1.0]
    best = Decision("inductor", 1.0)
    for name, gain in gains.items():
        against: list[PlanChoice] = ["inductor"] if name in KERNEL_FREE else bases
        if gain > best.ratio and all(is_proven(name, base) for base in against):
            best = Decision(name, gain)
    return best


def gains_of(figures: Figures) -> dict[PlanChoice, float]:
    """Over `inductor`, in the median; of those of which it is known."""
    return {name: median(found) for name in figures if (found := speedups(figures, name))}


def worth_more_calls(figures: Figures) -> set[PlanChoice]:
    """`inductor`, and the fastest NARROW_TO of those that were not slower in every round so far."""
    found = {name: speedups(figures, name) for name in figures if name != "inductor"}
    hopeful = [name for name, ratios in found.items() if not ratios or ratios[-1] > 1.0]
    hopeful.sort(key=lambda name: -median(found[name] or [1.0]))
    return {"inductor", *hopeful[:NARROW_TO]}


def speedups(figures: Figures, name: PlanChoice, base: PlanChoice = "inductor") -> list[float]:
    """Of the rounds in which both are known, ascending."""
    return sorted(a / b for a, b in zip(figures[base], figures[name], strict=False) if a and b)


def typical(took_us: Sequence[float | None]) -> float:
    """The median of what is known; 0 where nothing is."""
    return median([us for us in took_us if us is not None] or [0.0])


def shortest(took_us: Sequence[float | None]) -> float:
    """Of what is known; 0 where nothing is."""
    return min((us for us in took_us if us is not None), default=0.0)


def lower_bound(ordered: Sequence[float], confidence: float) -> float:
    """One-sided lower bound of the median, from the order of the values alone (no normal distribution).

    0 where there are too few values for any bound.
    """
    n = len(ordered)
    below, found = 0.0, 0.0
    for i, value in enumerate(ordered):
        below += comb(n, i) / 2**n  # chance that at most i of n values lie below the median
        if below > 1 - confidence:
            break
        found = value
    return found


def gradient_nodes(inputs: Sequence[Any]) -> set[Node]:
    """Where gradients of the inputs go: the nodes that the graph's own backward ends at."""
    if not torch.is_grad_enabled():
        return set()
    return {get_gradient_edge(x).node for x in _tensors(inputs) if x.requires_grad}


def watch_backward(boundary: set[Node], tensors: Sequence[Tensor], call: TimedCall, clock: StreamClock) -> None:
    """Sets marks where the call's own backward begins and ends, each the first time.

    tensors: the outputs, and the inputs, which may have been changed. The end is the node made first, because
    the engine runs nodes in the reverse order of their making. Holds for one compiled node and for many of aten.
    """
    starts = {t.grad_fn for t in tensors if t.grad_fn is not None} - boundary
    if not starts:
        return

    def begin(_: Any) -> None:
        if call.backward_start is None and clock.is_usable():
            call.backward_start = clock.mark()

    def end(*_: Any) -> None:
        if call.backward is None and call.backward_start is not None and clock.is_usable():
            call.backward = (call.backward_start, clock.mark())

    for node in starts:
        node.register_prehook(begin)
    min(_inner_nodes(starts, boundary), key=lambda node: node._sequence_nr()).register_hook(end)


def _inner_nodes(starts: set[Node], boundary: set[Node]) -> set[Node]:
    """All nodes between the outputs and the boundary; leaves do not count."""
    found, ahead = set(starts), list(starts)
    while ahead:
        for node, _ in ahead.pop().next_functions:
            if node is not None and node not in boundary and node not in found and node.next_functions:
                found.add(node)
                ahead.append(node)
    return found


def _tensors(values: Any) -> list[Tensor]:
    return [v for v in (values if isinstance(values, list | tuple) else [values]) if isinstance(v, Tensor)]
