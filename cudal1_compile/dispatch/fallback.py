"""Which plan runs a region that no kernel wins: Inductor, or aten where it was measured to be clearly faster.

    an entry without one -> the judge's timing of aten against Inductor, on the region alone -> aten's | Inductor's

It is a proposal, as a kernel's win is one: choice.py decides by whole calls whether it runs.
"""

from __future__ import annotations

import json

from cudal1_cache.rows import Entry
from cudal1_compile.judge.verdict import Timing

CLEARLY_FASTER = 1.05  # lower bound of aten's speed over Inductor's
WORTH_A_CALL_US = 2.0  # saved by each use of the region


def measured(entry: Entry) -> Timing | None:
    """aten (as the candidate) against Inductor; None for a kernel's entry, and where they were not compared."""
    timing = json.loads(entry.proof_json).get("timing") if entry.status != "kernel" else None
    return Timing(**timing) if timing else None


def is_atens(timing: Timing) -> bool:
    if timing.inductor_us is None:
        return False
    return timing.lower_bound >= CLEARLY_FASTER and timing.inductor_us - timing.aten_us >= WORTH_A_CALL_US


def describe(entry: Entry) -> str:
    """What a region without a kernel runs on, with the figures."""
    timing = measured(entry)
    if timing is None:
        return "inductor (aten was not measured)"
    figures = f"aten {timing.aten_us:.1f} us, inductor {timing.inductor_us:.1f} us"
    bound = f"at least {timing.lower_bound:.2f}x"
    return f"{'aten' if is_atens(timing) else 'inductor'} ({figures}: aten {timing.speedup:.2f}x, {bound})"


def timed(entry: Entry) -> Timing | None:
    """What its proof says of the baselines, with or without a kernel; None where nothing was timed."""
    found = json.loads(entry.proof_json).get("timing")
    return Timing(**found) if found else None


def saved(entry: Entry) -> float:
    """By one call of a kernel against Inductor, as everything is that is added up for a cut around products.

    Microseconds; on the host target declared cost.
    """
    proof = json.loads(entry.proof_json)
    if timing := proof.get("timing"):
        times = Timing(**timing)
        return (times.inductor_us or times.aten_us) - times.candidate_us
    cost = proof.get("host_cost")
    return float(cost["baseline"] - cost["candidate"]) if cost else 0.0
