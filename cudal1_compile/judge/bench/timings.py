"""Times of contenders, round by round, to a verdict's Timing; None where they contradict each other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cudal1_compile.judge.timing.speedup import Speedup, compare_times, slowest
from cudal1_compile.judge.verdict import Rejected, Timing

Times = Sequence[float]  # microseconds a call, one number a round
QUICK_VARIANCE = float("inf")  # a quick figure is a hint and keeps its median whatever its spread


def too_fast(times_us: Times, floor_us: float) -> Rejected | None:
    """What no launch can take; floor_us: a launch's and its least bytes' time."""
    fastest_us = min(times_us)
    if fastest_us >= floor_us:
        return None
    return Rejected("time", f"{fastest_us:.2f} us a call: its launch and bytes alone need {floor_us:.2f} us")


def of_baselines(aten_us: Times | None, inductor_us: Times | None, floor_us: float) -> Timing:
    """aten as the candidate, at no time where it cannot be run; one of both is there.

    Times that vary are no reason to know nothing: the bounds are then as far apart.
    """
    timed = [times for times in (aten_us, inductor_us) if times is not None]
    found = compare_times(timed[-1], timed[0], QUICK_VARIANCE)
    assert isinstance(found, Speedup)
    return Timing(
        candidate_us=found.candidate_us,
        aten_us=found.candidate_us if aten_us is not None else math.inf,
        inductor_us=found.baseline_us if inductor_us is not None else None,
        speedup=found.value,
        lower_bound=found.lower_bound,
        rounds=found.rounds,
        final=True,
        floor_us=floor_us,
        floor_share=max(floor_us / slowest(times) for times in timed),
    )


def of_quick(baseline_us: Times, candidate_us: Times, known: Timing | None) -> Timing:
    """Against one baseline: Inductor's where `known` of both says that it is the faster one, else aten's."""
    found = compare_times(baseline_us, candidate_us, QUICK_VARIANCE)
    assert isinstance(found, Speedup)
    return Timing(
        candidate_us=found.candidate_us,
        aten_us=known.aten_us if known is not None and known.is_inductors else found.baseline_us,
        inductor_us=found.baseline_us if known is not None and known.is_inductors else None,
        speedup=found.value,
        lower_bound=found.lower_bound,
        rounds=found.rounds,
        final=False,
        upper_bound=found.upper_bound,
    )


def of_final(
    aten_us: Times | None, inductor_us: Times | None, candidate_us: Times, floor_us: float
) -> Timing | None:
    """Against both baselines, as far as they are there."""
    timed = [times for times in (aten_us, inductor_us) if times is not None]
    found = [compare_times(times, candidate_us) for times in timed]
    steady = [f for f in found if isinstance(f, Speedup)]
    if len(steady) < len(found):
        return None
    worst = min(steady, key=lambda f: f.value)
    return Timing(
        candidate_us=worst.candidate_us,
        aten_us=steady[0].baseline_us if aten_us is not None else math.inf,
        inductor_us=steady[-1].baseline_us if inductor_us is not None else None,
        speedup=worst.value,
        lower_bound=min(f.lower_bound for f in steady),
        rounds=worst.rounds,
        final=True,
        upper_bound=min(f.upper_bound for f in steady),
        floor_us=floor_us,
        floor_share=floor_us / min(f.baseline_us for f in steady),
    )
