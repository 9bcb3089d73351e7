"""Tasks and their variants, reproducible from small names.

A task is named by an integer seed; a variant by its schedule, as in `grouped/block.4.256.r`. Both determine the
code, so a score file holds none: it names seed and schedule, and the digest tells whether today's templates
still write what was measured. Nothing is built or run here.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from cudal1_compile.codegen.stages.schedule import print_schedule
from cudal1_compile.codegen.templates import Schedule, try_reply, variants
from cudal1_compile.kernel.candidate import Candidate, Reply, parse_candidate
from cudal1_fx_passes.program.canonical import canonicalise
from cudal1_fx_passes.program.ir import Program
from cudal1_fx_passes.program.text import print_program
from cudal1_trainer.tasks import generate_task
from cudal1_trainer.tasks.widen import widen

WIDE_SEED = 2**56


@dataclass(frozen=True)
class Variant:
    """One reply for one program."""

    name: str  # of its schedule
    reply: Reply
    candidate: Candidate

    @property
    def strategy(self) -> str:
        return self.name.partition("/")[0].removesuffix("!")

    @property
    def digest(self) -> str:
        return self.candidate.digest[:20]


def make_task(seed: int) -> Program:
    """The task of this seed, in canonical form; seeds in [WIDE_SEED, 2 * WIDE_SEED) give widened tasks."""
    if not WIDE_SEED <= seed < 2 * WIDE_SEED:
        return canonicalise(generate_task(random.Random(f"task {seed}")))
    rng = random.Random(f"wide {seed}")
    return widen(make_task(seed - WIDE_SEED), rng, lambda: make_task(rng.getrandbits(48)))


def canonical_key(program: Program) -> str:
    """The fingerprint of a program that is in canonical form already, as tasks and imported regions are."""
    return hashlib.sha256(print_program(program).encode()).hexdigest()


def write_variant(program: Program, schedule: Schedule) -> Variant | None:
    """None where there is no reply."""
    reply = try_reply(program, schedule)
    if reply is None:
        return None
    return Variant(print_schedule(schedule), reply, parse_candidate(reply.code, program))


def uses(schedule: Schedule, kind: str) -> bool:
    """Whether some stage's mapping begins so."""
    return any(stage.kind.startswith(kind) for stage in schedule.stages)


def choose_schedules(program: Program, limit: int, kind: str = "") -> list[Schedule]:
    """Half of them the templates' first choices, the rest drawn from all others; the same for the same program.

    Of those that use `mapping` as many as of the others, where there are so many: both together tell what it pays.
    """
    found = variants(program)
    others = _choose(program, [s for s in found if not uses(s, kind)], limit // 2)
    return [*others, *_choose(program, [s for s in found if uses(s, kind)], limit - len(others))]


def _choose(program: Program, schedules: list[Schedule], limit: int) -> list[Schedule]:
    if len(schedules) <= limit:
        return schedules
    first = schedules[: (limit + 1) // 2]
    rng = random.Random(canonical_key(program))
    return [*first, *rng.sample(schedules[len(first) :], limit - len(first))]


def write_variants(program: Program, limit: int, kind: str = "") -> list[Variant]:
    """Up to `limit` variants of distinct code."""
    distinct: dict[str, Variant] = {}
    for schedule in choose_schedules(program, limit, kind):
        variant = write_variant(program, schedule)
        if variant is not None:
            distinct.setdefault(variant.digest, variant)
    return list(distinct.values())
