"""Draws of designs without replacement, from all that a region may have.

    open_designs    the region's designs as replies, less those that were tried
    in_drawn_order  their order in a draw, by what the model takes each of them for (fast_llama.py: score)
    lower_first     the first n that can be lowered, each code once

The order is the Gumbel-top-k trick's: its first k are k draws from softmax(scores / temperature) without
replacement, whatever k is. So who knows of further designs that were tried asks for as many more, and leaves
them out.

Where fewer designs are left than are asked for, random edits of the fastest stand beside them. Elsewhere they
would not be drawn: the bundled model learned the form of edits in prompts that show no variants, and where some
are shown, it gives twelve of them 1e-7 together. This module runs no model.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from cudal1_compile.codegen.replies import as_design, complete, design_of, nearby, schedule_lines
from cudal1_compile.codegen.templates import STUMBLES, name_design, variants, write_analysis
from cudal1_compile.kernel.candidate import Exemplar, Reply, print_reply
from cudal1_fx_passes.program.ir import Program

log = logging.getLogger(__name__)

LEGAL = 128  # designs of a plan; most regions of one stage have fewer, of several all with one stage's changed


def open_designs(program: Program, tried: Sequence[Exemplar], n: int, rng: random.Random) -> list[Reply] | None:
    """Those that may be drawn, as the model writes them; None where no schedule leads to a kernel.

    tried: what the prompt shows; their analyses compare these.
    """
    known = {schedule_lines(e.design) for e in tried}
    try:
        found = [name_design(program, s, tried) for s in variants(program, LEGAL)]
        if not found:
            return None
        left = [reply for reply in dict.fromkeys(found) if reply.design not in known]
        if len(left) < n:
            left += [r for r in _edited(program, tried, n, rng) if design_of(r) not in known]
    except STUMBLES as error:
        log.warning("no designs to draw from: %r on a program of %d operations", error, len(program.ops))
        return None
    return left


def _edited(program: Program, tried: Sequence[Exemplar], n: int, rng: random.Random) -> list[Reply]:
    """Of the fastest design, twice as many as are asked for."""
    best = max((e for e in tried if schedule_lines(e.design)), key=lambda e: e.speedup, default=None)
    if best is None:
        return []
    analysis = write_analysis(program, tried)
    found = nearby(program, best.design, rng, 2 * n)
    return [as_design(replace(reply, analysis=analysis)) for reply in found]


def in_drawn_order(
    scores: Sequence[float], temperature: float, rng: random.Random, likeliest_first: bool
) -> list[int]:
    """Places of scores, as they are drawn one after the other; the likeliest first at temperature 0."""
    keys = list(scores)
    if temperature > 0:
        keys = [score / temperature - math.log(rng.expovariate(1.0) or 1e-300) for score in scores]
    order = sorted(range(len(keys)), key=lambda i: -keys[i])
    first = max(order, key=lambda i: scores[i], default=None) if likeliest_first else None
    return order if first is None else [first, *(i for i in order if i != first)]


def lower_first(program: Program, replies: Iterable[Reply], n: int) -> list[str]:
    """As texts."""
    found: dict[str, str] = {}
    for reply in replies:
        if len(found) == n:
            break
        try:
            found.setdefault(complete(program, reply).code, print_reply(reply))
        except STUMBLES as error:  # Reply V2's limits among them
            log.debug("left out: %r", error)
    return list(found.values())
