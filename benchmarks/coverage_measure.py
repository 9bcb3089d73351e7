"""What is taken of a job within its process: first calls, decisions, times, errors. coverage_job.py has the order.

Nothing of cudal1_compile, nor of Inductor, is imported with this module: a first call pays for that, as a user's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.coverage_errors import reference, worst_error
from benchmarks.model_contenders import Contender, Step, drawn_rounds, results, timed_ms, wait

if TYPE_CHECKING:
    from benchmarks.coverage_trace import Graph

DECISIONS = ("Judging", "Done", "Decided")  # events of synthesis that a region's verdict or decision gives
PREPARING = "Preparing"
SETTLE_S = 45.0  # for calls until the trial between variants has decided
SETTLE_CALLS = 60  # after which calls are given at a pace, for variants that compile behind them
PACE_S = 0.05
ROUNDS_S = 4.0
ROUNDS = 100
MIN_ROUNDS = 5
FLUSH_BYTES = 256 << 20  # written before each timed call: several times the L2
PROFILED_CALLS = 2
RECOMPILES = 128  # two ways to compile a model, and layers that share their code


def first_call(step: Step, make: Callable[[], Callable[..., Any]]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The compiled module; seconds of its making and first call, and the memory that this took, in MiB."""
    wait(step)
    begin = time.perf_counter()
    compiled = make()
    step.run(compiled)
    wait(step)
    seconds = time.perf_counter() - begin
    step.clear()
    return compiled, {"first_call_s": seconds, **memory_mib(step)}


def memory_mib(step: Step) -> dict[str, int]:
    """The allocator's peak in this process, and what the device holds now, for whomever."""
    if not torch.cuda.is_initialized():
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"peak_mib": torch.cuda.max_memory_reserved() >> 20, "held_mib": (total - free) >> 20}


@dataclass
class FirstVerdict:
    """When the first region was known, and when the first verdict or decision came."""

    known: float | None = None
    decided: float | None = None

    def note(self, event: Any) -> None:
        name = type(event).__name__
        if name == PREPARING and self.known is None:
            self.known = time.monotonic()
        elif name in DECISIONS and self.decided is None and not _is_left_open(event):
            self.decided = time.monotonic()

    def seconds(self) -> float | None:
        """None where no region was without a kernel. Where no verdict has come, how long it has not."""
        if self.known is None:
            return None
        return (time.monotonic() if self.decided is None else self.decided) - self.known


def _is_left_open(event: Any) -> bool:
    """The end of a region that is no decision."""
    return type(getattr(getattr(event, "outcome", None), "result", None)).__name__ == "Unfinished"


def watch_progress(first: FirstVerdict) -> None:
    """What synthesis says goes to `first` too. Of a tree that has no such line nothing is known."""
    from cudal1_compile.pipeline import progress

    shown: Any = getattr(progress, "LineProgress", None)
    if shown is not None:
        show = shown.__call__

        def noted(self: Any, event: Any) -> None:
            first.note(event)
            show(self, event)

        shown.__call__ = noted


def settle(step: Step, call: Callable[..., Any]) -> dict[str, Any]:
    """Calls until every graph's trial has decided, or SETTLE_S are over."""
    begin, calls = time.monotonic(), 0
    while "deciding" in choices() and time.monotonic() - begin < SETTLE_S:
        step.clear()
        step.run(call)
        calls += 1
        if calls > SETTLE_CALLS:
            time.sleep(PACE_S)
    step.clear()
    wait(step)
    return {
        "settling": {
            "calls": calls,
            "seconds": time.monotonic() - begin,
            "is_settled": "deciding" not in choices(),
        }
    }


def choices() -> list[str]:
    from cudal1_compile.pipeline.process_state import last_plans

    return [p.plan.choice for p in last_plans()]


def decided_regions() -> list[dict[str, Any]]:
    """Every distinct region of this process's graphs, as its last plan has it."""
    from cudal1_compile.pipeline.process_state import last_plans

    regions = {r.fingerprint: r for p in last_plans() for r in p.plan.regions}
    counts: Counter[str] = Counter()
    for p in last_plans():
        counts.update({r.fingerprint: r.seen.count for r in p.plan.regions})
    return [
        {
            "fingerprint": f,
            "outcome": r.outcome,
            "reason": r.reason[:80],
            "speedup": r.speedup,
            "count": counts[f],
            "phase": r.seen.phase,
        }
        for f, r in regions.items()
    ]


def allow_recompiles() -> None:
    """For a second way to compile what has been compiled."""
    torch._dynamo.config.recompile_limit = RECOMPILES


def compile_watched(step: Step, dry: bool) -> tuple[Contender, list[Graph]]:
    """Inductor in the same process, and what it made of its graphs."""
    from benchmarks.coverage_trace import watched
    from cudal1_compile.pipeline.process_state import last_plans

    allow_recompiles()
    chosen = {f for p in last_plans() for f in p.plan.chosen("all_kernels")}
    with watched(chosen, products=not dry) as (backend, graphs):
        compiled, _ = first_call(step, lambda: torch.compile(step.module, backend=backend))
    return Contender("inductor", compiled), graphs


def time_arms(step: Step, arms: Sequence[Contender]) -> dict[str, Any]:
    """Median milliseconds of each, with the host, from an idle device to an idle device, the L2 flushed before."""
    device = step.inputs[0].device
    flush = torch.empty(FLUSH_BYTES if device.type == "cuda" else 0, dtype=torch.int8, device=device)
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in drawn_rounds(arms, ROUNDS, MIN_ROUNDS, ROUNDS_S):
        step.clear()
        flush.zero_()
        times[arm.name].append(timed_ms(step, arm))
    step.clear()
    return {"ms": {name: median(ms) for name, ms in times.items()}, "rounds": len(times[arms[0].name])}


def gpu_times(step: Step, inductor: Contender, graphs: Sequence[Graph], folder: Path, dry: bool) -> dict[str, Any]:
    """Microseconds of one call of Inductor's by region, and of all its kernels.

    Without a GPU operations stand in for microseconds.
    """
    from benchmarks.coverage_trace import count_operations, shares
    from benchmarks.model_kernels import record

    def call() -> None:
        step.clear()
        step.run(inductor.call)

    if dry:
        us, in_order = count_operations(graphs), True
    else:
        path = folder / "trace.json"
        calls = [shares(launches, graphs, step.train) for launches in record([call] * PROFILED_CALLS, path)]
        path.unlink()
        names = {f for c in calls for f in c.us}
        us = {f: sum(c.us.get(f, 0.0) for c in calls) / len(calls) for f in names}
        in_order = all(c.in_order for c in calls)
    step.clear()
    return {"us": us, "in_order": in_order}


def compare(step: Step, arms: Sequence[Contender]) -> dict[str, Any]:
    """The worst error of each arm over all outputs and gradients, and against what."""
    step.clear()
    exact, against = reference(step)
    found: dict[str, float] = {}
    for arm in arms:
        found[arm.name] = worst_error(results(step, arm.call), exact)
    return {"errors": found, "against": against}
