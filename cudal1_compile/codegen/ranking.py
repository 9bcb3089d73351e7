"""The templates' replies to a program, in the order in which the prior takes them for fast."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from cudal1_compile.codegen.prior.regression import Prior
from cudal1_compile.codegen.templates import STUMBLES, Schedule, try_reply, variants
from cudal1_compile.kernel.candidate import Reply
from cudal1_fx_passes.program.ir import Program

log = logging.getLogger(__name__)


def ranked(program: Program, prior: Prior) -> Iterator[tuple[Schedule, Reply]]:
    """What the prior takes for the fastest first; no code comes twice, and none where no template applies."""
    try:
        schedules = variants(program)
        order = np.argsort(prior.rank(program, schedules), kind="stable") if schedules else ()
    except STUMBLES as error:
        log.warning("no variants: %r on a program of %d operations", error, len(program.ops))
        return
    known = set[str]()
    for at in order:
        reply = try_reply(program, schedules[at])
        if reply is not None and reply.code not in known:
            known.add(reply.code)
            yield schedules[at], reply
