"""Is a mutant still the same kernel? Decided without the judge.

Same       its object code and launches are those of the original, or every bit of its results is, on all sets of
           inputs, and what was changed does not depend on values (an index, a bound, a guard)
Different  WRONG: witness.py shows a wrong result, fault or hang; or ILLEGAL: right results, but the host target's
           check build sees it break a rule of the machine (out of bounds, race, uninitialised memory)
Undecided  neither: results within rounding, or equal where only rare values would tell
Stillborn  it does not build, or its launch plan cannot be read: nothing to judge
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.redteam.mutate import Mutant
from benchmarks.redteam.witness import Reference, Right, Unclear, Wrong, look
from cudal1_compile.errors import BuildError, LaunchError
from cudal1_compile.kernel.candidate import Candidate, CandidateError, parse_candidate
from cudal1_compile.runtime.build import build
from cudal1_compile.runtime.launch_plan import LaunchPlan, plan
from cudal1_compile.runtime.target import HOST

# lines on which only integers are computed: loops, guards, indices, addresses, the launch plan, barriers
_CONTROL = re.compile(r"for \(.*\{$|if \(([a-z]|threadIdx\.x) [<>=]=? |(const )?int |// |vload<|__sync")


@dataclass(frozen=True, slots=True)
class Same:
    why: str


@dataclass(frozen=True, slots=True)
class Different:
    kind: str  # "wrong" or "illegal"
    evidence: str


@dataclass(frozen=True, slots=True)
class Undecided:
    why: str


@dataclass(frozen=True, slots=True)
class Stillborn:
    why: str


Class = Same | Different | Undecided | Stillborn


@dataclass(frozen=True)
class Original:
    """A kernel that was found right, built once for all its mutants."""

    reference: Reference
    image: bytes
    plans: tuple[LaunchPlan, ...]
    outputs: tuple[bytes, ...]


def examine(reference: Reference, code: str) -> Original | Wrong | Unclear:
    """Builds a kernel and looks whether it is right. Raises BuildError."""
    candidate = parse_candidate(code, reference.program)
    image = build(reference.program, candidate, HOST).image
    found = look(reference, candidate, image)
    if not isinstance(found, Right):
        return found
    return Original(reference, image, _plans(reference, candidate), found.outputs)


def classify(original: Original, mutant: Mutant) -> Class:
    reference = original.reference
    try:
        candidate = parse_candidate(mutant.code, reference.program)
        plans = _plans(reference, candidate)
        image = build(reference.program, candidate, HOST).image
        if image == original.image and plans == original.plans:
            return Same("the same object code and launches")
        found = look(reference, candidate, image)
        if isinstance(found, Wrong):
            return Different("wrong", found.evidence)
        if isinstance(found, Unclear):
            return Undecided(found.evidence)
        broken = look(reference, candidate, build(reference.program, candidate, HOST, check=True).image)
    except (CandidateError, BuildError, LaunchError) as error:
        return Stillborn(str(error))
    if isinstance(broken, Wrong):
        return Different("illegal", broken.evidence)
    if found.outputs != original.outputs:
        return Undecided("other bits, within rounding")
    same_bits = "the same bits on all sets of inputs"
    return Same(same_bits) if _CONTROL.match(mutant.before) else Undecided(same_bits)


def _plans(reference: Reference, candidate: Candidate) -> tuple[LaunchPlan, ...]:
    return tuple(plan(reference.program, candidate, s.sizes) for s in reference.samples)
