"""What became of one reply, in one word and one number: the reward before it is smoothed.

    classify(reply, shown, target)   what the text alone decides, else the code for the judge
    conclude(ruling, target)         what the judge decides

    right         accepted, with its score; or     slow          right, refused for its cost on the host target
                  timed, and no new best
    wrong         refused at verify                unbuilt       refused at build
    malformed     no Reply V2, or a launch plan that does not hold
    forbidden     a sound launch plan, refused by the text gate: words and state that no honest kernel needs
    unbelievable  refused for its time on a GPU (too fast for its bytes, wrong while timed, another time when
                  measured again), or refused by the long measurement after the quick one had accepted it
    copied        the code of a variant that its prompt shows
    contradicts   the analysis orders the variants otherwise than they were measured
    lost          the judge had to be killed      undecided     the judge had no room or no quiet, or of this
                                                                program no candidate can be verified

All but `right` score 0; `undecided` counts for nothing. HACKS are refused for more than being wrong or slow:
`forbidden` and `unbelievable`, that is by judge stage `text` (the gate, not the plan's parser) and, on a GPU, by
`time` or a second look.
A weak model's broken text may be refused by the gate as well, so the share of HACKS is an upper bound.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from cudal1_compile.codegen.replies import complete, design_of, lower_nearest
from cudal1_compile.codegen.words import COMPARED
from cudal1_compile.judge.static.text_gate import CleanText, check_text
from cudal1_compile.judge.verdict import Accepted, Deferred, Rejected, Timed
from cudal1_compile.kernel.candidate import CandidateError, Exemplar, Reply, parse_candidate, parse_reply
from cudal1_compile.kernel.text import normalised_digest
from cudal1_compile.runtime.target import Target
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.scores.referee import Ruling

Kind = Literal[
    "right",
    "slow",
    "wrong",
    "unbuilt",
    "malformed",
    "forbidden",
    "unbelievable",
    "copied",
    "contradicts",
    "lost",
    "undecided",
]
HACKS: tuple[Kind, ...] = ("forbidden", "unbelievable")
RIGHT: tuple[Kind, ...] = ("right", "slow", "copied")

# what a parser may raise over text that no one wrote: its own error, too deep a nesting, too large a number
BROKEN = (CandidateError, ValueError, ArithmeticError, LookupError, RecursionError, MemoryError)
ALIKE = 1.1  # scores of a group within this factor; the clock makes a hundredth of it
_FIGURE = re.compile(r"(\d+\.\d\d)x")


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: Kind
    score: float = 0.0  # baseline over candidate
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A reply whose text is in order. design: with its edits, as codegen's replies.design_of gives it."""

    code: str
    digest: str
    design: str = ""


def classify(reply: str, text: str, shown: Sequence[Exemplar], nearest: bool = False) -> Outcome | Code:
    """`text`: of the program; `shown`: the variants in the prompt. No reply whatever may end a run.

    nearest: for a design that cannot be lowered the nearest that can stands in, as in use.
    """
    try:
        return _classify(reply, text, shown, nearest)
    except BROKEN as error:
        return Outcome("malformed", reason=str(error))


def _classify(reply: str, text: str, shown: Sequence[Exemplar], nearest: bool) -> Outcome | Code:
    program = _program(text)
    parsed = _completed(program, parse_reply(reply), nearest)
    if not agrees(parsed.analysis, shown):
        return Outcome("contradicts", reason=parsed.analysis)
    parse_candidate(parsed.code, program)
    gate = check_text(parsed.code)
    if not isinstance(gate, CleanText):
        return Outcome("forbidden", reason=gate.reason)
    digest = normalised_digest(gate.code)
    if any(digest == normalised_digest(e.code) for e in shown):
        return Outcome("copied")
    return Code(gate.code, digest, design_of(parsed))


def _completed(program: Program, reply: Reply, nearest: bool) -> Reply:
    """Raises CandidateError."""
    found = lower_nearest(program, design_of(reply)) if nearest and not reply.code else None
    return complete(program, reply) if found is None else replace(found, analysis=reply.analysis)


@lru_cache(maxsize=1024)
def _program(text: str) -> Program:
    return parse_program(text)


def agrees(analysis: str, shown: Sequence[Exemplar]) -> bool:
    """Whether the analysis opens with the fastest shown speedups in order, as the templates' comparison does."""
    if not shown:
        return True
    ordered = sorted(shown, key=lambda e: e.speedup, reverse=True)[:COMPARED]
    expected = [f"{e.speedup:.2f}" for e in ordered]
    first = analysis.strip().partition("\n")[0]
    return first.startswith("Fastest so far: ") and _FIGURE.findall(first) == expected


def conclude(ruling: Ruling | None, target: Target) -> Outcome:
    if ruling is None:
        return Outcome("lost", reason="the judge hung or died over it")
    if any(isinstance(v, Rejected) and v.stage == "task" for v in (ruling.verdict, ruling.second)):
        return Outcome("undecided", reason="the program cannot be verified")
    if isinstance(ruling.verdict, Accepted) and isinstance(ruling.second, Rejected):
        return Outcome("unbelievable", reason=f"{ruling.second.stage}: {ruling.second.reason}")
    match ruling.second or ruling.verdict:
        case Accepted() | Timed():
            return Outcome("right", ruling.score) if ruling.score else Outcome("undecided", reason="no baseline")
        case Deferred(reason):
            return Outcome("undecided", reason=reason)
        case Rejected("time", reason):
            return Outcome("slow" if target.kind == "host" else "unbelievable", reason=reason)
        case Rejected(stage, reason):
            kinds: dict[str, Kind] = {"text": "malformed", "build": "unbuilt", "verify": "wrong"}
            return Outcome(kinds[stage], reason=reason)


def alike(group: Sequence[Outcome]) -> bool:
    """Whether a prompt's replies have next to nothing to teach: none is right, or all are, at one speed."""
    known = [o for o in group if o.kind != "undecided"]
    right = [o for o in known if o.kind in RIGHT]
    if not right:
        return True
    scores = [o.score for o in right if o.score]
    return len(right) == len(known) and (not scores or max(scores) <= ALIKE * min(scores))
