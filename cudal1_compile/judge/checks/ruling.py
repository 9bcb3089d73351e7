"""What a bench's verdict becomes by rules that are read off the text, and by a candidate's unrounded form.

A candidate that calls `round_to` is judged without those calls first (f32_accumulation.py): what is not right then
is refused. Speed is not asked of an unrounded form.
"""

from __future__ import annotations

import re

from cudal1_compile.judge.inputs.sizes import counts_in_floats
from cudal1_compile.judge.oracle.f32_accumulation import foreign_rounding, rounds_literals, unrounded
from cudal1_compile.judge.verdict import Accepted, Rejected, Verdict
from cudal1_compile.kernel.candidate import Candidate
from cudal1_fx_passes.program.ir import Program


def with_unrounded(program: Program, candidate: Candidate) -> list[Candidate]:
    """What is judged for a candidate, in this order; the last one is the candidate itself."""
    other = unrounded(program, candidate)
    return [candidate] if other is None else [other, candidate]


def ruled(program: Program, candidate: Candidate, verdict: Verdict) -> Verdict:
    """Refuses what is right by a budget that its own roundings do not belong to, or at small sizes only."""
    if not is_right(verdict):
        return verdict
    if (foreign := foreign_rounding(program, candidate)) is not None:
        return Rejected("verify", f"round_to<{foreign}>: nothing in the region is of that type")
    if rounds_literals(candidate):
        return Rejected("verify", "round_to of a literal: write down the number that it gives")
    if counts_in_floats(program, candidate):
        return Rejected("verify", "whole numbers made of floats: count in int, a float has those up to 2^24 only")
    if (name := restricted_twice(candidate)) is not None:
        return Rejected(
            "verify", f"{name} is passed twice to a launch: a kernel that says __restrict__ may not see itself"
        )
    return verdict


def restricted_twice(candidate: Candidate) -> str | None:
    """A buffer that a launch may write and passes twice where the code promises that no two pointers are of one.

    A GPU may read the one through a cache that is not told of what is stored through the other; the host target
    does not, and its result is right.
    """
    if re.search(r"\b__restrict(?:__)?\b", candidate.code) is None:
        return None
    written = ([a for a in launch.args if not a.startswith("in")] for launch in candidate.launches)
    return next((name for names in written for name in names if names.count(name) > 1), None)


def of_unrounded(verdict: Verdict) -> Verdict:
    """The candidate's verdict, where its unrounded form is not right."""
    if isinstance(verdict, Rejected):
        return Rejected(verdict.stage, f"without its calls of round_to: {verdict.reason}")
    return verdict


def is_right(verdict: Verdict) -> bool:
    return isinstance(verdict, Accepted) or (isinstance(verdict, Rejected) and verdict.stage == "time")
