"""Which tasks are worth practising on: those that the model can be asked for and the judge can decide.

A template's variant goes to the judge first. Where that is not right the program cannot be verified here (no
finite reference, no room), and every reply would be refused; where it is, its score is what gains are held against
(0 where the host target refuses its cost, as a product's). What no template writes is kept: a user's own misses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from cudal1_compile.codegen.templates import STUMBLES
from cudal1_fx_passes.program.text import parse_program
from cudal1_trainer.rl.rollouts import Desk
from cudal1_trainer.scores.outcome import RIGHT, conclude
from cudal1_trainer.scores.referee import Group
from cudal1_trainer.tasks.variants import write_variants

log = logging.getLogger(__name__)

GATE = -2  # the referee's key; steps count from 0, examine's is -1


def decidable(desk: Desk, own: Iterable[int], count: int) -> tuple[list[int], list[int]]:
    """The first `count` of the tasks `own` that can be judged, and those behind them, untried.

    Tasks are places in the desk's texts; notes references in the desk's book.
    """
    kept = list[int]()
    left = [task for task in own if desk.fits(desk.texts[task])]
    while left and len(kept) < count:
        tried, left = left[: count - len(kept)], left[count - len(kept) :]
        kept += _try(desk, tried)
    return kept, left


def _try(desk: Desk, tasks: Sequence[int]) -> list[int]:
    codes = {task: _template_code(desk.texts[task]) for task in tasks}
    timed = desk.timed_first  # and no more: whether it can be proven, the first new best shows
    best = math.inf if timed else None
    groups = [
        Group(desk.texts[t], (code,), best, timed_first=timed) for t, code in codes.items() if code is not None
    ]
    desk.referee.submit(GATE, groups)
    rulings = desk.referee.result(GATE)
    kept = []
    for task, code in codes.items():
        outcome = None if code is None else conclude(rulings[desk.texts[task], code], desk.target)
        if outcome is None or outcome.kind in RIGHT:
            kept.append(task)
        if outcome is not None and outcome.kind in RIGHT:
            desk.book.set_reference(task, outcome.score)
    log.info("%d of %d tasks can be judged", len(kept), len(codes))
    return kept


def _template_code(text: str) -> str | None:
    """The code of a template's variant."""
    try:
        found = write_variants(parse_program(text), 1)
    except STUMBLES as error:
        log.warning("a template stumbles: %r", error)
        return None
    return found[0].reply.code if found else None
