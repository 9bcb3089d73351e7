"""Kernel templates: strategy programs that write the replies from which the model learns.

A template is `(program, rng) -> Reply | None`; None means that its strategy does not apply. Each draws one of the
strategy's variants, the likely fast ones more often. `variants` and `write_reply` enumerate instead of drawing.

Data flow of a reply: program -> plan (stages/stage.py) -> schedules (products/schedules.py,
reductions/grouped_schedules.py, stages/pointwise.py, ...) -> kernels (the stages' writers) -> code (lower.py) and
words (words.py).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from cudal1_compile.codegen.stages.schedule import Schedule
from cudal1_compile.codegen.strategies import STRATEGIES, stages_of, variants, write_code
from cudal1_compile.codegen.words import write_analysis, write_design
from cudal1_compile.kernel.candidate import CandidateError, Exemplar, Reply, parse_candidate
from cudal1_fx_passes.program.ir import Program

log = logging.getLogger(__name__)

Template = Callable[[Program, random.Random], Reply | None]

# of a template over a program that it misreads
STUMBLES = (LookupError, ArithmeticError, ValueError, AssertionError)

__all__ = [
    "STUMBLES",
    "TEMPLATES",
    "Schedule",
    "Template",
    "draw_reply",
    "name_design",
    "try_reply",
    "variants",
    "write_analysis",
    "write_reply",
]


def write_reply(program: Program, schedule: Schedule, exemplars: Sequence[Exemplar] = ()) -> Reply | None:
    """The reply of one variant; None where Reply V2's limits (launches, scratch, grid) refuse it."""
    code = write_code(program, schedule)
    try:
        parse_candidate(code, program)
    except CandidateError:
        return None
    return replace(name_design(program, schedule, exemplars), code=code)


def name_design(program: Program, schedule: Schedule, exemplars: Sequence[Exemplar] = ()) -> Reply:
    """The reply of one variant as a small model writes it: without its code."""
    design = write_design(schedule, stages_of(program, schedule))
    return Reply(write_analysis(program, exemplars), design, "")


def try_reply(program: Program, schedule: Schedule) -> Reply | None:
    """The templates' reply; None where Reply V2 refuses it or the template stumbles over the program.

    One program in some hundred thousand must end neither a compile nor a training run: the mistake is logged.
    """
    try:
        return write_reply(program, schedule)
    except STUMBLES as error:
        log.warning("template %s: %r on a program of %d operations", schedule.strategy, error, len(program.ops))
        return None


def draw_reply(program: Program, rng: random.Random, strategy: str | None = None) -> Reply | None:
    """One reply, drawn with a bias to the front of the variants; None where no strategy applies."""
    found = [s for s in variants(program) if strategy is None or s.strategy == strategy]
    while found:
        at = min(int(rng.expovariate(0.25)), len(found) - 1)
        reply = write_reply(program, found.pop(at))
        if reply is not None:
            return reply
    return None


def _draw_reply(strategy: str, program: Program, rng: random.Random) -> Reply | None:
    return draw_reply(program, rng, strategy)


TEMPLATES: dict[str, Template] = {name: partial(_draw_reply, name) for name in STRATEGIES}
